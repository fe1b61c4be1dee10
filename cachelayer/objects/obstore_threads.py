"""Requests of obstore, whose threads have to be done with Python before the interpreter ends.

A thread of obstore takes Python's lock to deliver a result, or to see that nobody wants it any more. Until Python 3.14,
the interpreter unwinds a thread that asks for the lock too late, and Rust answers that with an abort of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakSet

from cachelayer.objects import loop

T = TypeVar("T")

_PAUSE = 0.001


class _Mark:
    """Lives as long as a request: obstore keeps the context of a request until its thread no longer needs Python."""


_mark: ContextVar[_Mark] = ContextVar("cachelayer_obstore_request")
_marks: WeakSet[_Mark] = WeakSet()


def started(request: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Start a request of obstore, and return what it returns."""
    if loop.has_stopped():
        raise asyncio.CancelledError
    mark = _Mark()
    _marks.add(mark)
    token = _mark.set(mark)
    try:
        return request()
    finally:
        _mark.reset(token)


async def _done_with_python() -> None:
    """Return when no thread of obstore needs Python any more."""
    while _marks:
        # Not at all if nothing was started: obstore may be missing.
        from obstore.store import MemoryStore

        await asyncio.sleep(_PAUSE)
        # A thread that drops an object without the lock leaves that to the next call of obstore.
        MemoryStore()


loop.before_stop(_done_with_python)
