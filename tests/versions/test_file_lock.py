"""Leases: one holder at a time, and none that is dead."""

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
from cachelayer.versions import file_lock


def test_a_lease_is_held_while_its_holder_is_in_the_block(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    assert not file_lock.is_held(path)
    with file_lock.hold(path):
        assert file_lock.is_held(path)
    assert not file_lock.is_held(path)


def test_who_waits_is_told_once_and_gets_it_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    told: list[str] = []
    inside: list[str] = []

    def hold(name: str) -> None:
        with file_lock.hold(path, on_wait=lambda: told.append(name)):
            inside.append(name)
            assert inside == [name]
            inside.remove(name)

    with ThreadPoolExecutor(4) as threads:
        with file_lock.hold(path):
            waiting = [threads.submit(hold, name) for name in "abcd"]
            while len(told) < 4:
                assert not any(future.done() for future in waiting)
        for future in waiting:
            future.result()
    assert sorted(told) == list("abcd")


def test_a_lease_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"), file_lock.hold(tmp_path / "nowhere" / "lease"):
        raise AssertionError
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        file_lock.is_held(tmp_path / "folder")


def test_who_waited_for_a_lease_that_was_removed_holds_one_that_others_see(tmp_path: Path) -> None:
    path, waiting = tmp_path / "lease", threading.Event()

    def wait_and_look() -> bool:
        with file_lock.hold(path, on_wait=waiting.set, remove=True):
            return file_lock.is_held(path)

    with ThreadPoolExecutor(1) as threads:
        with file_lock.hold(path, remove=True):
            waiter = threads.submit(wait_and_look)
            assert waiting.wait(60)
        assert waiter.result()
    assert not path.exists()


FORK_AND_BE_KILLED = """
import os, sys, time
from pathlib import Path
from cachelayer.versions import file_lock

with file_lock.hold(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        # It does nothing, as a data loader's worker whose parent is gone.
        sys.stdin.read()
        os._exit(0)
    time.sleep(600)
"""


def test_the_lease_of_a_process_that_was_killed_is_free_though_a_forked_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    command = [sys.executable, "-c", FORK_AND_BE_KILLED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert file_lock.is_held(path)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        with file_lock.try_hold(path, "next") as holder:
            assert holder == "next"
            with file_lock.try_hold(path, "late") as other:
                assert other == "next"
        os.kill(child, 0)
    assert not file_lock.is_held(path)


def test_a_child_that_is_forked_in_the_block_leaves_the_lease_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with file_lock.hold(path, remove=True):
        with beside_threads():
            child = os.fork()
        if child == 0:
            # It unwinds the block, as an exception in the child does.
            try:
                raise SystemExit
            except SystemExit:
                pass
        if child:
            os.waitpid(child, 0)
            assert file_lock.is_held(path)
    if child == 0:
        os._exit(0)
    assert not path.exists()


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_lease_costs_no_descriptor_once_it_is_let_go(tmp_path: Path) -> None:
    before = descriptors()
    for number in range(20):
        with file_lock.hold(tmp_path / str(number)), file_lock.try_hold(tmp_path / str(number), "late"):
            assert file_lock.is_held(tmp_path / str(number))
    assert descriptors() == before
