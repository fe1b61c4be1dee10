"""Temporary folders go with their process, however it ends."""

from __future__ import annotations

import signal
import tempfile
from multiprocessing import forkserver
from pathlib import Path

import pytest
from folder_child import killed_at_work
from forks import FORKS

from cachelayer import Storage
from cachelayer.temporary_files import remove_left_over, working_folder


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It listens at a socket in the temporary folder, whose path must be short.
    forkserver.ensure_running()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_by_gc(tmp_path: Path) -> None:
    def killed() -> Path:
        child = FORKS.Process(target=killed_at_work, args=(str(tmp_path / "made"), str(tmp_path / "tmp")))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        left = Path((tmp_path / "made").read_text())
        assert list(left.iterdir()) == [left / "file"]
        return left

    left = killed()
    with working_folder() as folder, working_folder() as other:
        assert not left.exists()
        # Those of processes at work stay.
        remove_left_over(tmp_path / "tmp")
        assert {folder, other} == {*(tmp_path / "tmp").iterdir()}
    left = killed()
    Storage(tmp_path / "storage").gc()
    assert list((tmp_path / "tmp").iterdir()) == []
