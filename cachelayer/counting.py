"""Count what reading and writing cost: for this process, and for each iterator of a stream.

::

    thread that reads for an iterator ──> counters of the iterator ──> counters of the process
    any other thread ────────────────────────────────────────────────> counters of the process

The code that does some work counts it once, into the counters of its thread.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from types import TracebackType
from typing import Literal, TypeVar

from cachelayer.locks import ProcessLock

T = TypeVar("T")
NAMES = (
    "requests", "retries", "request_seconds", "bytes_received", "bytes_sent", "bytes_from_disk",
    "copies_hit", "copies_missed", "copies_made", "copies_refused", "copies_evicted", "copies_damaged",
    "lost_races", "stalls",
    "waited_seconds", "reading_seconds", "decoding_seconds", "functions_seconds", "hand_over_seconds",
)  # fmt: skip
Stage = Literal["reading", "decoding", "functions", "hand_over"]
_SHORT = 2e-4
"""Waits of fewer seconds are counted together."""
_MOST_NOTED = 1024
_WAITED = ("waited_seconds", "reading_seconds", "decoding_seconds", "functions_seconds", "hand_over_seconds")
STAGES: tuple[Stage, ...] = ("reading", "decoding", "functions", "hand_over")
"""The work of the threads that read for an iterator, for which its consumer waits."""


class Counters:
    """Sums by name. Threads may share them: a thread notes amounts without a lock, and they are added up now and then.

    Args:
        outer: the counters that count the same amounts too, and others; None for none.
    """

    def __init__(self, outer: Counters | None = None) -> None:
        self.stage: Stage | None = None
        """The stage of a thread that reads; None if none is known."""
        self._outer = outer
        self._lock = ProcessLock()
        self._sums: dict[str, float] = dict.fromkeys(NAMES, 0)
        self._noted: deque[tuple[Sequence[str], Sequence[float]]] = deque()
        self._busy = dict.fromkeys(STAGES, 0.0)
        self._short = 0.0
        """Seconds of short waits, which are neither split by stage nor noted yet."""

    def note(self, names: Sequence[str], amounts: Sequence[float]) -> None:
        """Add amounts, by their names."""
        self._noted.append((names, amounts))
        if len(self._noted) > _MOST_NOTED:
            self.sums()
        if self._outer is not None:
            self._outer.note(names, amounts)

    def sums(self) -> dict[str, float]:
        """Return the sums: integers, except sums of seconds."""
        with self._lock.of_process():
            while self._noted:
                for name, amount in zip(*self._noted.popleft(), strict=True):
                    self._sums[name] += amount
            sums = dict(self._sums)
        sums["waited_seconds"] += self._short
        sums["hand_over_seconds"] += self._short
        return sums

    def begin_anew(self) -> None:
        """Set all sums to 0."""
        sums = self.sums()
        self.note(tuple(sums), tuple(-amount for amount in sums.values()))

    def add_busy(self, stage: Stage, seconds: float) -> None:
        """Count how long a thread that reads was at a stage. Threads may lose a little: it only splits waits."""
        self._busy[stage] += seconds

    def busy(self) -> list[float]:
        """Return the seconds that threads have spent at each stage."""
        return list(self._busy.values())

    def add_wait(self, seconds: float, before: Sequence[float]) -> None:
        """Count how long the consumer waited, split by what the threads were busy with meanwhile.

        The time in which no thread was busy counts as hand-over.

        Args:
            seconds: how long it waited.
            before: the result of :meth:`busy` when it began to wait.
        """
        if seconds < _SHORT:
            self._short += seconds
            if self._short < _SHORT:
                return
            seconds = self._short
            self._short = 0.0
            before = self.busy()
        worked = [now - then for now, then in zip(self.busy(), before, strict=True)]
        total = sum(worked)
        share = seconds / total if total > seconds else 1.0
        reading, decoding, functions, hand_over = worked
        hand_over = share * hand_over + max(0.0, seconds - total)
        self.note(_WAITED, (seconds, share * reading, share * decoding, share * functions, hand_over))


_process = Counters()
os.register_at_fork(after_in_child=_process.begin_anew)


class _Thread(threading.local):
    """The counters of the present thread, and the time of its stages."""

    counters: Counters = _process
    """The counters that it counts into."""
    inner: float | None = None
    """Seconds that it spent in stages within its present stage; None if it is at no stage."""
    reads_disk: bool = False
    """Whether the steps that it reads have records whose pages were not in memory."""


_thread = _Thread()


def counters() -> dict[str, float]:
    """Return counts of all that this process has done with storages and streams. The numbers only grow.

    Examples:
        >>> before = cachelayer.counters()["requests"]
        >>> ref = cachelayer.Storage(folder).cache(range(10), "numbers", "v1")
        >>> cachelayer.counters()["requests"] - before  # a folder takes none
        0

    Returns:
        Numbers by name:

        * ``requests`` to object stores, ``retries`` among them, and ``request_seconds``: the times of requests that run
          at once add up; ``bytes_received`` and ``bytes_sent``;
        * ``bytes_from_disk``: bytes of records that streams read on this host;
        * ``copies_hit`` and ``copies_missed``: records of remote shards that came from local copies, and that came over
          the network though copies are kept;
        * ``copies_made``, ``copies_refused``, ``copies_evicted``, ``copies_damaged``: local copies that were made, that
          had no room, that were removed to make room, and that were found damaged;
        * ``lost_races``, in which another writer was first; ``stalls``, of which a warning was logged;
        * ``waited_seconds``: how long consumers of streams waited; the sum of ``reading_seconds``,
          ``decoding_seconds``, ``functions_seconds`` and ``hand_over_seconds``.

        Worker processes have counters of their own.
    """
    return _process.sums()


def count(**amounts: float) -> None:
    """Add to the counters of this thread."""
    _thread.counters.note(tuple(amounts), tuple(amounts.values()))


def note_disk() -> None:
    """Note that this thread reads records whose pages have to come from a disk."""
    _thread.reads_disk = True


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


class Timed:
    """Measures a stage of reading some steps, without the stages within it: ``with Timed("reading"): ...``.

    A thread that decodes mapped records stands still while their pages come from the disk: that counts as reading.

    Args:
        stage: the stage.
        is_outermost: True for the code that reads steps. Other code is measured only within such code: not where blocks
            are fetched ahead of need, for example.
    """

    __slots__ = ("_before", "_begin", "_cpu", "_is_outermost", "_stage", "_stage_before")

    def __init__(self, stage: Stage, *, is_outermost: bool = False) -> None:
        self._stage: Stage = stage
        self._is_outermost = is_outermost

    def __enter__(self) -> None:
        self._before = _thread.inner
        if self._is_outermost or self._before is not None:
            counters = _thread.counters
            self._stage_before = counters.stage
            counters.stage = self._stage
            _thread.inner = 0.0
            if self._is_outermost:
                _thread.reads_disk = False
                self._cpu = thread_time()
            self._begin = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inner = _thread.inner
        before = self._before
        if inner is None:
            return
        seconds = perf_counter() - self._begin
        counters = _thread.counters
        own = seconds - inner
        if self._is_outermost and _thread.reads_disk:
            still = min(own, max(0.0, seconds - (thread_time() - self._cpu)))
            counters.add_busy("reading", still)
            own -= still
        counters.add_busy(self._stage, own)
        counters.stage = self._stage_before
        _thread.inner = None if before is None else before + seconds
