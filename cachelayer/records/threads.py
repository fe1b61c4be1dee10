"""Share the work of a read among threads.

Only work that releases the GIL gains by that: copies of many rows, decompression, decoding of images and sounds. The
thread that reads does jobs too, and waits only for those that others have begun. It learns from the clock whether
sharing is quicker.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial

from cachelayer.errors import StorageError
from cachelayer.records.turns import leave_turn, out_of_turn, take_turn
from cachelayer.system_threads import Pool

Job = Callable[[], None]

_MOST = 8
# For less, another thread begins too late to help.
_SHARED_NBYTES = 1 << 20
_JOB_NBYTES = 1 << 18
# More jobs than threads, so that a thread that is slow leaves some to the others.
_JOBS_A_THREAD = 4
# Threads share work if that takes at most this part of the time; after so many calls, the other way is tried again.
_WORTH = 0.9
_TRIED = 16
_TRIED_CALLS = 128
# Calls of a function are shared if one takes at least so much of the processor: in shorter ones, Python takes most of
# the time. So many seconds of calls show how long one takes, and less than that is not worth another thread.
_LONG_SECONDS = 200e-6
_SHOWN_SECONDS = 1e-3
# The threads that read now.
_READERS: set[int] = set()
_OF_THREAD = threading.local()


def cores() -> int:
    """Return how many cores this process may use, at most 8."""
    try:
        found = len(os.sched_getaffinity(0))
    except AttributeError:
        found = os.cpu_count() or 1
    return max(1, min(_MOST, found))


class Reading:
    """A context in which one thread reads, with the help of others, in turn: see :mod:`cachelayer.records.turns`.

    The thread must leave its turn before it waits for a disk or a network.

    Args:
        threads: the most threads that work on the read; None for as many as there are cores.
    """

    __slots__ = ("_before", "_threads")

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._before: int | None = None

    def __enter__(self) -> None:
        # First, because it waits: if it is interrupted, nothing else has changed.
        take_turn()
        self._before = getattr(_OF_THREAD, "threads", None)
        _OF_THREAD.threads = self._threads
        _READERS.add(threading.get_ident())

    def __exit__(self, *error: object) -> None:
        # If an interrupt lost this call, the next read of the thread makes up for it.
        _READERS.discard(threading.get_ident())
        _OF_THREAD.threads = self._before
        leave_turn()


def allowed() -> int:
    """Return how many threads may work on what this thread reads: all reads of the process share the cores."""
    threads: int | None = getattr(_OF_THREAD, "threads", None)
    # Others may begin or end meanwhile, which does no harm.
    return max(1, (threads or cores()) // max(1, len(_READERS)))


class Gain:
    """Learns whether work goes quicker if threads share it, which depends on the machine and on what else runs there.

    Both ways are timed, and the slower one is tried again from time to time. Safe to use from threads: at worst, a time
    is lost.

    Args:
        tried: after so many calls, the slower way is tried again.
    """

    __slots__ = ("_calls", "_seconds", "_tried")

    def __init__(self, tried: int = _TRIED) -> None:
        self._tried = tried
        self._calls = 0
        # The seconds that a byte or a call takes, by one thread and shared; 0 if that is not known yet.
        self._seconds = [0.0, 0.0]

    def shares(self) -> bool:
        """Return whether the next work is to be shared."""
        self._calls += 1
        alone, shared = self._seconds
        if not alone or not shared:
            return bool(alone)
        return (shared < _WORTH * alone) != (self._calls % self._tried == 0)

    def learn(self, seconds: float, *, shared: bool) -> None:
        """Remember how long a byte or a call took. One long time changes little: the thread may have had to wait."""
        before = self._seconds[shared]
        self._seconds[shared] = before + (min(seconds, 2 * before) - before) / 4 if before else seconds


def quickest(alone: Job, parts: Callable[[int], Sequence[Job]], nbytes: int, gain: Gain) -> None:
    """Do work in this thread, or share it among threads if that is quicker.

    Args:
        alone: does all of the work.
        parts: returns about so many jobs that together do the same.
        nbytes: the bytes that are made.
        gain: what was learnt from work of this kind.
    """
    with out_of_turn(nbytes):
        threads = allowed() if nbytes >= _SHARED_NBYTES else 1
        if threads == 1:
            alone()
        else:
            _quicker(alone, parts, threads, nbytes, gain)


def _quicker(alone: Job, parts: Callable[[int], Sequence[Job]], threads: int, nbytes: int, gain: Gain) -> None:
    shared = gain.shares()
    begun = time.perf_counter()
    if shared:
        _in_threads(parts(min(_JOBS_A_THREAD * threads, nbytes // _JOB_NBYTES)), threads - 1)
    else:
        alone()
    gain.learn((time.perf_counter() - begun) / nbytes, shared=shared)


class Cost:
    """What calls of a function took lately. Safe to use from threads: at worst, a time is lost."""

    __slots__ = ("gain", "processor")

    def __init__(self) -> None:
        self.gain = Gain(_TRIED_CALLS)
        # The processor's seconds a call; 0 if they are not known yet.
        self.processor = 0.0

    @property
    def is_long(self) -> bool:
        """True if a call takes so long that another thread may help."""
        return self.processor >= _LONG_SECONDS


def each(count: int, do: Callable[[int], None], cost: Cost) -> None:
    """Call a function of each number below a count: in this thread, or in threads if that is quicker.

    Args:
        count, do: the numbers and the function.
        cost: of calls of this kind; learnt here.

    Raises:
        Exception: what the call of the least number that failed has raised; later calls may not have been made.
    """
    with out_of_turn():
        _each(count, do, cost)


def _each(count: int, do: Callable[[int], None], cost: Cost) -> None:
    helpers = min(allowed(), count) - 1
    done = 0 if helpers > 0 and cost.is_long and cost.gain.shares() else _alone(count, do, cost, helpers)
    if done < count:
        begun, processor = time.perf_counter(), time.thread_time()
        mine = _in_threads([partial(do, number) for number in range(done, count)], helpers)
        cost.gain.learn((time.perf_counter() - begun) / (count - done), shared=True)
        if mine:
            cost.processor = (time.thread_time() - processor) / mine


def _alone(count: int, do: Callable[[int], None], cost: Cost, helpers: int) -> int:
    """Call a function of each number in this thread, until the calls turn out to be long; return how many were made."""
    begun, processor, was_long = time.perf_counter(), time.thread_time(), cost.is_long
    done = 0
    while done < count and (helpers < 1 or was_long or not cost.is_long):
        do(done)
        done += 1
        used = time.thread_time() - processor
        if used >= _SHOWN_SECONDS:
            cost.processor = used / done
    if done:
        cost.gain.learn((time.perf_counter() - begun) / done, shared=False)
    return done


def _in_threads(jobs: Sequence[Job], helpers: int) -> int:
    """Do jobs, in any order; when all are done, return how many this thread did.

    Jobs must hold what they use: if this thread is interrupted, a job that another has begun goes on.

    Raises:
        Exception: what the first of the jobs that failed has raised; others may not have been done.
    """
    left, failed = deque(enumerate(jobs)), dict[int, Exception]()
    try:
        begun: list[Future[int]] = []
        # The system may give no threads, and at its end the program starts no more.
        with suppress(RuntimeError, StorageError):
            # One after another: those that have begun are waited for even if no more can begin.
            begun.extend(_pool(os.getpid()).submit(_work, left, failed) for _ in range(min(helpers, len(jobs) - 1)))
        mine = _work(left, failed)
        for other in begun:
            if not other.cancel():
                other.result()
        if failed:
            raise failed[min(failed)]
        return mine
    finally:
        left.clear()
        # The tracebacks of errors hold this frame.
        failed = {}


def _work(left: deque[tuple[int, Job]], failed: dict[int, Exception]) -> int:
    """Do jobs until none is left or one has failed; return how many."""
    done = 0
    while not failed:
        try:
            number, job = left.popleft()
        except IndexError:
            break
        try:
            job()
        except Exception as error:  # noqa: BLE001 - raised by the thread that reads
            failed[number] = error
        done += 1
    return done


@cache
def _pool(pid: int) -> Pool:  # noqa: ARG001 - a forked child does not have its parent's threads
    return Pool(max(1, cores() - 1), "cachelayer-read")


# The child does not have the parent's threads, whose reads would never end.
os.register_at_fork(after_in_child=_READERS.clear)
