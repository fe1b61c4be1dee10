"""Fetch the blocks that the next steps of an iterator need, and hold each block until its last record is handed out.

The position of the last record that is read of a block identifies its request. A block that a later epoch needs again
has another request, with another last position::

    position       reached            horizon
    ---------------|------------------|--------------------->
    block a     ===|====|              held: its last record comes behind what was handed out
    block b        |    |==========|   ahead: fetched, or on the way
    block c  ======|                   dropped when ``reached`` passes its last position
    block d        |                  |   =====     fetched when there is room

Held blocks are those that the windows of this shard need. Their bytes are bounded by what the windows ever held at a
time; blocks ahead may have :data:`AHEAD_NBYTES` more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from cachelayer.protocols import DatasetRows, Held, StoredSource, takes_requests
from cachelayer.streams.ahead.background import Background, Task
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.reading.chunk_plan import HeldOf, plan_of
from cachelayer.streams.reading.failures import Failure
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Schedule, StepRange
from cachelayer.support.host import memory_nbytes
from cachelayer.support.locks import ProcessLock
from cachelayer.support.user_warnings import warn

Fetched = Mapping[StoredSource, Any]
"""What came for a block: for each source, the records of it that the elements are made of."""

AHEAD_NBYTES = 128 << 20
"""Bytes of blocks that are fetched ahead, besides the most bytes that the windows ever held."""
REQUESTS = 48
"""Blocks that are fetched at once."""
MOST_AHEAD = 1 << 17
"""The most records of the shard by which the horizon is ahead."""
_ELEMENTS_AT_ONCE = 1024
"""Without batches, the elements of the shard whose blocks are looked up at once, ahead of need."""


# With slots, because steps look at hundreds of requests that are no longer in the cache of the processor.
@dataclass(eq=False, slots=True)
class BlockRequest:
    """A block that steps need: on its way, or here."""

    outcome: Task[Fetched]
    """Fetches the block, perhaps together with other blocks."""
    nbytes: int
    """Approximate bytes of the block."""
    first: int
    """The position of the first step that needs it."""


class _Needs(NamedTuple):
    """The blocks that some steps need."""

    last_positions: list[int]
    """The position of the last record that is read of each block, ascending."""
    begins: list[int]
    """The first record of each block."""
    ends: list[int]
    """The record after the last one of each block."""
    block_of_row: Indices
    """For each row of the steps, the index of its block."""


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The rows of some steps, and the blocks in which their records lie."""

    requests: Sequence[BlockRequest]
    """The blocks; every block has some row."""
    block_of_row: Indices
    """For each row, the index of its block."""

    def held(self, rows: slice) -> Held:
        """Wait for the blocks of some of the rows, and return what came."""
        requests = self.requests
        if rows != slice(None):
            requests = [requests[number] for number in np.unique(self.block_of_row[rows]).tolist()]
        held: dict[StoredSource, list[Any]] = {}
        # Records that are blocks of their own came together.
        for outcome in {id(request.outcome): request.outcome for request in requests}.values():
            for source, block in outcome.result().items():
                held.setdefault(source, []).append(block)
        return held


def fetch(records: DatasetRows[Any], numbers: Indices, readers: int) -> Fetched:
    """Fetch the stored records of some elements, which ``readers`` processes prepare that read a small epoch whole."""
    needed = records.needed(numbers)
    if readers:
        for source, some in needed.items():
            source.prepare(some, some[:0], readers)
    return {source: source.fetch_block(some) for source, some in needed.items()}


def _find_needs(schedule: Schedule, steps: StepRange) -> _Needs:
    begin_of, end_of, last_of = plan_of(schedule, steps).blocks()
    last_positions, firsts, block_of_row = np.unique(last_of, return_index=True, return_inverse=True)
    return _Needs(last_positions.tolist(), begin_of[firsts].tolist(), end_of[firsts].tolist(), block_of_row)


class BlockFeed:
    """Fetches and holds blocks, in threads that end with this object. For one thread at a time.

    So many ``workers`` take turns at the steps; :meth:`load` is called with ``at_once`` of them.
    """

    def __init__(self, reader: StepReader, workers: int = 1, at_once: int = 1) -> None:
        self._records = reader.records
        self._schedule = reader.reading
        self._record_nbytes = max(1, reader.records.info.record_nbytes)
        self._steps_at_once = at_once if reader.schedule.batched else _ELEMENTS_AT_ONCE
        self._workers = workers
        is_whole = reader.rows_per_step == reader.schedule.global_batch
        # All of so small an epoch is on the way at once, and whole shards take fewer requests.
        self._readers = workers if is_whole and len(reader.records) * self._record_nbytes <= AHEAD_NBYTES else 0
        self._most_ahead = 0
        """The most positions by which the horizon is ahead: at most an epoch, so that few blocks are fetched twice."""
        if reader.schedule.prefetch:
            records_of_shard = MOST_AHEAD * reader.schedule.global_batch // max(1, reader.rows_per_step)
            self._most_ahead = min(len(reader.records), records_of_shard)
        self._worker: Background | None = None
        # Several threads may share an iterator.
        self._lock = ProcessLock()
        self._pid = os.getpid()
        self._has_warned = False
        self._begin_at(0)

    def _begin_at(self, position: int) -> None:
        self._requests: dict[int, BlockRequest] = {}
        """The blocks that are here or on the way, by last position, in the order in which they were asked for."""
        self._last_positions: list[int] = []
        """A heap of last positions; the requests of some of them may be gone."""
        self._needs: dict[StepRange, _Needs] = {}
        """The needs of steps between the caller and the horizon."""
        self._nbytes = 0
        """The bytes of all requests."""
        self._most_held = 0
        """The most bytes that the windows ever held at a time."""
        self._reached = position
        """Up to here everything was handed out."""
        self._horizon = position
        """Up to here the blocks were asked for."""

    def reached(self, position: int) -> None:
        """Drop the blocks of which no record from a position on is needed: the caller has all records up to there."""
        with self._lock.of_process():
            if self._pid != os.getpid():
                # The threads of the parent do not exist here.
                self._worker = None
                self._pid = os.getpid()
                self._begin_at(position)
            if not self._reached <= position <= self._horizon:
                for last in list(self._requests):
                    self._drop(last)
                self._begin_at(position)
            self._reached = position
            while self._last_positions and self._last_positions[0] < position:
                self._drop(heappop(self._last_positions))
            for steps in list(takewhile(lambda steps: steps.end <= position, self._needs)):
                del self._needs[steps]
            # Blocks are asked for in the order in which they are needed: the last ones are ahead.
            ahead = takewhile(lambda request: request.first >= position, reversed(self._requests.values()))
            self._most_held = max(self._most_held, self._nbytes - sum(request.nbytes for request in ahead))
            if self._most_held > memory_nbytes() // 2 and not self._has_warned:
                self._has_warned = True
                warn(
                    f"the windows of this shard hold {self._most_held / 2**30:.3g} GiB of blocks, more than half of "
                    "the memory here: pass shuffle=cachelayer.Blocks(window=...) with fewer blocks, or use more shards"
                )

    def _drop(self, last: int) -> None:
        request = self._requests.pop(last, None)
        if request is not None:
            self._nbytes -= request.nbytes
            request.outcome.drop()

    def load(self, steps: StepRange) -> BlockRows:
        """Return the blocks of the rows of some steps; fetch those not on the way, and those that come next."""
        with self._lock.of_process():
            needs = self._needs.pop(steps, None) or _find_needs(self._schedule, steps)
            for last in needs.last_positions:
                request = self._requests.get(last)
                if request is not None and request.outcome.error is not None:
                    self._drop(last)
            self._fetch(needs, steps.begin)
            requests = [self._requests[last] for last in needs.last_positions]
            self._horizon = max(self._horizon, self._after(steps))
            self._fetch_ahead()
            return BlockRows(requests, needs.block_of_row)

    def _after(self, steps: StepRange) -> int:
        """Return where this worker's next steps begin."""
        return self._schedule.next_of_worker(steps, self._workers) if self._workers > 1 else steps.following

    def _fetch_ahead(self) -> None:
        """Fetch the blocks that come next, as far as there is room."""
        end = self._reached + self._most_ahead
        while self._horizon < end and self._nbytes < self._most_held + AHEAD_NBYTES:
            steps = self._schedule.at(self._horizon, self._steps_at_once)
            if steps is None:
                return
            needs = self._needs[steps] = _find_needs(self._schedule, steps)
            self._fetch(needs, steps.begin)
            self._horizon = self._after(steps)

    def _fetch(self, needs: _Needs, first: int) -> None:
        """Fetch the blocks that are neither here nor on the way, for steps from ``first`` on; a tail's together."""
        single: list[tuple[int, int]] = []
        for last, begin, end in zip(needs.last_positions, needs.begins, needs.ends, strict=True):
            if last in self._requests:
                continue
            if end - begin == 1:
                single.append((last, begin))
            else:
                self._request([last], np.arange(begin, end), end - begin, first)
        if single:
            numbers = np.array([number for _, number in single], np.int64)
            self._request([last for last, _ in single], numbers, 1, first)

    def _request(self, last_positions: Sequence[int], numbers: Indices, count: int, first: int) -> None:
        """Fetch a block, or together several of one record, given their last positions, for steps from ``first`` on."""
        if self._worker is None:
            self._worker = Background("cachelayer-blocks", REQUESTS, self)
        outcome = self._worker.submit(partial(fetch, self._records, numbers, self._readers))
        for last in last_positions:
            heappush(self._last_positions, last)
            self._requests[last] = request = BlockRequest(outcome, count * self._record_nbytes, first)
            self._nbytes += request.nbytes


def feed_of(reader: StepReader, workers: int = 1, at_once: int = 1) -> BlockFeed | None:
    """Return the feed of a stream; None if its order has no blocks, or its records are read where they lie."""
    schedule = reader.schedule
    if schedule.records == 0 or not schedule.order.in_blocks or not takes_requests(reader.records):
        return None
    return BlockFeed(reader, workers, at_once)


class WorkerSteps:
    """Reads the items of a stream, step by step, for a worker that takes turns with others at the steps.

    In an order in blocks, the blocks of this worker's next steps are fetched ahead, and held until no later step needs
    them. The steps may be read in any order, but after a step that is not this worker's next one all blocks are fetched
    anew.

    This worker's next step comes ``workers`` steps later.
    """

    def __init__(self, reader: StepReader, workers: int) -> None:
        self._reader = reader
        self._workers = workers
        self._feed = feed_of(reader, workers)

    def item(self, step: StepRange) -> Any:
        return self._reader.item(step, self._held_of(step))

    def item_and_failures(self, step: StepRange) -> tuple[Any, tuple[Failure, ...]]:
        """Return the item of a step, and the failed elements that stand-ins replaced in it, without a warning."""
        return self._reader.item_and_failures(step, self._held_of(step))

    def _held_of(self, step: StepRange) -> HeldOf:
        if self._feed is None:
            return self._reader.preparing(step, self._workers)
        self._feed.reached(step.begin)
        return self._feed.load(step).held


def warn_of_workers(reader: StepReader, workers: int, fix: str) -> None:
    """Warn if several workers, which take turns at the steps, are going to fetch the same blocks."""
    if workers > 1 and feed_of(reader) is not None:
        warn(
            f"worker processes take turns at the steps, so {workers} of them fetch and hold each block: "
            f"{workers} times the requests, bytes and memory of one; {fix}"
        )
