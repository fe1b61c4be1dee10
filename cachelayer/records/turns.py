"""Let the threads that read take turns: one runs Python and short calls, while others copy many bytes.

numpy gives the GIL away in each call on more than 500 numbers, even if that takes a microsecond, and then waits for it
behind a thread that does likewise. If two threads read, such waits take as long as all else.

A turn only saves time. A thread that gets none in time goes on as if it had it, and frees it for all: the thread that
took it may have been interrupted before it could give it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Copying less takes less time than to give the turn to another thread and to get it back.
_LONG_NBYTES = 1 << 18
_SECONDS = 0.02
_TURN = threading.Lock()
# When a thread last got the turn, by the monotonic clock.
_TAKEN = [0.0]
_OF_THREAD = threading.local()


def take_turn() -> None:
    """Wait for the turn of this thread, but not for long; not at all if it has the turn."""
    if not getattr(_OF_THREAD, "has_turn", False):
        # Counted from when it was taken, not from now: interrupts that come again and again end each wait early.
        left = _TAKEN[0] + _SECONDS - time.monotonic()
        if not _TURN.acquire(blocking=False) and left > 0:
            _TURN.acquire(timeout=left)
        _TAKEN[0] = time.monotonic()
        _OF_THREAD.has_turn = True


def leave_turn() -> None:
    """Let other threads have their turn, if this one has it: it is done, or it is going to wait for a disk."""
    if getattr(_OF_THREAD, "has_turn", False):
        _OF_THREAD.has_turn = False
        # RuntimeError: another thread has waited too long, and freed it.
        with suppress(RuntimeError):
            _TURN.release()


@contextmanager
def out_of_turn(nbytes: int | None = None) -> Iterator[None]:
    """Let other threads have their turn while this one works without the GIL.

    Args:
        nbytes: the bytes that it copies; None if it waits for a disk, or decodes images and sounds.
    """
    if not getattr(_OF_THREAD, "has_turn", False) or (nbytes is not None and nbytes < _LONG_NBYTES):
        yield
        return
    leave_turn()
    try:
        yield
    finally:
        take_turn()
