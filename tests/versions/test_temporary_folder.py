"""Temporary folders go with their process, however it ends."""

from __future__ import annotations

import signal
import tempfile
from multiprocessing import forkserver
from pathlib import Path

import pytest
from forks import FORKS
from rewrite_child import killed_at_work

from cachelayer import Storage
from cachelayer.temporary_files import remove_left_over, working_folder


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It listens at a socket in the temporary folder, whose path must be short.
    forkserver.ensure_running()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def killed(tmp_path: Path) -> Path:
    """The folder that a process had when it was killed."""
    child = FORKS.Process(target=killed_at_work, args=(str(tmp_path / "made"), str(tmp_path / "tmp")))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    left = Path((tmp_path / "made").read_text())
    assert list(left.iterdir()) == [left / "file"]
    return left


def test_the_next_one_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    left = killed(tmp_path)
    with working_folder() as folder:
        assert not left.exists()
        assert folder.is_dir()
        # Those of processes at work stay.
        with working_folder() as other:
            assert folder.is_dir()
            assert other != folder
        remove_left_over(tmp_path / "tmp")
        assert folder.is_dir()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_gc_removes_it_too(tmp_path: Path) -> None:
    left = killed(tmp_path)
    Storage(tmp_path / "storage").gc()
    assert not left.exists()
    assert list((tmp_path / "tmp").iterdir()) == []
