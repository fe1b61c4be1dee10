"""Start threads. The system may refuse one: there are too many, or too little memory, or the program ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as pool_threads
from typing import ParamSpec, TypeVar

from cachelayer.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")


def start(thread: threading.Thread, purpose: str) -> None:
    """Start a thread for a purpose, such as ``"to read in"``."""
    try:
        thread.start()
    except RuntimeError as error:
        # An interrupt may have broken a lock of the thread.
        if "lock" in str(error):
            raise
        raise _refused(purpose, error) from error


class Pool(ThreadPoolExecutor):
    """A pool of threads that raises StorageError if the system refuses a thread."""

    def submit(self, task: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> Future[T]:
        try:
            return super().submit(task, *args, **named)
        except RuntimeError as error:
            # An interrupt may have broken a lock of the pool.
            if "lock" in str(error):
                raise
            raise _refused("to work in", error) from error


def program_ends() -> bool:
    """Return whether the program has begun to end: from then on no thread starts, and pools take no work."""
    # A program that ends first waits for the threads of pools: so they know it first.
    return bool(getattr(pool_threads, "_shutdown", False))


def _refused(purpose: str, error: RuntimeError) -> StorageError:
    advice = "raise the limit of threads"
    if program_ends():
        advice = "the main thread of the program has ended: have it wait for the others"
    return StorageError(f"there is no thread {purpose}: {error}: {advice}")
