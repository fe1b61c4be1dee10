"""Choose what a stream reads next, and how many steps at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

import numpy as np

from cachelayer.streams.ahead.block_announcer import BlockAnnouncer
from cachelayer.streams.ahead.block_feed import MOST_AHEAD, BlockFeed, Feed, FeedSteps
from cachelayer.streams.ahead.block_plan import ReadPlan
from cachelayer.streams.ahead.block_rows import BlockRows
from cachelayer.streams.ahead.prefetch import Prefetcher
from cachelayer.streams.order.exact import BlockSpans
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.steps import Step

# The most bytes of records that are read at once, and the most records if functions are applied to them.
_BLOCK_NBYTES = 4 << 20
_MAPPED_RECORDS = 128
# The largest batches of which more than asked for are read ahead.
_SMALL_NBYTES = 16 << 20
# The elements of a shard whose blocks are looked up at once, ahead of need.
_ELEMENTS_AHEAD = 1024
_NONE = np.empty(0, np.int64)


def blocks_of(reader: StepReader) -> Prefetcher[Any]:
    """Return what reads a stream in blocks, some of them ahead.

    A block is one batch or one element, or several that are small.
    """
    options, records = reader.options, reader.records
    share = max(1, reader.read_rows.share) if options.batched else 1
    nbytes = max(1, records.read_nbytes)
    threads = max([1, *(function.threads for function in reader.maps)])
    is_known = records.reading_cost == "stored" and not reader.is_mapped
    together = max(1, min(records.records_per_read, _BLOCK_NBYTES // nbytes))
    if reader.is_mapped:
        together = min(together, _MAPPED_RECORDS)
    if options.prefetch == 0:
        first, together = 1, together if is_known else 1
    else:
        first, together = threads, max(threads, together)
    # The thread goes on with small batches while the consumer takes some.
    depth = 2 * options.prefetch if is_known and share * nbytes <= _SMALL_NBYTES else options.prefetch
    feed = feed_of(reader)
    return Prefetcher(
        lambda position, size: plan(reader, position, size, feed),
        depth,
        (-(-first // share), -(-together // share)),
        # Reads leave Python's lock to each other; the user's functions are called in one thread.
        2 if is_known else 1,
        None if feed is None else feed.reached,
    )


def feed_of(reader: StepReader, workers: int = 1) -> Feed | None:
    """Return what loads the blocks of a stream ahead of need; None if its order has no blocks.

    Args:
        reader: reads the steps.
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
    )
    holder = reader.records.block_holder(share)
    if holder is not None:
        return BlockFeed(holder, feeding)
    if reader.records.reading_cost == "foreign":
        return None
    return BlockAnnouncer(
        reader.records.announce, feeding, rows.numbers if options.batched else rows.numbers_of_elements
    )


def plan(reader: StepReader, position: int, most: int, feed: Feed | None = None) -> ReadPlan[Any] | None:
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
    return ReadPlan(begin, after, lambda out, reading: reader.batches(found, out, reading), blocks, pending)


def loaded(feed: Feed | None, steps: Sequence[Step]) -> tuple[Future[Any] | None, Mapping[int, BlockRows] | None]:
    """Have the blocks of some steps loaded; return what should end before they are read, and the blocks."""
    if feed is None:
        return None, None
    # What is announced from now on is of later steps.
    pending = feed.pending(steps)
    return pending, feed.load(steps)


def _plan_of_elements(reader: StepReader, position: int, most: int, feed: Feed | None) -> ReadPlan[Any] | None:
    steps = reader.options.steps
    block = steps.block(position, most)
    if block is None:
        return None
    stride = steps.shard_count
    after = [*range(block.begin + stride, block.end, stride), steps.after(block)]
    pending, blocks = loaded(feed, [block])
    return ReadPlan(position, after, lambda out, reading: reader.block(block, out, reading), blocks, pending)
