"""Read large elements when the consumer asks for them.

What a thread has copied ahead of need is no longer in the cache of the processor when the consumer gets it. To hand
such an element over takes longer than to copy it. So if the files are in memory, the consumer's own thread copies each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple

from cachelayer.protocols import T
from cachelayer.streams.block_plan import Block
from cachelayer.streams.prefetch import Prefetcher
from cachelayer.streams.stream_meter import Meter
from cachelayer.tally import READING, counted

LARGE_NBYTES = 1 << 15
"""From this size on, elements are quicker to copy than to hand over."""


class Unread(NamedTuple, Generic[T]):
    """An element that is read when it is needed.

    Args:
        read: reads a record.
        number: its number.
    """

    read: Callable[[int], T]
    number: int


class OneByOne(Generic[T]):
    """Gives an iterator blocks of one element, which is read then; or, if that is slower, blocks that were read ahead.

    Args:
        ahead: reads blocks ahead.
        unread: given a position, returns the next elements, and the position after each, by their positions; none if to
            read them ahead is quicker, or at the end.
        reached: called with the position that the caller has reached, before anything is looked up.
        meter: measures the reading.
    """

    def __init__(
        self,
        ahead: Prefetcher[T],
        unread: Callable[[int], Mapping[int, tuple[Unread[T], int]]],
        reached: Callable[[int], None] | None,
        meter: Meter,
    ) -> None:
        self._ahead = ahead
        self._look_up = unread
        self._reached = reached
        self._meter = meter
        # Always replaced as a whole.
        self._unread: Mapping[int, tuple[Unread[T], int]] = {}

    def block(self, position: int) -> Block[T] | None:
        """Return the block at a position; None at the end."""
        found = self._unread.get(position) or self._found(position)
        if found is None:
            return self._ahead.block(position)
        (read, number), after = found
        tally = self._meter.consumer
        try:
            tally.turn(READING)
            element = counted(tally, read, number)
        finally:
            tally.end()
        return Block(position, (after,), (element,))

    def _found(self, position: int) -> tuple[Unread[T], int] | None:
        """Look up the element at a position; return None if it is to be read ahead."""
        if self._ahead.ready(position):
            return None
        if self._reached is not None:
            self._reached(position)
        self._unread = self._look_up(position)
        found = self._unread.get(position)
        if found is not None:
            self._ahead.forget()
        return found

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._unread = {}
        self._ahead.forget()

    def ready(self, position: int) -> int:
        """Return how many items are ready from a position on."""
        unread, count = self._unread, 0
        while position in unread:
            position = unread[position][1]
            count += 1
        return count + self._ahead.ready(position)
