"""One event loop per process, in its own thread; all requests run in it."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from cachelayer.locks import ProcessLock
from cachelayer.system_threads import start

T = TypeVar("T")

_STOP_SECONDS = 5

_lock = ProcessLock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""The loop of each process. A forked child neither uses nor closes that of its parent: they share their sockets."""
_stopped: set[int] = set()
"""The processes whose loop has stopped."""
_before_stop: list[Callable[[], Coroutine[Any, Any, None]]] = []
"""What the loop waits for after all requests are cancelled."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result; an interrupt cancels it."""
    try:
        loop = running_loop()
    except BaseException:
        work.close()
        raise
    if has_stopped():
        work.close()
        raise RuntimeError("the program ends: there are no more requests")
    call = _Call(work)
    try:
        # Not by run_coroutine_threadsafe: its futures take their conditions, and two threads turns, several times.
        loop.call_soon_threadsafe(call.begin)
        call.ended.acquire()
        # A method that returned this would be in the traceback of an error too, and hold the error.
        return call.task.result()
    except CancelledError:
        raise RuntimeError("the program ends: its requests are cancelled") from None
    finally:
        if not call.is_done:
            loop.call_soon_threadsafe(call.cancel)
        # The traceback of an error holds this frame, which must not hold the error.
        del call


class _Call(Generic[T]):
    """A coroutine that runs in the loop while a thread waits for its end.

    Attributes:
        ended: a lock that is free at the end. Taking it is one call, which an interrupt of the thread ends.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            # Nobody else may ask for it any more, which asyncio would tell on stderr.
            task.exception()
        self.ended.release()

    def cancel(self) -> None:
        """Cancel it; called in the loop, after its begin if that was to be called at all."""
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    @property
    def is_done(self) -> bool:
        """True if it has ended."""
        return self._task is not None and self._task.done()

    @property
    def task(self) -> asyncio.Task[T]:
        """What runs it; to be asked for after its end."""
        return cast("asyncio.Task[T]", self._task)


def has_stopped() -> bool:
    """Return whether this process ends and makes no more requests."""
    return os.getpid() in _stopped


def before_stop(wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have the end of the program wait for a coroutine, for a few seconds, after all requests are cancelled."""
    _before_stop.append(wait)


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process, started if need be."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="cachelayer-requests", daemon=True)
            try:
                start(thread, "for requests")
            except BaseException:
                if thread.ident is None:
                    loop.close()
                raise
            atexit.register(_stop, os.getpid(), loop, thread)
            # Only now: requests to a loop that does not run would wait for ever.
            _loops[os.getpid()] = loop
        return loop


def _stop(pid: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if pid == os.getpid():
        # Threads that wait for requests must not wait for a loop that has stopped: they would never end.
        _stopped.add(pid)
        try:
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(1 + _STOP_SECONDS)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(1)


async def _cancel_all() -> None:
    """Cancel all that runs in the loop, and wait for what must end before the program does."""
    # Once more for those that began meanwhile.
    for _ in range(2):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0)), *others], timeout=0.4)
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            for wait in _before_stop:
                await wait()


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once and return their results; the first failure cancels the others."""
    works = list(works)
    if len(works) == 1:
        return [await works[0]]
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
