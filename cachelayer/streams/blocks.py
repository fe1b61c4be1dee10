"""Choose what a stream reads next, and how many steps at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.protocols import BlockHolder, BlocksAhead, HeldBlock, RecordReads
from cachelayer.streams.block_announcer import BlockAnnouncer
from cachelayer.streams.block_feed import MOST_AHEAD, BlockFeed, Feed, FeedSteps
from cachelayer.streams.block_plan import Plan
from cachelayer.streams.block_rows import BlockRows
from cachelayer.streams.interruptible_future import Outcome
from cachelayer.streams.one_by_one import LARGE_NBYTES, OneByOne, Unread
from cachelayer.streams.order import BlockSpans
from cachelayer.streams.pace import BLOCK_NBYTES, Pace
from cachelayer.streams.prefetch import Prefetcher
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.steps import Step
from cachelayer.streams.stream_meter import Meter
from cachelayer.tally import counted

# The most elements that are read at once if functions are applied to them.
_MAPPED_RECORDS = 128
# The elements of a shard whose blocks are looked up at once, ahead of need.
_ELEMENTS_AHEAD = 1024
# The largest batches of which more than asked for are read ahead.
_SMALL_NBYTES = 16 << 20
# Elements that are looked up at once if each is read when it is needed.
_UNREAD = 256
_NONE = np.empty(0, np.int64)


def blocks_of(reader: StepReader, meter: Meter) -> Prefetcher[Any] | OneByOne[Any]:
    """Return what reads a stream in blocks, some of them ahead.

    A block is one batch or one element, or several if they are known, or turn out, to be small and quick.
    """
    options, records = reader.options, reader.records
    share = max(1, reader.read_rows.share) if options.batched else 1
    nbytes = max(1, records.read_nbytes)
    together = min(records.records_per_read, _MAPPED_RECORDS if reader.maps else records.records_per_read)
    most = -(-max(1, min(together, BLOCK_NBYTES // nbytes)) // share)
    threads = max((function.threads for function in reader.maps), default=1)
    least = 1 if options.prefetch == 0 else -(-max(1, threads) // share)
    known = records.reading_cost == "stored" and not reader.is_mapped
    pace = Pace(most if known else least, least, max(least, most))
    feed = feed_of(reader, meter)
    reached = None if feed is None else feed.reached
    # Two threads read them. With more blocks under way, neither waits for the other.
    is_small = share * nbytes <= _SMALL_NBYTES
    depth = 2 * options.prefetch if known and is_small else options.prefetch
    found: Prefetcher[Any] = Prefetcher(
        lambda position, size: plan(reader, position, size, feed),
        depth,
        pace,
        reached,
        helps=known,
        meter=meter,
    )
    if not known or options.batched or nbytes < LARGE_NBYTES or isinstance(feed, BlockFeed):
        return found
    return OneByOne(found, lambda position: _unread(reader, position, feed), reached, meter)


def feed_of(reader: StepReader, meter: Meter, workers: int = 1) -> Feed | None:
    """Return what loads the blocks of a stream ahead of need; None if its order has no blocks.

    Args:
        reader: reads the steps.
        meter: counts the requests.
        workers: the number of workers that take turns at the steps; the blocks are those of one of them.
    """
    options, steps = reader.options, reader.options.steps
    if steps.records == 0 or options.order.blocks_at(0, _NONE) is None:
        return None
    rows = reader.read_rows
    share = max(1, rows.share) / steps.global_batch
    spans = cast(Callable[[Step], BlockSpans], rows.blocks if options.batched else rows.blocks_of_elements)
    feeding = FeedSteps(
        at=steps.at if options.batched else lambda position: steps.block(position, _ELEMENTS_AHEAD),
        after=steps.after if workers == 1 else lambda step: steps.turn_after(step, workers),
        spans=spans,
        records=steps.records,
        record_nbytes=max(1, reader.records.record_nbytes),
        share=share,
        # No record comes twice, as far as possible.
        most_ahead=min(len(reader.records), int(MOST_AHEAD / share)) if options.prefetch else 0,
        expected=lambda step: rows.expected_blocks(step, share),
    )
    holder = reader.records.block_holder(share)
    if holder is not None:
        return BlockFeed(_Counted(holder, meter), feeding)
    if reader.records.reading_cost == "foreign":
        return None
    return BlockAnnouncer(
        reader.records.announce, feeding, rows.numbers if options.batched else rows.numbers_of_elements
    )


@dataclass(frozen=True)
class _Counted:
    """A holder of blocks whose requests are counted, in whichever thread they are made."""

    holder: BlockHolder[Any]
    meter: Meter

    def fetch(self, numbers: NDArray[np.int64]) -> HeldBlock:
        return counted(self.meter.blocks, self.holder.fetch, numbers)

    def expecting(self, blocks: BlocksAhead) -> _Counted:
        return _Counted(self.holder.expecting(blocks), self.meter)

    def reads(self, blocks: Sequence[Any], owner: NDArray[np.int64], rows: NDArray[np.int64]) -> RecordReads[Any]:
        return self.holder.reads(blocks, owner, rows)


def plan(reader: StepReader, position: int, most: int, feed: Feed | None = None) -> Plan[Any] | None:
    """Return the plan of the next block from a position, of at most ``most`` batches or elements; None at the end."""
    steps = reader.options.steps
    if not reader.options.batched:
        return _plan_of_elements(reader, position, most, feed)
    begin, found, after = position, list[Step](), list[int]()
    while len(found) < most and (step := steps.at(position)) is not None:
        position = steps.after(step)
        found.append(step)
        after.append(position)
    if not found:
        return None
    pending, blocks = loaded(feed, found)
    return Plan(begin, after, lambda out, reading: reader.batches(found, out, reading), blocks, pending)


def loaded(feed: Feed | None, steps: Sequence[Step]) -> tuple[Outcome[Any] | None, Mapping[int, BlockRows] | None]:
    """Have the blocks of some steps loaded; return what should end before they are read, and the blocks."""
    if feed is None:
        return None, None
    # What is announced from now on is of later steps.
    pending = feed.pending(steps)
    return pending, feed.load(steps)


def _unread(reader: StepReader, position: int, feed: Feed | None) -> Mapping[int, tuple[Unread[Any], int]]:
    """Return the next elements, and the position after each, by their positions; none if to read ahead is quicker."""
    steps = reader.options.steps
    block = steps.block(position, _UNREAD)
    if block is None:
        return {}
    found = reader.unread(block)
    if found and feed is not None:
        feed.load([block])
    begins = [position, *range(block.begin + steps.shard_count, block.end, steps.shard_count)]
    return dict(zip(begins, zip(found, [*begins[1:], steps.after(block)], strict=False), strict=False))


def _plan_of_elements(reader: StepReader, position: int, most: int, feed: Feed | None) -> Plan[Any] | None:
    steps = reader.options.steps
    block = steps.block(position, most)
    if block is None:
        return None
    stride = steps.shard_count
    after = [*range(block.begin + stride, block.end, stride), steps.after(block)]
    pending, blocks = loaded(feed, [block])
    return Plan(position, after, lambda out, reading: reader.block(block, out, reading), blocks, pending)
