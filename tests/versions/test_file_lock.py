"""Locks of files: one holder at a time, and none that is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forks import beside_threads

from cachelayer import StorageError
from cachelayer.versions.file_lock import is_held, try_hold


@pytest.mark.parametrize("remove", [False, True])
def test_a_lock_has_one_holder_until_the_end_of_the_block(tmp_path: Path, remove: bool) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    together = threading.Barrier(8)

    def hold(_: int) -> bool:
        together.wait(60)
        with try_hold(path, remove=remove) as is_ours:
            assert is_held(path)
            together.wait(60)
        return is_ours

    with ThreadPoolExecutor(8) as threads:
        for _ in range(2):
            assert sorted(threads.map(hold, range(8))) == [False] * 7 + [True]
            assert not is_held(path)
            assert path.exists() is not remove


def test_a_lock_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"), try_hold(tmp_path / "nowhere" / "lock"):
        raise AssertionError
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        is_held(tmp_path / "folder")


def test_the_lock_of_a_file_that_was_removed_is_not_that_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with try_hold(path) as first:
        path.unlink()
        with try_hold(path, remove=True) as second:
            assert (first, second, is_held(path)) == (True, True, True)


FORK_AND_BE_KILLED = """
import os, sys, time
from pathlib import Path
from cachelayer.versions.file_lock import try_hold

with try_hold(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        # It does nothing, as a data loader's worker whose parent is gone.
        sys.stdin.read()
        os._exit(0)
    time.sleep(600)
"""


def test_the_lock_of_a_process_that_was_killed_is_free_though_a_forked_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", FORK_AND_BE_KILLED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_held(path)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        with try_hold(path) as is_ours, try_hold(path) as is_others:
            assert (is_ours, is_others) == (True, False)
        os.kill(child, 0)
    assert not is_held(path)


def test_a_child_that_is_forked_in_the_block_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with try_hold(path, remove=True):
        with beside_threads():
            child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert is_held(path)
    if child == 0:
        # It has unwound the block, as an exception in the child does.
        os._exit(0)
    assert not path.exists()


def test_a_lock_costs_no_descriptor_once_it_is_let_go(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = descriptors()
    for number in range(20):
        with try_hold(tmp_path / str(number)), try_hold(tmp_path / str(number)):
            assert is_held(tmp_path / str(number))
    assert descriptors() == before
