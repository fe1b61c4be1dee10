"""Threads that work in the background for an object, and end with it or with the program."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from cachelayer.counting import counted
from cachelayer.errors import StorageError
from cachelayer.system_threads import start

R = TypeVar("R")
_Task = tuple[Future[Any], Callable[[], Any]]


class Background:
    """Runs tasks in threads, which hold no reference to the object that submits them.

    After :meth:`close`, and at the end of the program, the tasks that run should end when they next look at ``closed``,
    and the others are dropped. The program waits for that: no thread may run while the interpreter shuts down.

    Args:
        name: the name of the threads.
        threads: the number of tasks that run at once; a thread is started for each of the first tasks.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self.closed = threading.Event()
        """Set when nobody waits for the tasks any longer."""
        self._name = name
        self._most_threads = threads
        self._started = 0
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()

    def submit(self, task: Callable[[], R]) -> Future[R]:
        """Run a task after those before it."""
        if self._started < self._most_threads:
            thread = threading.Thread(target=_work, args=(self._tasks, self.closed), name=self._name, daemon=True)
            _running[thread] = self.close
            try:
                start(thread, "to read in")
            except StorageError:
                del _running[thread]
                raise
            self._started += 1
        future: Future[R] = Future()
        self._tasks.put((future, counted(task)))
        if self.closed.is_set():
            # There may be no thread left that would drop it.
            with suppress(Empty):
                while True:
                    _run_one(self._tasks.get_nowait(), self.closed)
            self._tasks.put(None)
        return future

    def close(self) -> None:
        """Let the threads end; return at once."""
        self.closed.set()
        self._tasks.put(None)


_running: dict[threading.Thread, Callable[[], None]] = {}
"""The running threads, and for each the function that ends it."""


def _work(tasks: SimpleQueue[_Task | None], closed: threading.Event) -> None:
    try:
        while _run_one(tasks.get(), closed):
            pass
        # Pass the end on to the other threads, one of which an interrupt may have left uncounted.
        tasks.put(None)
    finally:
        _running.pop(threading.current_thread(), None)


# A function of its own: the loop must not hold a task or its result while it waits for the next task.
def _run_one(item: _Task | None, closed: threading.Event) -> bool:
    """Run a task; return False if there are no more."""
    if item is None:
        return False
    future, task = item
    if closed.is_set():
        future.cancel()
    # Without this call, who waits for the end of a cancelled task would wait for ever.
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            future.set_exception(error)
    # The traceback of an error may hold this frame, which must not hold the future.
    item = None
    del future, task
    return True


# The threads of the parent do not exist in a forked child.
os.register_at_fork(after_in_child=_running.clear)


@atexit.register
def end_threads() -> None:
    """End all threads, and wait for them."""
    running = list(_running.items())
    for _, close in running:
        close()
    for thread, _ in running:
        # An interrupt may have come before it started.
        if thread.is_alive():
            thread.join()
