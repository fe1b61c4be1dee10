"""Read ahead: a queue of chunks, which are items that are read at once. Whoever is first claims a chunk, and reads it.

With ``prefetch=2``, two chunks are read while the consumer has the items of the one before::

    position     0       4               12              20
    chunk        step 0  | steps 1 and 2 | steps 3 and 4 |
                 consumer  task            task            submitted when the consumer asks for position 4

The first chunk is one step, so that the first item comes soon; the others have as many steps as are best read at once.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from cachelayer.protocols import T, takes_requests
from cachelayer.streams.ahead.background import Background, Task
from cachelayer.streams.reading.chunk_plan import read_in_place
from cachelayer.streams.reading.failures import Dropped, Failure, ReadContext, clear_callers
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import StepRange
from cachelayer.support.counting import of_thread
from cachelayer.support.waits import Wait

if TYPE_CHECKING:
    from cachelayer.streams.ahead.block_feed import BlockFeed
    from cachelayer.streams.reading.chunk_plan import HeldOf

_CHUNK_NBYTES = 4 << 20
"""The most bytes of records that are read at once, unless one batch has more."""
_REMOTE_RECORDS = 256
"""The most records that are read at once over a network: they take no longer than a round trip."""
_MAPPED_RECORDS = 32
"""The most records that are read at once if functions are applied to them."""


class Chunk(Generic[T]):
    """Items that were read at once, and the positions between them.

    ``items.popleft()`` hands one out. The position follows from the number of items that are left, so the two always
    agree.

    Args:
        begin: the position before the first item.
        after: the position after each item. Without batches, the last step may have no item for this shard: then its
            position follows too; and if an error ended the chunk, the positions after the steps that were not read.
        items: what was read.
        failure: the error that ended the chunk early.
        failures: the failed elements that stand-ins replaced in the items.
    """

    __slots__ = ("_after", "_begin", "_count", "end", "failure", "failures", "items")

    def __init__(
        self,
        begin: int,
        after: Sequence[int] = (),
        items: Iterable[T] = (),
        failure: BaseException | None = None,
        failures: tuple[Failure, ...] = (),
    ) -> None:
        self._begin = begin
        self._after = after
        self.end = after[-1] if after else begin
        """The position where the next chunk begins."""
        self.items = deque(items)
        self._count = len(self.items)
        self.failure = failure
        self.failures = failures

    @property
    def position(self) -> int:
        """The position after the last item that was handed out."""
        handed_out = self._count - len(self.items)
        return self._after[handed_out - 1] if handed_out else self._begin

    def until(self, position: int, error: BaseException) -> Chunk[T]:
        """Return the chunk of the items up to a position, ended by an error."""
        after = self._after[: bisect_right(self._after, position)]
        failures = tuple(failure for failure in self.failures if failure.position < position)
        return Chunk(self._begin, after, islice(self.items, len(after)), error, failures)

    def replaced(self, change: Callable[[T, int], Any]) -> Chunk[Any]:
        """Return the chunk with other items: what a function makes of each item and the position after it."""
        return Chunk(self._begin, self._after, map(change, self.items, self._after), self.failure, self.failures)


def read_chunk(reader: StepReader, begin: int, steps: StepRange, held: HeldOf, context: ReadContext) -> Chunk[Any]:
    """Read a chunk that is asked for by the position ``begin``; keep the items before an error that ends it."""
    after = reader.positions_after(steps)
    items, failure = reader.read(steps, context, held)
    if failure is not None:
        clear_callers(failure)
    try:
        # The step that an error ended may have failures too, which do not count: it is read again.
        end = after[len(items) - 1] if items else begin
        failures = tuple(replaced for replaced in context.failures if replaced.position < end)
        return Chunk(begin, after, items, failure, failures)
    finally:
        # The error's traceback holds this frame, which must not hold the error.
        failure = None


class _Planned(NamedTuple, Generic[T]):
    """A chunk that is read, or has been read."""

    begin: int
    """The position that the chunk is asked for by."""
    steps: StepRange
    context: ReadContext
    task: Task[Chunk[T]]


class Prefetcher(Generic[T]):
    """Reads the chunks of a stream, some of them ahead, in threads that end with this object. For one caller at a time.

    A caller asks for a chunk by its position. If it asks again it gets the same chunk, so a caller that was interrupted
    asks again and loses nothing. A forked child continues with its own threads.

    An error ends a chunk behind the items before it. A caller that raises it calls :meth:`reread`: then the rest of the
    chunk is read again, and the chunks behind it stay.

    ``prefetch`` of the reader's schedule is the number of chunks ahead; 0 reads in the caller's thread.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._depth = reader.schedule.prefetch
        self._takes_requests = takes_requests(reader.records)
        self._steps_at_once = _steps_at_once(reader, has_requests=self._takes_requests)
        self._feed: BlockFeed | None = None
        if reader.schedule.order.in_blocks and self._takes_requests:
            from cachelayer.streams.ahead.block_feed import feed_of

            self._feed = feed_of(reader, at_once=self._steps_at_once)
        is_stored = not reader.is_mapped and reader.records.info.reading_cost == "stored"
        # Requests wait for a network, most of the time. While functions are called in threads of their own, the next
        # chunk is read.
        self._threads = 2 if (is_stored and self._takes_requests) or reader.functions_have_threads else 1
        self._caller_reads = is_stored and not self._takes_requests
        """Whether a caller that waits reads later chunks meanwhile, which makes a stream on two cores a third quicker:
        not if a slow function or a request may keep it from an earlier chunk that is ready."""
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing ahead, and with threads of this process."""
        self._pid = os.getpid()
        self._ahead: deque[_Planned[T]] = deque()
        self._failed: StepRange | None = None
        """The steps of the chunk that an error ended, the rest of which is read again."""
        self._background = Background("cachelayer-prefetch", self._threads, self)
        """The threads that read chunks."""
        self._function_threads = Background("cachelayer-map", self._reader.threads, self)
        """The threads that call the functions of the user, if these ask for several."""

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._failed = None
        while self._ahead:
            self._ahead.pop().task.drop()

    def reread(self) -> None:
        """Have the steps that an error ended read again when they are next asked for; those behind them stay."""
        if self._ahead:
            self._failed = self._ahead.popleft().steps

    def chunk(self, position: int) -> Chunk[T] | None:
        """Return the chunk at a position; None at the end."""
        if self._pid != os.getpid():
            # The parent's threads do not exist here, so their chunks would never come.
            self._begin()
        if self._feed is not None:
            self._feed.reached(position)
        if self._depth == 0:
            steps = self._reader.schedule.at(position, self._steps_at_once)
            return None if steps is None else self._read_here(position, steps)
        if self._failed is not None:
            failed = self._failed
            self._failed = None
            self._submit_rest(failed, position)
        while self._ahead and self._ahead[0].begin != position:
            self._ahead.popleft().task.drop()
        if not self._ahead and not self._submit(position, 1):
            return None
        while len(self._ahead) <= self._depth and self._submit(self._ahead[-1].steps.following, self._steps_at_once):
            pass
        first = self._ahead[0]
        if not first.task.has_ended:
            self._wait_for(first)
        try:
            return first.task.result()
        except (CancelledError, Dropped):
            # The program ends, and so do the threads.
            return self._read_here(position, first.steps)

    def _wait_for(self, first: _Planned[T]) -> None:
        """Wait for the first chunk; meanwhile, read those that no thread has claimed."""
        counters = of_thread()
        counters.awaited = first.context.clock
        if self._caller_reads:
            for planned in self._ahead:
                if first.task.has_ended:
                    return
                if planned.task.claim(here=True):
                    counters.awaited = planned.context.clock
                    planned.context.closed = None
                    planned.task.run_here()

        def describe() -> str:
            stage = first.context.clock.stage
            now = f", now at {stage}" if stage else ""
            return f"{self._reader.records.info.name}: the item at position {first.begin}{now}"

        with Wait(describe, "streams") as wait:
            wait.until(first.task.wait)

    def _read_here(self, position: int, steps: StepRange) -> Chunk[T]:
        """Read a chunk in the caller's thread."""
        context = self._context()
        of_thread().awaited = context.clock
        return read_chunk(self._reader, position, steps, self._held_of(steps), context)

    def _context(self, closed: Event | None = None) -> ReadContext:
        """Return the context of a chunk; ``closed`` is set when nobody waits for it any longer."""
        return ReadContext(closed, self._function_threads.submit if self._reader.threads > 1 else None)

    def _held_of(self, steps: StepRange) -> HeldOf:
        """Have the blocks of a chunk fetched, unless its records are read where they lie; return what holds them."""
        if self._feed is not None:
            return self._feed.load(steps).held
        return self._reader.preparing(steps) if self._takes_requests else read_in_place

    def _read_in_background(self, position: int, steps: StepRange) -> _Planned[T]:
        context = self._context(self._background.closed)
        read = partial(read_chunk, self._reader, position, steps, self._held_of(steps), context)
        return _Planned(position, steps, context, self._background.submit(read))

    def _submit(self, position: int, most: int) -> bool:
        """Have the chunk at a position read; return False at the end."""
        steps = self._reader.schedule.at(position, most)
        if steps is None:
            return False
        self._ahead.append(self._read_in_background(position, steps))
        return True

    def _submit_rest(self, failed: StepRange, position: int) -> None:
        """Have some of the steps read, from a position on, in front of the chunks that are read ahead."""
        if failed.begin <= position < failed.end:
            most = -(-(failed.end - position) // self._reader.schedule.global_batch)
            steps = self._reader.schedule.at(position, most)
            if steps is not None and steps.end == failed.end:
                self._ahead.appendleft(self._read_in_background(position, steps))


def _steps_at_once(reader: StepReader, *, has_requests: bool) -> int:
    """Return the number of steps of a chunk: one, or several that are small."""
    records = reader.records
    most_records = min(records.info.records_per_read, _CHUNK_NBYTES // max(1, records.info.read_nbytes))
    if has_requests:
        most_records = min(most_records, _REMOTE_RECORDS)
    if reader.is_mapped:
        most_records = min(most_records, _MAPPED_RECORDS)
    if reader.batch_maps:
        # A function may make any number of bytes of a batch.
        most_records = 1
    if reader.schedule.prefetch == 0 and (reader.maps or records.info.reading_cost != "stored"):
        # A consumer that reads itself waits for every item of a chunk.
        most_records = 1
    if reader.schedule.prefetch:
        # Each thread that calls functions gets an element.
        most_records = max(most_records, reader.threads)
    return max(1, -(-most_records // max(1, reader.rows_per_step)))
