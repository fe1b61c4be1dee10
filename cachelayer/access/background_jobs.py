"""Work in the background that nobody waits for."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cachelayer.errors import CacheLayerError, CorruptionError
from cachelayer.locks import ProcessLock
from cachelayer.objects.local_cache import CopyOutcome

Job = TypeVar("Job")

# The next copies begin while one is checked and written to the disk.
_THREADS = 3
_BUSY_SECONDS = 0.2
_FAILURES = 3


@dataclass(frozen=True)
class Next(Generic[Job]):
    """A job to be done; None: all are somebody else's just now, look again a little later."""

    job: Job | None


class Copier(Generic[Job]):
    """Does jobs in a few threads, which live while there are any and die with the process.

    A job that failed is done again where it is wanted again, unless it is the source of the copy that is damaged. After
    several failures in a row no more jobs are done.

    Args:
        do: does a job and says what came of it; one that another process is at is tried again. It does not hold on to
            who owns this object, so that no more is done once that is dropped.
        done: a method that takes a job that was done; it is not held on to.
        rank: what decides which job is next; the least is.
        threads: how many jobs are done at a time.

    Attributes:
        failure: the last failure.
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
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        # There may be very many of them: the next one is found without a look at all. Those that are wanted and not
        # queued are somebody else's just now.
        self._wanted: set[Job] = set()
        self._queue: list[tuple[object, int, Job]] = []
        self._tickets = itertools.count()
        self._running: set[Job] = set()
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
            new = set(jobs) - self._ended - self._running - self._wanted
            self._wanted |= new
            self._enqueue(new)
            for _ in range(min(len(self._wanted), self._most_threads - len(self._threads))):
                thread = threading.Thread(target=_run, args=(weakref.ref(self),), name="cachelayer-copy", daemon=True)
                self._threads.add(thread)
                thread.start()

    def _enqueue(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            heapq.heappush(self._queue, (self._rank(job), next(self._tickets), job))

    def wait(self) -> None:
        """Return when there is nothing to be done."""
        # A child of a fork has none of its parent's threads.
        while threads := [thread for thread in self._threads.copy() if thread.is_alive()]:
            for thread in threads:
                thread.join()

    def next_job(self) -> Next[Job] | None:
        """What a thread does now; None where it ends."""
        with self._lock:
            if self._done() is None:
                return None
            if self._queue:
                _, _, job = heapq.heappop(self._queue)
                self._wanted.discard(job)
                self._running.add(job)
                return Next(job)
            if self._wanted:
                self._enqueue(self._wanted)
                return Next(None)
            self._threads.discard(threading.current_thread())
            return None

    def ended(self, job: Job, outcome: CopyOutcome | CacheLayerError) -> None:
        """Take note of what ``do`` returned or raised."""
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
                self._failures = 0
                self._ended.add(job)

    def _note_failure(self, job: Job, error: CacheLayerError) -> None:
        self.failure = error
        self._failures += 1
        if isinstance(error, CorruptionError):
            self._ended.add(job)
        if self._failures >= _FAILURES:
            self._wanted.clear()
            self._queue.clear()


def _run(copier: weakref.ref[Copier[Job]]) -> None:
    pause = threading.Event()
    while True:
        owner = copier()
        found = None if owner is None else owner.next_job()
        if owner is None or found is None:
            return
        if found.job is None:
            del owner
            pause.wait(_BUSY_SECONDS)
            continue
        do = owner.do
        del owner
        try:
            outcome: CopyOutcome | CacheLayerError = do(found.job)
        except CacheLayerError as error:
            outcome = error
        except RuntimeError:
            # At the exit of the interpreter no thread can be started any more.
            if threading.main_thread().is_alive():
                raise
            return
        owner = copier()
        if owner is not None:
            owner.ended(found.job, outcome)
        del owner
