"""Jobs that threads do in the background, such as making local copies, while the caller goes on."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Generic, TypeVar

from cachelayer.errors import CacheLayerError, CorruptionError, StorageError
from cachelayer.locks import ProcessLock
from cachelayer.objects.local_cache import CopyOutcome
from cachelayer.system_threads import start

Job = TypeVar("Job")

# While one thread checks a copy and writes it to the disk, the others download the next ones.
_THREADS = 3
_BUSY_SECONDS = 0.2
_MOST_FAILURES = 3


class NoJob(Enum):
    """Why a thread gets no job."""

    BUSY = "other processes are doing all jobs that are left"
    DONE = "no job is left, or nobody needs one any more"


class BackgroundJobs(Generic[Job]):
    """Does jobs in a few threads, which end when no job is left and die with the process.

    A job that failed is tried again if it is wanted again, unless the failure was a CorruptionError. After several
    failures in a row, no more jobs are done.

    Args:
        do: does a job and returns the outcome. BUSY means that another process is doing the job: it is tried again.
            ``do`` must not refer to the owner of this object: when the owner is dropped, no more jobs are done.
        done: a method of the owner that is called with each finished job; only a weak reference to it is held.
        rank: returns the sort key of a job; the job with the least key is next.
        threads: the number of jobs that are done at a time.

    Attributes:
        failure: the last failure; None if there was none.
    """

    def __init__(
        self,
        do: Callable[[Job], CopyOutcome],
        done: Callable[[Job], None],
        rank: Callable[[Job], object],
        threads: int = _THREADS,
    ) -> None:
        self.do = do
        self._most_threads = threads
        self._done = weakref.WeakMethod(done)
        self._rank = rank
        self._lock = ProcessLock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        # There may be very many jobs, so a heap finds the next one. Jobs that are wanted but not in the heap were BUSY
        # when they were last tried.
        self._wanted: set[Job] = set()
        self._queue: list[tuple[object, int, Job]] = []
        self._tickets = itertools.count()
        self._running: set[Job] = set()
        self._ended: set[Job] = set()
        self._threads: set[threading.Thread] = set()
        self._failures_in_a_row = 0
        self.failure: CacheLayerError | None = None

    def want(self, jobs: Iterable[Job]) -> None:
        """Start those of the jobs that were not done before, and return at once."""
        with self._lock:
            if self._pid != os.getpid():
                self._reset()
            if self._failures_in_a_row >= _MOST_FAILURES:
                return
            new = set(jobs) - self._ended - self._running - self._wanted
            self._wanted |= new
            self._enqueue(new)
            for _ in range(min(len(self._wanted), self._most_threads - len(self._threads))):
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

    def _enqueue(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            heapq.heappush(self._queue, (self._rank(job), next(self._tickets), job))

    def wait(self) -> None:
        """Return when no job is left."""
        # The threads of the parent are not alive in a child after a fork.
        while threads := [thread for thread in self._threads.copy() if thread.is_alive()]:
            for thread in threads:
                thread.join()

    def next_job(self) -> Job | NoJob:
        """Return the next job for a thread, or why there is none."""
        with self._lock:
            if self._done() is None:
                return NoJob.DONE
            if self._queue:
                _, _, job = heapq.heappop(self._queue)
                self._wanted.discard(job)
                self._running.add(job)
                return job
            if self._wanted:
                self._enqueue(self._wanted)
                return NoJob.BUSY
            self._threads.discard(threading.current_thread())
            return NoJob.DONE

    def note_outcome(self, job: Job, outcome: CopyOutcome | CacheLayerError) -> None:
        """Record what ``do`` returned or raised for a job."""
        done = self._done()
        if outcome is CopyOutcome.HERE and done is not None:
            try:
                done(job)
            except CacheLayerError as error:
                outcome = error
        with self._lock:
            self._running.discard(job)
            if outcome is CopyOutcome.BUSY:
                self._wanted.add(job)
            elif isinstance(outcome, CacheLayerError):
                self._note_failure(job, outcome)
            else:
                self._failures_in_a_row = 0
                self._ended.add(job)

    def _note_failure(self, job: Job, error: CacheLayerError) -> None:
        self.failure = error
        self._failures_in_a_row += 1
        if isinstance(error, CorruptionError):
            self._ended.add(job)
        if self._failures_in_a_row >= _MOST_FAILURES:
            self._wanted.clear()
            self._queue.clear()


def _run(reference: weakref.ref[BackgroundJobs[Job]]) -> None:
    """Do jobs until none is left, without a strong reference to the jobs while one runs."""
    pause = threading.Event()
    while True:
        jobs = reference()
        job: Job | NoJob = NoJob.DONE if jobs is None else jobs.next_job()
        if jobs is None or job is NoJob.DONE:
            return
        if isinstance(job, NoJob):
            del jobs
            pause.wait(_BUSY_SECONDS)
            continue
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
        jobs = reference()
        if jobs is not None:
            jobs.note_outcome(job, outcome)
        del jobs
