"""Jobs that threads do in the background, such as making local copies, while the caller goes on."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from cachelayer.errors import CacheLayerError, CorruptionError, StorageError
from cachelayer.locks import ProcessLock
from cachelayer.objects.local_cache import CopyOutcome
from cachelayer.system_threads import start

Job = TypeVar("Job")

# While one thread checks a copy and writes it to the disk, the others download the next ones.
_THREADS = 3
_BUSY_SECONDS = 0.1
_MOST_FAILURES = 3


class BackgroundJobs(Generic[Job]):
    """Does jobs in a few threads, which end when no job is left and die with the process.

    A job that somebody else is doing is tried again after a while; one that failed is tried when it is wanted again,
    unless its failure was a CorruptionError. After several failures in a row, no more jobs are done.

    Args:
        do: does a job and returns the outcome. It must not refer to the owner of this object: when the owner is
            dropped, no more jobs are done.
        done: a method of the owner that is called with each finished job; only a weak reference to it is held.

    Attributes:
        failure: the last failure; None if there was none.
    """

    def __init__(self, do: Callable[[Job], CopyOutcome], done: Callable[[Job], None]) -> None:
        self.do = do
        self._done = weakref.WeakMethod(done)
        self._lock = ProcessLock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._queue: deque[Job] = deque()
        self._known: set[Job] = set()
        """The jobs that are queued, at work or done for good."""
        self._threads: set[threading.Thread] = set()
        self._failures_in_a_row = 0
        self.failure: CacheLayerError | None = None

    def want(self, jobs: Iterable[Job]) -> None:
        """Start those of the jobs that were not done before, in this order, and return at once."""
        with self._lock:
            if self._pid != os.getpid():
                self._reset()
            if self._failures_in_a_row >= _MOST_FAILURES:
                return
            new = [job for job in dict.fromkeys(jobs) if job not in self._known]
            self._known.update(new)
            self._queue.extend(new)
            for _ in range(min(len(self._queue), _THREADS - len(self._threads))):
                thread = threading.Thread(target=_run, args=(weakref.ref(self),), name="cachelayer-copy", daemon=True)
                self._threads.add(thread)
                try:
                    start(thread, "to copy in")
                except StorageError as error:
                    self._threads.discard(thread)
                    # One is enough; without any, the next call tries again.
                    if not self._threads:
                        self.failure = error
                    return

    def wait(self) -> None:
        # The threads of the parent are not alive in a child after a fork.
        while threads := [thread for thread in self._threads.copy() if thread.is_alive()]:
            for thread in threads:
                thread.join()

    def next_job(self) -> Job | None:
        """Return the next job for a thread; None if it may end."""
        with self._lock:
            if self._queue and self._done() is not None:
                return self._queue.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def note_outcome(self, job: Job, outcome: CopyOutcome | CacheLayerError) -> None:
        """Record what ``do`` returned or raised for a job."""
        done = self._done()
        if outcome is CopyOutcome.HERE and done is not None:
            try:
                done(job)
            except CacheLayerError as error:
                outcome = error
        with self._lock:
            if isinstance(outcome, CacheLayerError):
                self.failure = outcome
                self._failures_in_a_row += 1
                if self._failures_in_a_row >= _MOST_FAILURES:
                    self._queue.clear()
            else:
                self._failures_in_a_row = 0
            if outcome is CopyOutcome.BUSY:
                self._queue.append(job)
            elif isinstance(outcome, CacheLayerError) and not isinstance(outcome, CorruptionError):
                self._known.discard(job)


def _run(reference: weakref.ref[BackgroundJobs[Job]]) -> None:
    """Do jobs until none is left, without a strong reference to the jobs while one runs."""
    while (jobs := reference()) is not None and (job := jobs.next_job()) is not None:
        do = jobs.do
        del jobs
        try:
            outcome: CopyOutcome | CacheLayerError = do(job)
        except CacheLayerError as error:
            outcome = error
        except RuntimeError:
            # The interpreter is exiting and starts no threads, which downloads need.
            if threading.main_thread().is_alive():
                raise
            return
        if outcome is CopyOutcome.BUSY:
            time.sleep(_BUSY_SECONDS)
        if (jobs := reference()) is not None:
            jobs.note_outcome(job, outcome)
        del jobs
