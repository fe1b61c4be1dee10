"""Processes and threads that the system starts otherwise, or does not start."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from repository import SUPPORT
from threads_denied import no_threads

from cachelayer import StorageError
from cachelayer.objects.local import LocalStore
from cachelayer.support.system_threads import Pool, start
from cachelayer.versions.lease import CLAIM, Leases


def test_a_refused_thread_is_an_error_that_says_what_it_was_for() -> None:
    with no_threads(), pytest.raises(StorageError, match=r"no thread to sing in: .*: raise the limit"):
        start(threading.Thread(target=print), "to sing in")


def test_an_interrupt_that_breaks_a_lock_of_python_is_no_refused_thread() -> None:
    class Broken(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("release unlocked lock")

    with pytest.raises(RuntimeError, match="unlocked"):
        start(Broken(), "to sing in")


def test_a_pool_that_gets_no_thread_says_so() -> None:
    with Pool(3, "few") as pool, no_threads(), pytest.raises(StorageError, match="no thread to work in"):
        pool.submit(int, "1")


def test_a_build_that_cannot_show_that_it_is_at_work_keeps_nobody_waiting(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with (
        no_threads(),
        pytest.raises(StorageError, match="no thread to show"),
        Leases(store.folder("d/_builds/v1")).hold(CLAIM),
    ):
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


WITHOUT_PYTHON = """
import sys
import cachelayer

sys.executable = "/nowhere/python"
try:
    cachelayer.Storage(sys.argv[1]).submit([1, 2, 3], "d@v1", workers=2, progress=False)
except (cachelayer.SourceError, cachelayer.StorageError) as error:
    print(error)
"""


def test_a_process_that_the_system_does_not_start_is_an_error_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_PYTHON, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "worker process" in ended.stdout


@pytest.mark.slow
def test_everything_works_where_processes_begin_by_forkserver(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SUPPORT / "forkserver_child.py", tmp_path], check=True)
