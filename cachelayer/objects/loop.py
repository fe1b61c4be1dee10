"""One event loop per process, in its own thread; all requests run in it."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from cachelayer.locks import ProcessLock

T = TypeVar("T")

_lock = ProcessLock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""The loop of each process. A forked child neither uses nor closes that of its parent: they share their sockets."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result; an interrupt cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, running_loop())
    try:
        return future.result()
    finally:
        future.cancel()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process, started if need be."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="cachelayer-requests", daemon=True)
            thread.start()
            atexit.register(_stop, os.getpid(), loop, thread)
        return loop


def _stop(pid: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if pid == os.getpid():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(1)


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once and return their results; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
