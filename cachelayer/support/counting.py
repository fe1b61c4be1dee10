"""Count what reading and writing cost: for this process, and for each iterator of a stream.

::

    thread that reads for an iterator ──> counters of the iterator ──> counters of the process
    any other thread ────────────────────────────────────────────────> counters of the process

The code that does some work counts it once, into the counters of its thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Literal, TypeVar

from cachelayer.support.locks import ProcessLock

T = TypeVar("T")
NAMES = (
    "requests", "retries", "request_seconds", "bytes_received", "bytes_sent", "bytes_from_disk",
    "copies_hit", "copies_missed", "copies_made", "copies_refused", "copies_failed", "copies_evicted",
    "copies_damaged",
    "lost_races", "stalls",
    "waited_seconds", "reading_seconds", "functions_seconds", "hand_over_seconds",
)  # fmt: skip
Stage = Literal["reading", "functions", "hand_over"]


class StageClock:
    """Says at which stage a chunk is, and how long it was at each, from when a thread began it. One thread has it."""

    __slots__ = ("_since", "seconds", "stage")

    def __init__(self) -> None:
        self.stage: Stage | None = None
        """The stage; None before a thread begins."""
        self.seconds: dict[Stage | None, float] = {None: 0.0, "reading": 0.0, "functions": 0.0, "hand_over": 0.0}
        self._since = 0.0

    def enter(self, stage: Stage) -> None:
        """Note that the chunk goes on to a stage."""
        now = perf_counter()
        if self.stage is not None:
            self.seconds[self.stage] += now - self._since
        self.stage = stage
        self._since = now


class Counters:
    """Sums by name, which threads may share.

    ``outer`` are counters that count the same amounts too, and others.
    """

    def __init__(self, outer: Counters | None = None) -> None:
        self.awaited: StageClock | None = None
        """The clock of the chunk that the consumer waits for, or last waited for."""
        self._outer = outer
        self._lock = ProcessLock()
        self._sums: dict[str, float] = dict.fromkeys(NAMES, 0)

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add amounts, by their names."""
        with self._lock.of_process():
            for name, amount in amounts.items():
                self._sums[name] += amount
        if self._outer is not None:
            self._outer.add(amounts)

    def sums(self) -> dict[str, float]:
        """Return the sums: integers, except sums of seconds."""
        with self._lock.of_process():
            return dict(self._sums)

    def begin_anew(self) -> None:
        """Set all sums to 0."""
        self._sums = dict.fromkeys(NAMES, 0)


_process = Counters()
os.register_at_fork(after_in_child=_process.begin_anew)


class _Thread(threading.local):
    counters: Counters = _process
    """The counters that the present thread counts into."""


_thread = _Thread()


def counters() -> dict[str, float]:
    """Return counts of all that this process has done with storages and streams. The numbers only grow.

    Examples:
        >>> before = cachelayer.counters()["requests"]
        >>> ref = cachelayer.Storage(folder).cache(range(10), "numbers@v1")
        >>> cachelayer.counters()["requests"] - before  # a folder takes none
        0

    Returns:
        Numbers by name:

        * ``requests`` to object stores, ``retries`` among them, and ``request_seconds``: the times of requests that run
          at once add up; ``bytes_received`` and ``bytes_sent``;
        * ``bytes_from_disk``: bytes of records that streams read on this host;
        * ``copies_hit`` and ``copies_missed``: records of remote shards that came from local copies, and that came over
          the network though copies are kept;
        * ``copies_made``, ``copies_refused``, ``copies_failed``: local copies that were made, that had no room, that an
          error prevented; ``copies_evicted``, ``copies_damaged``: removed to make room, found damaged;
        * ``lost_races``, in which another writer was first; ``stalls``, of which a warning was logged;
        * ``waited_seconds``: how long consumers of streams waited; the sum of ``reading_seconds``,
          ``functions_seconds`` and ``hand_over_seconds``.

        Worker processes have counters of their own.
    """
    return _process.sums()


def count(**amounts: float) -> None:
    """Add to the counters of this thread."""
    _thread.counters.add(amounts)


def of_iterator() -> Counters:
    """Return new counters. The counters of the process count the same too."""
    return Counters(_process)


def counting_into(counters: Counters, function: Callable[[], T]) -> T:
    """Call a function that counts into these counters."""
    before = _thread.counters
    _thread.counters = counters
    try:
        return function()
    finally:
        _thread.counters = before


def counted(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function that counts into the counters of this thread, in whichever thread it is called."""
    counters = _thread.counters
    return lambda: counting_into(counters, function)


def counts_for_iterator() -> bool:
    """Return whether this thread reads for an iterator."""
    return _thread.counters is not _process


def of_thread() -> Counters:
    """Return the counters of this thread."""
    return _thread.counters
