"""Start threads, which the system may refuse: there is a limit of them, or of memory, or the program ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from cachelayer.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")


def start(thread: threading.Thread, purpose: str) -> None:
    """Start a thread.

    Args:
        thread: the thread.
        purpose: what it is for, such as ``"to read in"``.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise _refused(purpose, error) from error


class Pool(ThreadPoolExecutor):
    """Threads that do tasks; if the system gives only some of them, these do all tasks.

    Args:
        threads: the most threads that are started.
        name: what the names of the threads begin with.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)

    def submit(self, task: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> Future[T]:
        try:
            return super().submit(task, *args, **named)
        except RuntimeError as error:
            # Else the pool was shut down, and the caller should not use it.
            if threading.main_thread().is_alive():
                raise
            raise _refused("to work in", error) from error

    # ``submit`` has queued the task when it calls this. If this raised although a thread is there, that thread would do
    # a task for which the caller has no future.
    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if not self._threads:
                self._work_queue.get_nowait()
                raise _refused("to work in", error) from error


def _refused(purpose: str, error: RuntimeError) -> StorageError:
    advice = "raise the limit of threads"
    if not threading.main_thread().is_alive():
        advice = "the main thread of the program has ended: have it wait for the others"
    return StorageError(f"there is no thread {purpose}: {error}: {advice}")
