"""Blocks: items that are read at once, and plans to read them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic

from cachelayer.protocols import T
from cachelayer.streams.block_rows import BlockRows
from cachelayer.streams.failures import NONE, Failure
from cachelayer.streams.interruptible_future import Flag, Outcome
from cachelayer.streams.reading import Dropped, Reading
from cachelayer.streams.stream_meter import Meter
from cachelayer.tally import READING


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
