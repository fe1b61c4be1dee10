"""Tasks that threads run in the background, for an object; the threads end with it or with the program.

A task is run once, by whoever claims it first: a thread of its queue, or the caller that waits for its result.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from cachelayer.errors import StorageError
from cachelayer.support.counting import counted
from cachelayer.support.system_threads import start

R = TypeVar("R")


class Task(Generic[R]):
    """A call that is made once, and its result or its error."""

    __slots__ = ("_call", "_claims", "_ended", "_result", "error", "has_ended")

    def __init__(self, call: Callable[[], R]) -> None:
        self.has_ended = False
        self.error: BaseException | None = None
        self._call = call
        self._claims: dict[str, bool] = {}
        self._ended = threading.Lock()
        """Free when the task has ended."""
        self._ended.acquire()
        self._result: R | None = None

    def claim(self, *, here: bool) -> bool:
        """Claim the task, for the caller's thread or for a thread of the queue; return whether nobody was first.

        A caller that an interrupt kept from running it may claim it again.
        """
        return not self.has_ended and self._claims.setdefault("here", here) is here

    def run_here(self) -> None:
        """Run a task that was claimed for the caller's thread, in which errors are raised."""
        self._end(self._call(), None)

    def run(self) -> None:
        """Run a task that was claimed for a thread of the queue."""
        try:
            self._end(self._call(), None)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks for the result
            self._end(None, error)
        finally:
            # The traceback of an error holds this frame, which must not hold the task.
            del self

    def drop(self) -> None:
        """End the task unless a thread has begun it: who asks for its result gets a CancelledError."""
        if self.claim(here=True):
            self._end(None, CancelledError())

    def _end(self, result: R | None, error: BaseException | None) -> None:
        self._result = result
        self.error = error
        if not self.has_ended:
            self.has_ended = True
            self._ended.release()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until the task has ended, or for at most so many seconds; return whether it has ended."""
        if not self.has_ended and self._ended.acquire(timeout=seconds):
            self._ended.release()
        return self.has_ended

    def result(self, seconds: float = -1) -> R:
        """Wait for the task; return its result, or raise its error."""
        if not self.wait(seconds):
            raise TimeoutError
        if self.error is None:
            return cast(R, self._result)
        try:
            raise self.error
        finally:
            del self


class Background:
    """Runs tasks in threads, which hold no reference to the object that submits them.

    After :meth:`close`, and at the end of the program, the tasks that run should end when they next look at ``closed``,
    and the others are dropped. The program waits for that: no thread may run while the interpreter shuts down.

    The threads end with ``owner``.
    """

    def __init__(self, name: str, threads: int, owner: object = None) -> None:
        self.closed = threading.Event()
        """Set when nobody waits for the tasks any longer."""
        self._name = name
        self._most_threads = threads
        self._started = 0
        self._starting = threading.Lock()
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()
        if owner is not None:
            weakref.finalize(owner, self.close)

    def submit(self, call: Callable[[], R]) -> Task[R]:
        """Make a call in a thread, after those before it."""
        if self._started < self._most_threads:
            with self._starting:
                # Another thread that submits may have been quicker.
                if self._started < self._most_threads:
                    self._start_thread()
        task = Task(counted(call))
        self._tasks.put(task)
        if self.closed.is_set():
            # There may be no thread left that would drop it.
            task.drop()
        return task

    def _start_thread(self) -> None:
        thread = threading.Thread(target=_work, args=(self._tasks, self.closed), name=self._name, daemon=True)
        _running[thread] = self.close
        try:
            start(thread, "to read in")
        except StorageError:
            del _running[thread]
            raise
        self._started += 1

    def close(self) -> None:
        """Let the threads end; return at once."""
        self.closed.set()
        self._tasks.put(None)


_running: dict[threading.Thread, Callable[[], None]] = {}
"""The running threads, and for each the function that ends it."""


def _work(tasks: SimpleQueue[Task[Any] | None], closed: threading.Event) -> None:
    try:
        while _run_next(tasks, closed):
            pass
        # Pass the end on to the other threads, one of which an interrupt may have left uncounted.
        tasks.put(None)
    finally:
        _running.pop(threading.current_thread(), None)


# A function of its own: the loop must not hold a task or its result while it waits for the next task.
def _run_next(tasks: SimpleQueue[Task[Any] | None], closed: threading.Event) -> bool:
    """Run the next task; return False if there are no more."""
    task = tasks.get()
    if task is None:
        return False
    if closed.is_set():
        task.drop()
    elif task.claim(here=False):
        task.run()
    # The traceback of an error may hold this frame, which must not hold the task.
    del task
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
