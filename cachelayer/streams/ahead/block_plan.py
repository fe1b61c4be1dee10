"""Blocks: items that are read at once, and plans to read them."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import Any, Generic, TypeVar

from cachelayer.protocols import T
from cachelayer.streams.ahead.block_rows import BlockRows
from cachelayer.streams.reading.failures import NONE, Failure

U = TypeVar("U")


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class Reading:
    """The reading of one block: whether anybody still waits for it, and what comes of it beside the items.

    Args:
        closed: set when nobody waits any longer; None if the consumer itself reads.

    Attributes:
        mapping: the seconds that the user's functions took.
        failures: the elements that others stand in for.
        blocks: for the begin of each step, the blocks that its records are read from; None to read them where they lie.
    """

    __slots__ = ("blocks", "closed", "failures", "mapping")

    def __init__(self, closed: Event | None = None) -> None:
        self.closed = closed
        self.mapping = 0.0
        self.failures: list[Failure] = []
        self.blocks: Mapping[int, BlockRows] | None = None

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function, and during long waits."""
        if self.closed is not None and self.closed.is_set():
            raise Dropped

    def timed(self, work: Callable[..., U], *arguments: Any) -> U:
        """Return what a function returns, and count its time as that of the user's functions."""
        begun = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            self.mapping += time.perf_counter() - begun

    def tried(self, read: Callable[[], U]) -> U | None:
        """Return what is read at once; None if that fails: the error comes again when records are read one by one."""
        try:
            return read()
        except Exception:  # noqa: BLE001
            self.failures.clear()
            return None


class Chunk(Generic[T]):
    """Items that were read at once, and the positions between them.

    ``items.popleft()`` hands one out. The position follows from the number of items that are left, so the two always
    agree.

    Args:
        begin: the position before the first item.
        after: the position after each item; one more than there are items if the last step has no item for this shard.
        items: what was read.
        failure: the error that ended the block early.
        failures: the elements of the items that others stand in for.
        mapping: the seconds that the user's functions took.
        seconds: the seconds that it took to read the block.

    Attributes:
        all_failures: those of the blocks before this one in an iterator, and of this one.
    """

    __slots__ = ("_after", "_begin", "_count", "all_failures", "failure", "failures", "items", "mapping", "seconds")

    def __init__(
        self,
        begin: int,
        after: Sequence[int] = (),
        items: Iterable[T] = (),
        failure: BaseException | None = None,
        failures: tuple[Failure, ...] = (),
        mapping: float = 0.0,
        seconds: float = 0.0,
    ) -> None:
        self._begin = begin
        self._after = after
        self.items = deque(items)
        self._count = len(self.items)
        self.failure = failure
        self.failures = failures
        self.all_failures = NONE.followed(failures)
        self.mapping = mapping
        self.seconds = seconds

    @property
    def position(self) -> int:
        """The position after the last item that was handed out."""
        handed_out = self._count - len(self.items)
        return self._after[handed_out - 1] if handed_out else self._begin

    @property
    def end(self) -> int:
        """The position where the next block begins."""
        return self._after[-1] if self._after else self._begin

    def until(self, position: int, error: BaseException) -> Chunk[T]:
        """Return a block of the items that end at a position or before, ended by an error."""
        after = self._after[: bisect_right(self._after, position)]
        failures = tuple(each for each in self.failures if each.position < position)
        return Chunk(self._begin, after, islice(self.items, len(after)), error, failures, self.mapping)

    def replaced(self, change: Callable[[T, int], Any]) -> Chunk[Any]:
        """Return a block of what a function makes of each item and the position after it."""
        items = map(change, self.items, self._after)
        return Chunk(self._begin, self._after, items, self.failure, self.failures, self.mapping)


@dataclass(frozen=True)
class ReadPlan(Generic[T]):
    """A plan to read a block.

    Args:
        begin: the position where it begins.
        after: the position after each item, as in :class:`Chunk`.
        read: appends the items to a list, one after another.
        blocks: for the begin of each step, the blocks that its records are read from; None to read them where they lie.
        pending: what should end before it is read; None if it may be read at any time.
    """

    begin: int
    after: Sequence[int]
    read: Callable[[list[T], Reading], None]
    blocks: Mapping[int, BlockRows] | None = None
    pending: Future[Any] | None = None

    @property
    def end(self) -> int:
        """The position where the next block begins."""
        return self.after[-1]

    def load(self, closed: Event | None = None) -> Chunk[T]:
        """Read the block; if an error ends it, keep the items before the error.

        Args:
            closed: set when nobody waits for the block any longer; None if the consumer itself reads: then an interrupt
                is raised at once.
        """
        items: list[T] = []
        failure: BaseException | None = None
        reading = Reading(closed)
        reading.blocks = self.blocks
        begun = time.perf_counter()
        try:
            while self.pending is not None and not self.pending.done():
                reading.check()
                wait([self.pending], 0.2)
            self.read(items, reading)
        except Dropped:
            raise
        except StopIteration as error:
            failure = RuntimeError("reading the records raised StopIteration")
            failure.__cause__ = error
        except Exception as error:  # noqa: BLE001 - raised in the place of the item
            failure = error
        except BaseException as error:
            if closed is None:
                raise
            failure = error
        try:
            # Of an item that an error ended, there may be some too.
            end = self.after[len(items) - 1] if items else self.begin
            failures = tuple(each for each in reading.failures if each.position < end)
            seconds = time.perf_counter() - begun
            return Chunk(self.begin, self.after, items, failure, failures, reading.mapping, seconds)
        finally:
            # The error's traceback holds this frame, which must not hold the error.
            failure = None
