"""The plan of a chunk: which record each of its rows has, and at which position. Arithmetic only.

A chunk is some consecutive steps that are read at once; a shard reads its own rows of them. With n = 10, G = 4 and the
order ``[3 0 8 7 5 1 6 4 2 9]``, the plan of shard 0 of 2 for a chunk of steps 0 to 2::

    steps        begins 0, 4, 8      end 10
    positions    0 1 | 4 5 | 8
    numbers      3 0 | 5 1 | 2
    splits       0     2     4   5              rows splits[t] to splits[t + 1] belong to step t of the chunk
    sizes        4     4     2                  records of each step, over all shards

Records that are excluded have no row. Rows come in the order of their positions, with two exceptions: rows that fill up
a short step repeat its last position; and in an order in blocks, the rows of a step are arranged by lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from cachelayer.errors import InvalidArgumentError, RecordIndexError
from cachelayer.protocols import Held
from cachelayer.streams.order.orders import OrderInBlocks, arrange_rows
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.schedule import Schedule, StepRange, Stretch

HeldOf = Callable[[slice], Held | None]
"""Given rows of a chunk, returns the records of them that were fetched; None if they are read where they lie."""
_SEARCHED = 1 << 18
"""Positions that are searched for records at once."""


def read_in_place(_: slice) -> None:
    """Say that no records of these rows were fetched."""


@dataclass(frozen=True, eq=False)
class ChunkPlan:
    """The rows that a shard reads of some steps."""

    steps: StepRange
    stretches: Sequence[Stretch]
    """The stretches of the steps: one, or those of a step that goes on behind borders."""
    positions: Indices
    """The position of each row."""
    numbers: Indices
    """The record number of each row; it may be read-only."""
    splits: Sequence[int]
    """The first row of each step, then the number of all rows."""
    sizes: Sequence[int]
    """The number of records of each step, over all shards."""

    def blocks(self) -> tuple[Indices, Indices, Indices]:
        """Return the first record, the end and the last position of each row's block, in an order in blocks."""
        begins, ends, last_positions = np.empty((3, len(self.positions)), np.int64)
        for rows, stretch in _by_stretch(self.stretches, self.positions):
            order = cast(OrderInBlocks, stretch.order)
            bounds = order.blocks(stretch.epoch, self.positions[rows] - stretch.origin)
            begins[rows] = bounds.begin + stretch.first
            ends[rows] = bounds.end + stretch.first
            last_positions[rows] = bounds.last + stretch.origin
        return begins, ends, last_positions


def plan_of(schedule: Schedule, steps: StepRange) -> ChunkPlan:
    """Return the plan of some steps."""
    if schedule.excluded is not None:
        return _plan_without(schedule.excluded, schedule, steps)
    stretches = [*schedule.between(steps.begin, steps.end)]
    batch = schedule.global_batch
    whole, rest = divmod(sum(stretch.end - stretch.begin for stretch in stretches), batch)
    sizes = [batch] * whole + [rest] * (rest > 0)
    is_filled = schedule.pads and rest > 0
    is_one_stretch = len(stretches) == 1
    is_arranged = is_one_stretch and _arranges(schedule)
    if is_one_stretch and not is_arranged and not is_filled and schedule.shard_count == 1 and schedule.rows is None:
        # All rows, in order.
        splits: Sequence[int] = range(0, whole * batch + 1, batch)
        splits = [*splits, whole * batch + rest] if rest else splits
        positions = np.arange(steps.begin, steps.end)
        return ChunkPlan(steps, stretches, positions, stretches[0].all_numbers(), splits, sizes)
    parts = [_records_of_rows(schedule, stretches, 0, whole, batch)] if whole else []
    if rest:
        parts.append(_records_of_rows(schedule, stretches, whole * batch, 1, rest))
    records = np.concatenate([part.reshape(-1) for part in parts])
    widths = [0]
    for part in parts:
        widths += [part.shape[1]] * len(part)
    if is_one_stretch:
        positions = records + steps.begin
    else:
        positions = np.concatenate([np.arange(stretch.begin, stretch.end) for stretch in stretches])[records]
    numbers = np.empty_like(positions)
    for rows, stretch in _by_stretch(stretches, positions):
        numbers[rows] = stretch.numbers(positions[rows])
    return ChunkPlan(steps, stretches, positions, numbers, [*accumulate(widths)], sizes)


def _plan_without(excluded: Indices, schedule: Schedule, steps: StepRange) -> ChunkPlan:
    """Return the plan of some steps without excluded records: shards share what is left of each as a short step."""
    every = replace(schedule, excluded=None, shard_index=0, shard_count=1, rows=None, remainder="keep")
    plan = plan_of(every, steps)
    kept = np.flatnonzero(~np.isin(plan.numbers, excluded))
    splits = kept.searchsorted(plan.splits).tolist()
    positions = [plan.positions[:0]]
    numbers = [plan.numbers[:0]]
    for step, (begin, end) in enumerate(pairwise(splits)):
        rows = schedule.rows_of(end - begin)
        of_step = plan.positions[kept[begin:end]], plan.numbers[kept[begin:end]]
        if schedule.pads:
            # Rows that fill up a step repeat its last record; of a step of which nothing is left, the one that follows.
            rows = np.minimum(rows, max(end - begin, 1) - 1)
            of_step = of_step if begin < end else _next_kept(excluded, every, plan.steps[step].begin)
        positions.append(of_step[0][rows])
        numbers.append(of_step[1][rows])
    return ChunkPlan(
        steps,
        plan.stretches,
        np.concatenate(positions),
        np.concatenate(numbers),
        [*accumulate(map(len, positions))],
        np.diff(splits).tolist(),
    )


def _next_kept(excluded: Indices, schedule: Schedule, position: int) -> tuple[Indices, Indices]:
    """Return the next position whose record is not excluded, and the number of this record, each in an array."""
    for stretch in schedule.stretches(position):
        for begin in range(stretch.begin, stretch.end, _SEARCHED):
            numbers = stretch._replace(begin=begin, end=min(stretch.end, begin + _SEARCHED)).all_numbers()
            kept = np.flatnonzero(~np.isin(numbers, excluded))[:1]
            if len(kept):
                return kept + begin, numbers[kept]
    raise AssertionError("stretches have no end")


def _arranges(schedule: Schedule) -> bool:
    return schedule.arranges and schedule.order.in_blocks and schedule.global_batch > 1


def _records_of_rows(schedule: Schedule, stretches: Sequence[Stretch], before: int, count: int, size: int) -> Indices:
    """Return which record each row of some steps of one size has, counted from the begin of the chunk.

    The result has shape ``[count, rows]``. There are ``before`` records before these steps.
    """
    rows = schedule.rows_of(size)
    # Rows that fill up a step repeat its last record.
    records = np.minimum(rows, size - 1) if schedule.pads else rows
    if len(stretches) == 1 and _arranges(schedule):
        [stretch] = stretches
        places = np.arange(before, before + count * size) + (stretch.begin - stretch.origin)
        keys = cast(OrderInBlocks, stretch.order).sort_keys(stretch.epoch, places)
        arranged = arrange_rows(keys.reshape(count, size))
        # They come after all of its records, wherever the last of these is arranged.
        records = np.where(rows < size, arranged[:, records], records)
    return np.arange(before, before + count * size, size)[:, None] + records


def _by_stretch(stretches: Sequence[Stretch], positions: Indices) -> Iterator[tuple[Any, Stretch]]:
    """Yield for each stretch which of some positions lie in it."""
    for stretch in stretches:
        lies_within: Any = slice(None)
        if len(stretches) > 1:
            lies_within = (stretch.begin <= positions) & (positions < stretch.end)
        yield lies_within, stretch


def plan_chunk(schedule: Schedule, position: int, most: int) -> ChunkPlan | None:
    """Return the plan of at most ``most`` steps from a position on; None after the last step."""
    steps = schedule.at(position, most)
    return None if steps is None else plan_of(schedule, steps)


def plan_of_first_row(schedule: Schedule, step: StepRange) -> ChunkPlan:
    """Return the plan of the first row of a step, which may be another shard's."""
    return plan_of(replace(schedule, rows=lambda _: np.arange(1), remainder="pad"), step)


def ranges_with(schedule: Schedule, records: Indices) -> list[tuple[int, int]]:
    """Return the begins and ends of the steps that have some of these records, from ``start`` on.

    Without batches, only the positions of the records are returned, and the other shards keep theirs.
    """
    if schedule.last_position is None:
        raise InvalidArgumentError("without(records=...) of a stream that has no end: pass num_epochs=, or steps=")
    wrong = records[(records < 0) | (records >= schedule.order.records)]
    if len(wrong):
        raise RecordIndexError(f"record {wrong[0]}: there are {schedule.order.records} records")
    walked = replace(schedule, shard_index=0, shard_count=1, arranges=False)
    if not schedule.batched:
        # Positions one by one, also those that a last step takes behind the end.
        walked = replace(walked, global_batch=1, remainder="keep", num_epochs=None, left_out=())
    ranges: list[tuple[int, int]] = []
    position = schedule.start
    stop = schedule.last_position
    while position < stop:
        plan = plan_chunk(walked, position, -(-min(_SEARCHED, stop - position) // walked.global_batch))
        if plan is None:
            break
        rows = np.flatnonzero(np.isin(plan.numbers, records))
        numbers_of_steps = np.unique(np.searchsorted(plan.splits, rows, side="right") - 1).tolist()
        chosen = [plan.steps[number] for number in numbers_of_steps]
        ranges += [(step.begin, step.end) for step in chosen]
        position = plan.steps.following
        if position >= stop and not schedule.batched and schedule.crosses:
            # The last step takes other positions in place of what is left out, from further on: they may have some of
            # these records too.
            rest = schedule.without(ranges)
            stop = stop if rest.at(schedule.start) is None else cast(int, rest.last_position)
    return ranges
