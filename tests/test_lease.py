"""Leases: one holder at a time, and none that is dead."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachelayer import StorageError
from cachelayer.versions import lease

HOLD = """
import sys
import threading
from pathlib import Path
from cachelayer.versions import lease

with lease.hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

FORK_WHILE_HOLDING = """
import os, sys
from pathlib import Path
from cachelayer.versions import lease

path = Path(sys.argv[1])
with lease.hold(path):
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
print(child, lease.is_held(path), flush=True)
"""


def test_a_lease_is_held_while_its_holder_is_in_the_block(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    assert not lease.is_held(path)
    with lease.hold(path):
        assert lease.is_held(path)
    assert not lease.is_held(path)


def test_the_lease_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert lease.is_held(path)
        holder.kill()
        holder.wait()
    assert not lease.is_held(path)


def test_a_lease_that_was_let_go_is_free_though_a_forked_child_lives(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK_WHILE_HOLDING, str(tmp_path / "lease")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().split()[1] == "False"


def test_who_waits_is_told_once_and_gets_it_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    told: list[str] = []
    inside: list[str] = []

    def hold(name: str) -> None:
        with lease.hold(path, on_wait=lambda: told.append(name)):
            inside.append(name)
            assert inside == [name]
            inside.remove(name)

    with ThreadPoolExecutor(4) as threads:
        with lease.hold(path):
            waiting = [threads.submit(hold, name) for name in "abcd"]
            while len(told) < 4:
                assert not any(future.done() for future in waiting)
        for future in waiting:
            future.result()
    assert sorted(told) == list("abcd")


def test_a_lease_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"), lease.hold(tmp_path / "nowhere" / "lease"):
        raise AssertionError
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        lease.is_held(tmp_path / "folder")


def test_who_waited_for_a_lease_that_was_removed_holds_one_that_others_see(tmp_path: Path) -> None:
    path, waiting = tmp_path / "lease", threading.Event()

    def wait_and_look() -> bool:
        with lease.hold(path, on_wait=waiting.set, remove=True):
            return lease.is_held(path)

    with ThreadPoolExecutor(1) as threads:
        with lease.hold(path, remove=True):
            waiter = threads.submit(wait_and_look)
            assert waiting.wait(60)
        assert waiter.result()
    assert not path.exists()
