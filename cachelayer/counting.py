"""Count what reading and writing cost: for this process, and for each iterator of a stream.

Whoever does the work counts it, once: into the counters of its thread. Those of an iterator, in the threads that read
for it, hand on what they count to those of the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter
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
STAGES: tuple[Stage, ...] = ("reading", "decoding", "functions", "hand_over")
"""What threads that read for an iterator do, and what its consumer waits for."""


class Counters:
    """Sums by name. Threads may share them.

    Args:
        of_process: the counters that get what these count; None for none.
    """

    def __init__(self, of_process: Counters | None = None) -> None:
        self._of_process = of_process
        self._lock = ProcessLock()
        self.clear()

    def clear(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(NAMES, 0)
        self.busy = dict.fromkeys(STAGES, 0.0)
        """How long threads have been at each stage; what an iterator waits for is computed from it."""

    def add(self, **amounts: float) -> None:
        with self._lock.of_process():
            for name, amount in amounts.items():
                self._sums[name] += amount
        if self._of_process is not None:
            self._of_process.add(**amounts)

    def add_busy(self, stage: Stage, seconds: float) -> None:
        with self._lock.of_process():
            self.busy[stage] += seconds

    def sums(self) -> dict[str, float]:
        """Return the sums; whole numbers except those of seconds."""
        with self._lock.of_process():
            return dict(self._sums)


_process = Counters()
os.register_at_fork(after_in_child=_process.clear)


class _Thread(threading.local):
    """What a thread counts into, and how long it has been in stages within the one that is being measured."""

    counters: Counters = _process
    inner: float | None = None


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


class Timed:
    """Measures a stage of reading some steps: ``with Timed("reading"): ...``, without the stages within it.

    Args:
        stage: the stage.
        is_outermost: True for what reads steps. Within no other stage, such as where blocks are fetched ahead of need,
            nothing is measured.
    """

    __slots__ = ("_before", "_begin", "_is_outermost", "_stage")

    def __init__(self, stage: Stage, *, is_outermost: bool = False) -> None:
        self._stage: Stage = stage
        self._is_outermost = is_outermost

    def __enter__(self) -> None:
        self._before = _thread.inner
        if self._is_outermost or self._before is not None:
            _thread.inner = 0.0
        self._begin = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inner = _thread.inner
        if inner is not None:
            seconds = perf_counter() - self._begin
            _thread.counters.add_busy(self._stage, seconds - inner)
            _thread.inner = None if self._before is None else self._before + seconds
