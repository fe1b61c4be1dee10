"""Blocks: items that are read at once, and plans to read them."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cachelayer.protocols import T
from cachelayer.streams.failures import NONE, Failure
from cachelayer.streams.interruptible_future import Flag, Outcome
from cachelayer.tally import READING, Tally

if TYPE_CHECKING:
    from cachelayer.streams.block_feed import BlockRows
    from cachelayer.streams.stream_meter import Meter

U = TypeVar("U")


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class Reading:
    """The reading of one block: whether anybody still waits for it, and how long the user's functions took.

    Args:
        stops: flags, one of which is set when nobody waits any longer.
        tally: counts the reading; None if nobody asks.

    Attributes:
        rows: number of records in each item, in order; empty for elements.
        failures: the elements that others stand in for.
        blocks: for the begin of each step, the blocks that its records are read from; None to read them where they lie.
    """

    __slots__ = ("blocks", "failures", "rows", "seconds", "stops", "tally")

    def __init__(self, *stops: Flag, tally: Tally | None = None) -> None:
        self.stops = stops
        self.tally = Tally() if tally is None else tally
        self.rows: list[int] = []
        self.seconds = 0.0
        self.failures: list[Failure] = []
        self.blocks: Mapping[int, BlockRows] | None = None

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function, and during long waits."""
        for stop in self.stops:
            if stop.is_set():
                raise Dropped

    def timed(self, work: Callable[..., U], *arguments: Any) -> U:
        """Return what a function returns, and count its time as that of the user's functions."""
        begun = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            self.seconds += time.perf_counter() - begun

    def tried(self, read: Callable[[], U]) -> tuple[U | None, Exception | None]:
        """Return what is read at once, or else the error: it comes again when the records are read one by one."""
        try:
            return read(), None
        except Exception as error:  # noqa: BLE001
            self.failures.clear()
            return None, error


def raise_unrepeated(failure: Exception | None) -> None:
    """Raise an error that did not come again when records were read one by one, if a signal handler may have raised it.

    Such an error comes only once, and must not be lost.
    """
    if failure is not None and threading.current_thread() is threading.main_thread():
        raise failure


class Block(Generic[T]):
    """Items that were read at once, and the positions between them.

    ``items.popleft()`` hands one out. That is a single call in C, which no signal handler interrupts, and the position
    follows from the number of items that are left. So the two always agree.

    Args:
        begin: the position before the first item.
        after: the position after each item; one more than there are items if the last step has no item for this shard.
        items: what was read.
        failure: the error that ended the block early.
        seconds: how long the user's functions took.
        failures: the elements of the items that others stand in for.
        rows: number of records in each item; empty for elements.

    Attributes:
        all_failures: those of the blocks before this one in an iterator, and of this one.
        before: number of records that were handed out before this block.
    """

    __slots__ = (
        "_after",
        "_begin",
        "_count",
        "all_failures",
        "before",
        "failure",
        "failures",
        "items",
        "rows",
        "seconds",
    )

    def __init__(
        self,
        begin: int,
        after: Sequence[int] = (),
        items: Iterable[T] = (),
        failure: BaseException | None = None,
        seconds: float = 0.0,
        failures: tuple[Failure, ...] = (),
        rows: Sequence[int] = (),
    ) -> None:
        self._begin = begin
        self._after = after
        self.items = deque(items)
        self._count = len(self.items)
        self.failure = failure
        self.seconds = seconds
        self.failures = failures
        self.all_failures = NONE.followed(failures)
        self.rows = rows
        self.before = 0

    @property
    def handed_out(self) -> int:
        """The number of records that were handed out, up to the last item."""
        count = self._count - len(self.items)
        return self.before + (sum(self.rows[:count]) if self.rows else count)

    @property
    def position(self) -> int:
        """The position after the last item that was handed out."""
        handed_out = self._count - len(self.items)
        return self._after[handed_out - 1] if handed_out else self._begin

    @property
    def end(self) -> int:
        """The position where the next block begins."""
        return self._after[-1] if self._after else self._begin

    def until(self, position: int, error: BaseException) -> Block[T]:
        """Return a block of the items that end at a position or before, ended by an error."""
        after = self._after[: bisect_right(self._after, position)]
        failures = tuple(each for each in self.failures if each.position < position)
        return Block(self._begin, after, islice(self.items, len(after)), error, self.seconds, failures, self.rows)

    def replaced(self, change: Callable[[T, int], Any]) -> Block[Any]:
        """Return a block of what a function makes of each item and the position after it."""
        items = map(change, self.items, self._after)
        return Block(self._begin, self._after, items, self.failure, self.seconds, self.failures, self.rows)


@dataclass(frozen=True)
class Plan(Generic[T]):
    """A plan to read a block.

    Args:
        begin: the position where it begins.
        after: the position after each item, as in :class:`Block`.
        read: appends the items to a list, one after another.
        blocks: for the begin of each step, the blocks that its records are read from; None to read them where they lie.
        pending: what should end before it is read; None if it may be read at any time.
    """

    begin: int
    after: Sequence[int]
    read: Callable[[list[T], Reading], None]
    blocks: Mapping[int, BlockRows] | None = None
    pending: Outcome[Any] | None = None

    @property
    def end(self) -> int:
        """The position where the next block begins."""
        return self.after[-1]

    @property
    def is_here(self) -> bool:
        """True if to read the block is not to wait for blocks of records that are on their way."""
        if self.pending is not None and not self.pending.done():
            return False
        return self.blocks is None or all(rows.are_here for rows in self.blocks.values())

    def load(self, stop: Flag | None, caught: type[BaseException], meter: Meter) -> Block[T]:
        """Read the block; if an error ends it, keep the items before the error.

        Args:
            stop: set when nobody waits for the block any longer; None if the consumer itself reads.
            caught: the errors that end a block; others are raised, and the items are lost.
            meter: measures the reading.
        """
        items: list[T] = []
        failure: BaseException | None = None
        tally = meter.consumer if stop is None else meter.ahead
        reading = Reading(tally=tally) if stop is None else Reading(stop, tally=tally)
        reading.blocks = self.blocks
        try:
            tally.turn(READING)
            while self.pending is not None and not self.pending.done():
                reading.check()
                self.pending.wait()
            self.read(items, reading)
        except Dropped:
            raise
        except StopIteration as error:
            failure = RuntimeError("reading the records raised StopIteration")
            failure.__cause__ = error
        except caught as error:
            failure = error
        finally:
            tally.end()
        try:
            # Of an item that an error ended, there may be some too.
            end = self.after[len(items) - 1] if items else self.begin
            failures = tuple(each for each in reading.failures if each.position < end)
            return Block(self.begin, self.after, items, failure, reading.seconds, failures, reading.rows)
        finally:
            # The error's traceback holds this frame, which must not hold the error.
            failure = None
