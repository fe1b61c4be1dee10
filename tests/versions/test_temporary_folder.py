"""Temporary folders go with their process, however it ends."""

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
from folder_child import killed_at_work
from forks import FORKS, beside_threads

from cachelayer import Storage
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.store import Blob
from cachelayer.support.temporary_files import working_folder


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It listens at a socket in the temporary folder, whose path must be short.
    forkserver.ensure_running()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_by_gc(tmp_path: Path) -> None:
    def killed_child() -> Path:
        child = FORKS.Process(target=killed_at_work, args=(str(tmp_path / "made"), str(tmp_path / "tmp")))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        left = Path((tmp_path / "made").read_text())
        assert list(left.iterdir()) == [left / "file"]
        return left

    left = killed_child()
    with working_folder() as folder, working_folder() as other:
        assert not left.exists()
        # Those of processes at work stay.
        assert {folder, other} == {*(tmp_path / "tmp").iterdir()}
    left = killed_child()
    Storage(tmp_path / "storage").gc()
    assert list((tmp_path / "tmp").iterdir()) == []


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledMeanwhile(BucketStore):
    """A store whose process is killed when it has fetched a file, or is to put one, in the work that a test names."""

    def download(self, name: str, path: Path, nbytes: int) -> int:
        super().download(name, path, nbytes)
        killed()
        return 0

    def put_file(self, path: Path, blob: Blob) -> None:
        killed(path, blob)


ROWS = [{"n": number, "tokens": [number] * (1 + number % 3)} for number in range(100)]
WORK: dict[str, Callable[[Storage, str], object]] = {
    "verify": lambda storage, name: storage.verify("d@v1", progress=False),
    "copy": lambda storage, name: storage.copy("d@v1", None, storage, new=f"e@{name}", progress=False),
    "erase": lambda storage, name: storage.erase("d@v1", records=[int(name)], reason="asked to", progress=False),
    "submit": lambda storage, name: storage.submit(ROWS[1:], f"d@{name}", progress=False),
    "add columns": lambda storage, name: storage.add_columns("d@v1", name, {"more": np.arange(100)}),
    "plan": lambda storage, name: storage.fetch("d@v1").packed("tokens", 3),
}


@pytest.mark.filterwarnings("ignore:.*erased")
@pytest.mark.parametrize("work", WORK)
def test_what_is_killed_at_work_for_a_bucket_is_removed_by_the_next(tmp_path: Path, work: str) -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    storage.submit(ROWS, "d@v1")
    with beside_threads():
        child = os.fork()
    if child == 0:
        storage._catalog.store = KilledMeanwhile("memory", storage._store.root)
        try:
            WORK[work](storage, "1")
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    left = list((tmp_path / "tmp").iterdir())
    assert any(path.stat().st_size > 0 for folder in left for path in folder.iterdir())
    WORK[work](storage, "2")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_a_process_that_nobody_can_ask_about_left_is_removed_after_a_week(tmp_path: Path) -> None:
    new, used, old = (tmp_path / "tmp" / f"cachelayer-build-{name:>012}-elsewhere-1" for name in "abc")
    for folder, days in ((new, 6), (used, 8), (old, 8)):
        folder.mkdir()
        (folder / "file").touch()
        then = time.time() - days * 24 * 3600
        for path in (folder / "file", folder):
            os.utime(path, (then, then))
    # Somebody works in it.
    os.utime(used / "file")
    with working_folder():
        assert [folder.exists() for folder in (new, used, old)] == [True, True, False]
