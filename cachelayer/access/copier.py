"""Work in the background that nobody waits for."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from cachelayer.errors import CacheLayerError, CorruptionError
from cachelayer.locks import ProcessLock

Job = TypeVar("Job")

# The next copy begins while one is checked and written to the disk.
_THREADS = 2
_BUSY_SECONDS = 0.2
_FAILURES = 3


class Copier(Generic[Job]):
    """Does jobs in a few threads, which live while there are any and die with the process.

    A job that failed is done again where it is wanted again, unless it is the source of the copy that is damaged. After
    several failures in a row no more jobs are done.

    Args:
        do: does a job: True where it is done, False where it cannot be, None where somebody else is at it: it is tried
            again. It is not held on to once this object is dropped.
        rank: what decides which job is next; the least is.

    Attributes:
        failure: the last failure.
    """

    def __init__(self, do: Callable[[Job], bool | None], rank: Callable[[Job], object]) -> None:
        self._do = do
        self._rank = rank
        self._lock = ProcessLock()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._wanted: set[Job] = set()
        self._running: set[Job] = set()
        self._busy: set[Job] = set()
        self._ended: set[Job] = set()
        self._threads: set[threading.Thread] = set()
        self._failures = 0
        self.failure: CacheLayerError | None = None

    def want(self, jobs: Iterable[Job]) -> None:
        """Have jobs done that were not done before."""
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            if self._failures >= _FAILURES:
                return
            self._wanted.update(set(jobs) - self._ended - self._running)
            for _ in range(min(len(self._wanted), _THREADS - len(self._threads))):
                thread = threading.Thread(target=_run, args=(weakref.ref(self),), name="cachelayer-copy", daemon=True)
                self._threads.add(thread)
                thread.start()

    def wait(self) -> None:
        """Return when there is nothing to be done."""
        while threads := self._threads - {threading.current_thread()}:
            for thread in threads:
                thread.join()

    def step(self) -> float | None:
        """Do one job; how long to wait before the next, None where there is none."""
        with self._lock:
            ready = self._wanted - self._busy
            if not ready:
                self._busy.clear()
                if self._wanted:
                    return _BUSY_SECONDS
                self._threads.discard(threading.current_thread())
                return None
            job = min(ready, key=self._rank)  # type: ignore[arg-type]
            self._wanted.discard(job)
            self._running.add(job)
        try:
            done = self._do(job)
        except CacheLayerError as error:
            self._note_failure(job, error)
            return 0.0
        with self._lock:
            self._running.discard(job)
            if done is None:
                self._busy.add(job)
                self._wanted.add(job)
            else:
                self._failures = 0
                self._ended.add(job)
        return 0.0

    def _note_failure(self, job: Job, error: CacheLayerError) -> None:
        with self._lock:
            self._running.discard(job)
            self.failure = error
            self._failures += 1
            if isinstance(error, CorruptionError):
                self._ended.add(job)
            if self._failures >= _FAILURES:
                self._wanted.clear()


def _run(copier: weakref.ref[Copier[Job]]) -> None:
    pause = threading.Event()
    while True:
        owner = copier()
        try:
            seconds = None if owner is None else owner.step()
        except RuntimeError:
            # At the exit of the interpreter no thread can be started any more.
            if threading.main_thread().is_alive():
                raise
            return
        del owner
        if seconds is None:
            return
        if seconds:
            pause.wait(seconds)
