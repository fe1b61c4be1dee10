"""Count what the threads of an iterator do: seconds of each kind of work, bytes by their origin, and requests.

The functions that read records take no argument for this. The tally of the work under way is in a context variable.
asyncio passes it on from a thread that asks for something to the requests that are made for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter
from typing import Literal, Protocol, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

A = TypeVarTuple("A")
U = TypeVar("U")

Origin = Literal["memory_map", "disk", "range", "copy"]
"""Where bytes came from: files in memory, files that were not, an object store, or local copies of its shards."""
ORIGINS: tuple[Origin, ...] = ("memory_map", "disk", "range", "copy")

READING, DECODING, MAPPING, COLLATING = range(4)


class Sized(Protocol):
    """Records of known sizes."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The bytes of each record."""

    @property
    def uniform_nbytes(self) -> int | None:
        """The bytes of every record, if that is known to be the same."""


class Tally:
    """What a thread does for one iterator.

    No lock is needed: the thread of the event loop writes ``requests``, ``retries`` and the bytes of ranges while the
    thread whose tally it is waits for it, and that thread writes the rest. Any thread may read.

    Attributes:
        seconds: the seconds of each kind of work that is done.
        running: the kind of work that is under way and since when; None if there is none.
        nbytes: bytes of records by their origin.
        requests: requests to object stores.
        retries: how many of them repeat one that failed.
    """

    __slots__ = ("nbytes", "requests", "retries", "running", "seconds")

    def __init__(self) -> None:
        self.seconds = [0.0, 0.0, 0.0, 0.0]
        self.running: tuple[int, float] | None = None
        self.nbytes: dict[Origin, int] = dict.fromkeys(ORIGINS, 0)
        self.requests = 0
        self.retries = 0

    def turn(self, kind: int) -> None:
        """Begin with another kind of work: from now on, time is counted as such."""
        running = self.running
        if running is None:
            self.running = (kind, perf_counter())
        elif running[0] != kind:
            now = perf_counter()
            self.seconds[running[0]] += now - running[1]
            self.running = (kind, now)

    def end(self) -> None:
        """End the work that is under way."""
        running, self.running = self.running, None
        if running is not None:
            self.seconds[running[0]] += perf_counter() - running[1]

    def seconds_at(self, now: float) -> list[float]:
        """Return the seconds of each kind of work up to a time, including what is under way."""
        running, seconds = self.running, list(self.seconds)
        if running is not None:
            seconds[running[0]] += max(0.0, now - running[1])
        return seconds

    def add(self, other: Tally) -> None:
        """Count the bytes and requests of another tally too."""
        for origin, nbytes in other.nbytes.items():
            self.nbytes[origin] += nbytes
        self.requests += other.requests
        self.retries += other.retries


current: ContextVar[Tally | None] = ContextVar("cachelayer_tally", default=None)
"""The tally of the work under way; None if nobody counts it."""


def counted(tally: Tally, work: Callable[[*A], U], *arguments: *A) -> U:
    """Return what a function returns, and count what it does in a tally."""
    token = current.set(tally)
    try:
        return work(*arguments)
    finally:
        current.reset(token)


def counted_as_one(work: Callable[[*A], U], *arguments: *A) -> U:
    """Return what a function of the user returns: its time is the kind of work under way, whatever records it reads."""
    tally = current.get()
    if tally is None:
        return work(*arguments)
    inner = Tally()
    try:
        return counted(inner, work, *arguments)
    finally:
        tally.add(inner)


def turn_to(kind: int) -> None:
    """Begin with another kind of work, if the time of this thread is counted."""
    tally = current.get()
    if tally is not None and tally.running is not None:
        tally.turn(kind)


def add_request(*, repeated: bool) -> None:
    """Count a request; called in the thread of the event loop."""
    tally = current.get()
    if tally is not None:
        tally.requests += 1
        tally.retries += repeated


def add_records(origin: Origin, records: Sized) -> None:
    """Count the bytes of records."""
    tally = current.get()
    if tally is not None:
        uniform = records.uniform_nbytes
        nbytes = int(records.lengths.sum()) if uniform is None else uniform * len(records)
        tally.nbytes[origin] += nbytes


def add_bytes(origin: Origin, nbytes: int) -> None:
    """Count bytes that were read."""
    tally = current.get()
    if tally is not None:
        tally.nbytes[origin] += nbytes
