"""Count what reading and writing cost: for this process, and for each iterator of a stream.

Whoever does the work counts it, once: into the counters of its thread. Those of an iterator, in the threads that read
for it, hand on what they count to those of the process.
"""

from __future__ import annotations

import os
import resource
import threading
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
_OF_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
_SHORT = 2e-4
"""Waits of fewer seconds are not looked at one by one."""
STAGES: tuple[Stage, ...] = ("reading", "decoding", "functions", "hand_over")
"""What threads that read for an iterator do, and what its consumer waits for."""


class Counters:
    """Sums by name. Threads may share them.

    Args:
        of_process: the counters that get what these count too; None for none.

    Attributes:
        stage: what a thread that reads is at; None if none is known.
    """

    def __init__(self, of_process: Counters | None = None) -> None:
        self._of_process = of_process
        self._lock = ProcessLock()
        self.stage: Stage | None = None
        self.clear()

    def clear(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(NAMES, 0)
        self._busy = dict.fromkeys(STAGES, 0.0)
        # Short waits, which are neither split nor added yet.
        self._short = 0.0

    def add(self, **amounts: float) -> None:
        with self._lock.of_process():
            for name, amount in amounts.items():
                self._sums[name] += amount
        if self._of_process is not None:
            self._of_process.add(**amounts)

    def sums(self) -> dict[str, float]:
        """Return the sums; whole numbers except those of seconds."""
        with self._lock.of_process():
            sums = dict(self._sums)
        sums["waited_seconds"] += self._short
        sums["hand_over_seconds"] += self._short
        return sums

    def add_busy(self, stage: Stage, seconds: float) -> None:
        """Count how long a thread that reads was at a stage."""
        with self._lock.of_process():
            self._busy[stage] += seconds

    def busy(self) -> list[float]:
        """Return how long threads were at each stage so far."""
        return list(self._busy.values())

    def add_wait(self, seconds: float, before: Sequence[float]) -> None:
        """Count how long the consumer waited: for what threads were busy with meanwhile, and else for the hand-over.

        Args:
            seconds: how long.
            before: what :meth:`busy` returned when it began to wait.
        """
        if seconds < _SHORT:
            self._short += seconds
            if self._short < _SHORT:
                return
            seconds, self._short, before = self._short, 0.0, self.busy()
        worked = [now - then for now, then in zip(self.busy(), before, strict=True)]
        share = min(1.0, seconds / max(sum(worked), 1e-9))
        split = dict(zip(STAGES, (share * each for each in worked), strict=True))
        split["hand_over"] += max(0.0, seconds - sum(split.values()))
        self.add(waited_seconds=seconds, **{f"{stage}_seconds": each for stage, each in split.items()})


_process = Counters()
os.register_at_fork(after_in_child=_process.clear)


class _Thread(threading.local):
    """What a thread counts into; how long the stages within its present stage took, and of that on a processor."""

    counters: Counters = _process
    inner: tuple[float, float] | None = None


_thread = _Thread()


def counters() -> dict[str, float]:
    """Return what this process has done so far with all storages and streams, as numbers that only grow.

    Example:
        >>> cachelayer.counters()["requests"]
        0

    Returns:
        By name: ``requests`` to object stores, those that were ``retries``, ``request_seconds`` (those of requests that
        run at the same time add up), ``bytes_received`` and ``bytes_sent``; ``bytes_from_disk``, of records that
        streams read on this host; the records of remote shards that were read from local copies, ``copies_hit``, and
        over the network though copies are kept, ``copies_missed``; the copies that were made, refused because there was
        no room, evicted and found damaged: ``copies_made``, ``copies_refused``, ``copies_evicted``, ``copies_damaged``;
        ``lost_races``, in which another writer was first; ``stalls`` that were warned of. ``waited_seconds`` is how
        long consumers of streams waited, and the sum of ``reading_seconds``, ``decoding_seconds``,
        ``functions_seconds`` and ``hand_over_seconds``. Worker processes count what they do themselves.
    """
    return _process.sums()


def count(**amounts: float) -> None:
    """Add to the counters of this thread."""
    _thread.counters.add(**amounts)


def of_iterator() -> Counters:
    """Return counters that hand on what they count to those of the process."""
    return Counters(_process)


def counting_into(counters: Counters, function: Callable[[], T]) -> T:
    """Call a function; what it counts goes into these counters."""
    before, _thread.counters = _thread.counters, counters
    try:
        return function()
    finally:
        _thread.counters = before


def counted(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function that counts, in whatever thread it is called, into the counters of this thread."""
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
        is_outermost: True for what reads steps. Within no other stage, such as where blocks are fetched ahead of need,
            nothing is measured.
    """

    __slots__ = ("_before", "_begin", "_cpu", "_is_outermost", "_pages", "_stage", "_stage_before")

    def __init__(self, stage: Stage, *, is_outermost: bool = False) -> None:
        self._stage: Stage = stage
        self._is_outermost = is_outermost

    def __enter__(self) -> None:
        self._before = _thread.inner
        if self._is_outermost or self._before is not None:
            _thread.inner = 0.0, 0.0
            self._stage_before, _thread.counters.stage = _thread.counters.stage, self._stage
            self._pages = _pages_read() if self._stage == "decoding" else 0
            self._begin, self._cpu = perf_counter(), thread_time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _thread.inner is None:
            return
        (inner, inner_cpu), before, counters = _thread.inner, self._before, _thread.counters
        seconds, cpu = perf_counter() - self._begin, thread_time() - self._cpu
        waited = 0.0
        if self._stage == "decoding" and _pages_read() > self._pages:
            waited = max(0.0, (seconds - inner) - (cpu - inner_cpu))
            counters.add_busy("reading", waited)
        counters.add_busy(self._stage, seconds - inner - waited)
        counters.stage = self._stage_before
        _thread.inner = None if before is None else (before[0] + seconds, before[1] + cpu)


def _pages_read() -> int:
    """Return a number that grows when this thread reads pages from a disk; it does not where threads are not told."""
    if _OF_THREAD is None:
        return 0
    usage = resource.getrusage(_OF_THREAD)
    return usage.ru_majflt + usage.ru_inblock
