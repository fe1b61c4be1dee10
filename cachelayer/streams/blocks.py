"""Choose what a stream reads next, and how many steps at once."""

from __future__ import annotations

from typing import Any

from cachelayer.streams.block_plan import Plan
from cachelayer.streams.pace import BLOCK_NBYTES, Pace
from cachelayer.streams.prefetch import Prefetcher
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.steps import Step

# The most elements that are read at once if functions are applied to them.
_MAPPED_RECORDS = 128


def prefetcher(reader: StepReader) -> Prefetcher[Any]:
    """Return a prefetcher that reads a stream in blocks.

    A block is one batch or one element, or several if they are known, or turn out, to be small and quick.
    """
    options, records = reader.options, reader.records
    share = max(1, reader.share) if options.batched else 1
    together = min(records.records_per_read, _MAPPED_RECORDS if reader.maps else records.records_per_read)
    most = -(-max(1, min(together, BLOCK_NBYTES // max(1, records.record_nbytes))) // share)
    threads = max((function.threads for function in reader.maps), default=1)
    least = 1 if options.prefetch == 0 else -(-max(1, threads) // share)
    known = records.reading_cost == "stored" and not reader.is_mapped
    pace = Pace(most if known else least, least, max(least, most))
    return Prefetcher(lambda position, size: plan(reader, position, size), options.prefetch, pace, helps=known)


def plan(reader: StepReader, position: int, most: int) -> Plan[Any] | None:
    """Return the plan of the next block from a position, of at most ``most`` batches or elements; None at the end."""
    steps = reader.options.steps
    if not reader.options.batched:
        return _plan_of_elements(reader, position, most)
    begin, found, after = position, list[Step](), list[int]()
    while len(found) < most and (step := steps.at(position)) is not None:
        position = steps.after(step)
        found.append(step)
        after.append(position)
    return Plan(begin, after, lambda out, reading: reader.batches(found, out, reading)) if found else None


def _plan_of_elements(reader: StepReader, position: int, most: int) -> Plan[Any] | None:
    steps = reader.options.steps
    block = steps.block(position, most)
    if block is None:
        return None
    stride = steps.shard_count
    after = [*range(block.begin + stride, block.end, stride), steps.after(block)]
    return Plan(position, after, lambda out, reading: reader.block(block, out, reading))
