"""Read ahead in the background: a queue of futures of chunks, which are items that are read at once."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import islice
from threading import Event
from typing import Any, Generic, NamedTuple

from cachelayer.counting import Counters, of_thread
from cachelayer.protocols import T
from cachelayer.stalls import Wait
from cachelayer.streams.ahead.background import Background
from cachelayer.streams.ahead.block_feed import feed_of
from cachelayer.streams.reading.chunk_plan import ChunkPlan, plan_chunk
from cachelayer.streams.reading.failures import Failure, ReadContext, clear_callers
from cachelayer.streams.reading.mapped_chunk import HeldOf, read_in_place
from cachelayer.streams.reading.step_reader import StepReader

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
        after: the position after each item; one more than there are items if the last step has no item for this shard.
        items: what was read.
        failure: the error that ended the chunk early.
        failures: the elements of the items that others stand in for.
    """

    __slots__ = ("_after", "_begin", "_count", "failure", "failures", "items")

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
        self.items = deque(items)
        self._count = len(self.items)
        self.failure = failure
        self.failures = failures

    @property
    def position(self) -> int:
        """The position after the last item that was handed out."""
        handed_out = self._count - len(self.items)
        return self._after[handed_out - 1] if handed_out else self._begin

    @property
    def end(self) -> int:
        """The position where the next chunk begins."""
        return self._after[-1] if self._after else self._begin

    def until(self, position: int, error: BaseException) -> Chunk[T]:
        """Return a chunk of the items that end at a position or before, ended by an error."""
        after = self._after[: bisect_right(self._after, position)]
        failures = tuple(failure for failure in self.failures if failure.position < position)
        return Chunk(self._begin, after, islice(self.items, len(after)), error, failures)

    def replaced(self, change: Callable[[T, int], Any]) -> Chunk[Any]:
        """Return a chunk of what a function makes of each item and the position after it."""
        return Chunk(self._begin, self._after, map(change, self.items, self._after), self.failure, self.failures)


def read_chunk(reader: StepReader, begin: int, plan: ChunkPlan, held: HeldOf, context: ReadContext) -> Chunk[Any]:
    """Read a chunk that is asked for by the position ``begin``; keep the items before an error that ends it."""
    after = plan.after
    items, failure = reader.read(plan, context, held)
    if failure is not None:
        clear_callers(failure)
    try:
        # Of an item that an error ended, there may be some too.
        last = after[len(items) - 1] if items else begin
        return Chunk(begin, after, items, failure, tuple(each for each in context.failures if each.position < last))
    finally:
        # The error's traceback holds this frame, which must not hold the error.
        failure = None


class _Planned(NamedTuple, Generic[T]):
    """A chunk that is read, or has been read.

    Args:
        begin: the position that it is asked for by.
        plan: its plan.
        chunk: what becomes of it.
    """

    begin: int
    plan: ChunkPlan
    chunk: Future[Chunk[T]]


class Prefetcher(Generic[T]):
    """Reads the chunks of a stream, some of them ahead, in threads that end with this object. For one caller at a time.

    A caller asks for a chunk by its position. If it asks again it gets the same chunk, so a caller that was interrupted
    asks again and loses nothing. A forked child continues with its own threads.

    Args:
        reader: reads the steps. ``prefetch`` of its options is the number of chunks ahead; 0 reads in the caller's
            thread.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._depth = reader.options.prefetch
        self._steps_at_once = steps_at_once(reader)
        self._feed = feed_of(reader, at_once=self._steps_at_once)
        is_stored = not reader.is_mapped and reader.records.info.reading_cost == "stored"
        takes_requests = reader.records.takes_requests
        # Requests wait for a network, most of the time.
        self._threads = 2 if is_stored and takes_requests else 1
        # A slow function or request of a later chunk would keep the caller from an earlier one that is ready.
        self._helps = is_stored and not takes_requests
        self._ahead: deque[_Planned[T]] = deque()
        # Where the chunk began that an error ended, and where its steps end, the rest of which is read again.
        self._failed: tuple[int, int] | None = None
        self._background: Background | None = None
        # Threads that call the functions of the user.
        self._callers: Background | None = None
        self._pid = os.getpid()

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._failed = None
        while self._ahead:
            self._ahead.pop().chunk.cancel()

    def reread(self) -> None:
        """Have the steps that an error ended read again when they are next asked for; those behind them stay."""
        if self._ahead:
            failed = self._ahead.popleft()
            self._failed = failed.begin, failed.plan.steps.end

    def chunk(self, position: int) -> Chunk[T] | None:
        """Return the chunk at a position; None at the end."""
        if self._pid != os.getpid():
            # The parent's threads do not exist here, so their chunks would never come.
            self._background = self._callers = self._failed = None
            self._pid = os.getpid()
            self._ahead.clear()
        if self._feed is not None:
            self._feed.reached(position)
        if self._depth == 0:
            plan = plan_chunk(self._reader.options, position, self._steps_at_once)
            return None if plan is None else self._read_here(position, plan)
        if self._failed is not None:
            self._submit_rest(*self._failed, position)
        while self._ahead and self._ahead[0].begin != position:
            self._ahead.popleft().chunk.cancel()
        # The first chunk is one step, so that the first item comes soon.
        if not self._ahead and not self._submit(position, 1):
            return None
        while len(self._ahead) <= self._depth and self._submit(self._ahead[-1].plan.after[-1], self._steps_at_once):
            pass
        if self._helps:
            self._read_unbegun()
        try:
            if not self._ahead[0].chunk.done():
                with Wait("streams", partial(self._describe, position, of_thread())):
                    return self._ahead[0].chunk.result()
            return self._ahead[0].chunk.result()
        except CancelledError:
            # The program ends, or another thread called forget().
            self.forget()
            return Chunk(position)

    def _read_unbegun(self) -> None:
        """Read chunks that the thread has not begun, in the caller's thread, until the first chunk is here."""
        for number, planned in enumerate(self._ahead):
            if self._ahead[0].chunk.done():
                return
            if planned.chunk.cancel():
                chunk: Future[Chunk[T]] = Future()
                chunk.set_result(self._read_here(planned.begin, planned.plan))
                self._ahead[number] = planned._replace(chunk=chunk)

    def _describe(self, position: int, counters: Counters) -> str:
        """Return what a consumer waits for."""
        stage = f", now at {counters.stage}" if counters.stage else ""
        return f"{self._reader.records.info.name}: the item at global position {position}{stage}"

    def _read_here(self, position: int, plan: ChunkPlan) -> Chunk[T]:
        """Read a chunk in the caller's thread."""
        return read_chunk(self._reader, position, plan, self._held_of(plan), self._context())

    def _context(self, closed: Event | None = None) -> ReadContext:
        """Return the context of a chunk; ``closed`` is set when nobody waits for it any longer."""
        if self._reader.threads < 2:
            return ReadContext(closed)
        if self._callers is None:
            self._callers = Background("cachelayer-map", self._reader.threads)
            weakref.finalize(self, self._callers.close)
        return ReadContext(closed, self._callers.submit)

    def _held_of(self, plan: ChunkPlan) -> HeldOf:
        """Have the blocks of a chunk fetched, if its records are not read where they lie."""
        return read_in_place if self._feed is None else self._feed.load(plan).held

    def _planned(self, position: int, plan: ChunkPlan) -> _Planned[T]:
        """Have a chunk read."""
        held = self._held_of(plan)
        if self._background is None:
            self._background = Background("cachelayer-prefetch", self._threads)
            weakref.finalize(self, self._background.close)
        read = partial(read_chunk, self._reader, position, plan, held, self._context(self._background.closed))
        return _Planned(position, plan, self._background.submit(read))

    def _submit(self, position: int, most: int) -> bool:
        """Have the chunk at a position read; return False at the end."""
        plan = plan_chunk(self._reader.options, position, most)
        if plan is None:
            return False
        self._ahead.append(self._planned(position, plan))
        return True

    def _submit_rest(self, begin: int, end: int, position: int) -> None:
        """Have the steps of a chunk from a position on read, before those that come behind the chunk."""
        self._failed = None
        if begin <= position < end:
            most = -(-(end - position) // self._reader.options.steps.global_batch)
            plan = plan_chunk(self._reader.options, position, most)
            if plan is not None and plan.steps.end == end:
                self._ahead.appendleft(self._planned(position, plan))


def steps_at_once(reader: StepReader) -> int:
    """Return the number of steps of a chunk: one, or several that are small."""
    records, share = reader.records, max(1, reader.rows_per_step)
    most = min(records.info.records_per_read, _CHUNK_NBYTES // max(1, records.info.read_nbytes))
    if records.takes_requests:
        most = min(most, _REMOTE_RECORDS)
    if reader.is_mapped:
        most = min(most, _MAPPED_RECORDS)
    if reader.batch_maps or (reader.options.prefetch == 0 and (reader.maps or records.info.reading_cost != "stored")):
        # A function may make any number of bytes of a batch; and a consumer that reads itself waits for each item.
        most = 1
    threads = reader.threads if reader.options.prefetch else 1
    return max(1, -(-max(most, threads) // share))
