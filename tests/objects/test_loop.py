"""The loop of requests: it runs, or there is none."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from typing import NoReturn

import pytest
from threads_denied import no_threads

from cachelayer import StorageError
from cachelayer.objects import loop


async def answer() -> int:
    return 42


@pytest.fixture(autouse=True)
def _new_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_loops", {})
    # The end of this loop would count as that of the process, whose clients are closed later.
    monkeypatch.setattr(atexit, "register", lambda *_: None)


def test_a_request_for_which_there_is_no_thread_is_an_error_and_the_next_one_is_answered() -> None:
    for _ in range(2):
        with no_threads(), pytest.raises(StorageError, match="no thread for requests: can't start new thread"):
            loop.run(answer())
    assert loop.run(answer()) == 42


def test_an_interrupt_while_the_loop_starts_leaves_none_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: threading.Thread) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(answer())
    assert loop.run(answer()) == 42


END = """
import atexit, sys, threading

# Called last.
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
from cachelayer.objects import loop

{before}

async def answer():
    return 42

print(loop.run(answer()))
"""
WITHOUT_OBSTORE = "sys.modules['obstore'] = None; import cachelayer.objects.s3_ranges"
FAILING = "async def fail(): raise ValueError('no')\nloop.before_stop(fail)"


@pytest.mark.parametrize("before", [WITHOUT_OBSTORE, FAILING])
def test_the_loop_ends_before_the_program_whatever_its_end_waits_for(before: str) -> None:
    command = [sys.executable, "-c", END.format(before=before)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "42\n['MainThread']\n"
    assert ("ValueError: no" in found.stderr) == (before == FAILING)
