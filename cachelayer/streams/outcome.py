"""What a thread makes for others, with no lock that a signal handler which raises could leave taken.

The classes of ``threading`` and ``concurrent.futures`` hold their locks in Python code: an interrupt there leaves one
taken for ever, and every thread that asks for it waits for ever. Here one call in C takes a lock, or gives it back, and
a waiter looks again after a while.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Generic, TypeVar

R = TypeVar("R")

# A waiter whose turn was lost to an interrupt looks again after so long.
_SECONDS = 0.2


class CancelledError(Exception):
    """What was asked for is not made any more."""


class Flag:
    """Set once, and looked at by others."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


class Outcome(Generic[R]):
    """What a thread makes, unless it was cancelled before the thread began."""

    def __init__(self) -> None:
        # Who was first, "begun" or "cancelled": setdefault decides and notes it in one step.
        self._first: dict[None, str] = {}
        self._unfinished = threading.Lock()
        self._unfinished.acquire()
        self._result: tuple[R] | None = None
        self._error: BaseException | None = None

    def begin(self) -> bool:
        """Return True if the work is the caller's, False if it was cancelled."""
        return self._first.setdefault(None, "begun") == "begun"

    def cancel(self) -> bool:
        """Return True if nobody has begun, and nobody will."""
        if self._first.setdefault(None, "cancelled") == "begun":
            return False
        self._wake()
        return True

    def cancelled(self) -> bool:
        return self._first.get(None) == "cancelled"

    def done(self) -> bool:
        return self._result is not None or self._error is not None or self.cancelled()

    def set_result(self, result: R) -> None:
        self._result = (result,)
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def result(self) -> R:
        """Wait for what is made.

        Raises:
            CancelledError: if it was cancelled.
        """
        while not self.done():
            if self._unfinished.acquire(timeout=_SECONDS):
                self._wake()
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise CancelledError
        return self._result[0]

    def _wake(self) -> None:
        # Another thread may have been quicker.
        with suppress(RuntimeError):
            self._unfinished.release()
