"""Results that one thread makes for others, without locks that a signal handler could leave taken.

The classes of ``threading`` and ``concurrent.futures`` hold their locks in Python code. If a signal handler raises
there, a lock stays taken for ever, and every thread that asks for it waits for ever. Here a single call in C takes or
releases a lock, and a waiter looks again after a while.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Generic, TypeVar

R = TypeVar("R")

# A waiter looks again after this time, in case an interrupt has lost its wake-up.
_SECONDS = 0.2


class CancelledError(Exception):
    """The work was cancelled before it began."""


class Flag:
    """A flag that one thread sets once, and others look at."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


class Outcome(Generic[R]):
    """The result that a thread makes, unless it is cancelled before the thread begins."""

    __slots__ = ("__weakref__", "_error", "_first", "_unfinished", "answer")

    def __init__(self) -> None:
        # "begun" or "cancelled", whichever came first: setdefault decides and stores it in one step.
        self._first: dict[None, str] = {}
        self._unfinished = threading.Lock()
        self._unfinished.acquire()
        self.answer: tuple[R] | None = None
        """The result, once it has been made."""
        self._error: BaseException | None = None

    def begin(self) -> bool:
        """Return True if the caller has to do the work, False if it was cancelled."""
        return self._first.setdefault(None, "begun") == "begun"

    def cancel(self) -> bool:
        """Cancel the work; return False if somebody has begun it already."""
        if self._first.setdefault(None, "cancelled") == "begun":
            return False
        self._wake()
        return True

    def cancelled(self) -> bool:
        return self._first.get(None) == "cancelled"

    def done(self) -> bool:
        return self.answer is not None or self._error is not None or self.cancelled()

    def failed(self) -> bool:
        """Return True if there will be no result."""
        return self._error is not None or self.cancelled()

    def set_result(self, result: R) -> None:
        self.answer = (result,)
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def result(self) -> R:
        """Wait for the result, and return it.

        Raises:
            CancelledError: if the work was cancelled.
            BaseException: what the work raised.
        """
        while not self.done():
            self.wait()
        if self._error is not None:
            raise self._error
        if self.answer is None:
            raise CancelledError
        return self.answer[0]

    def wait(self) -> None:
        """Wait until the work is done or cancelled, or for a short while."""
        if self._unfinished.acquire(timeout=_SECONDS):
            self._wake()

    def _wake(self) -> None:
        # RuntimeError: another thread has released it already.
        with suppress(RuntimeError):
            self._unfinished.release()
