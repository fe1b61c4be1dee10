"""The plan of a chunk: which record each of its rows has, and at which position. Arithmetic only.

A chunk is some consecutive steps that are read at once; a shard reads its own rows of them. With n = 10, G = 4 and the
order ``[3 0 8 7 5 1 6 4 2 9]``, the plan of shard 0 of 2 for a chunk of steps 0 to 2::

    steps        begins 0, 4, 8      end 10
    positions    0 1 | 4 5 | 8
    numbers      3 0 | 5 1 | 2
    splits       0     2     4   5              rows splits[t] to splits[t + 1] belong to step t of the chunk
    after              4     8   10             the position after each step, where the next one begins

Rows come in the order of their positions, with two exceptions: rows that fill up a short step repeat positions of it;
and in an order in blocks, the rows of a step are arranged by lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.protocols import Held
from cachelayer.streams.order.orders import OrderInBlocks, arrange_rows
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.steps import EpochSlice, Step, StepRange
from cachelayer.streams.stream_options import StreamOptions

HeldOf = Callable[[slice], Held | None]
"""Given rows of a chunk, returns the records of them that were fetched; None if they are read where they lie."""


def read_in_place(_: slice) -> None:
    """Say that no records of these rows were fetched."""


class ChunkRows(NamedTuple):
    """The rows that a shard reads of a chunk."""

    positions: Indices
    """The position of each row."""
    numbers: Indices
    """The record number of each row; it may be read-only."""
    splits: Sequence[int]
    """The first row of each step, then the number of all rows."""


@dataclass(frozen=True)
class ChunkPlan:
    """The plan of a chunk. Its steps are known at once, its rows when they are first asked for."""

    options: StreamOptions
    steps: StepRange
    after: Sequence[int]
    """The position after each step, where the next one begins."""

    @property
    def rows(self) -> ChunkRows:
        """The rows. Two threads that ask at once may each compute them, and get the same."""
        rows: ChunkRows | None = self.__dict__.get("_rows")
        if rows is None:
            rows = self.__dict__["_rows"] = _rows_of(self.options, self.steps)
        return rows

    @property
    def positions(self) -> Indices:
        """The position of each row."""
        return self.rows.positions

    @property
    def numbers(self) -> Indices:
        """The record number of each row."""
        return self.rows.numbers

    @property
    def splits(self) -> Sequence[int]:
        """The first row of each step, then the number of all rows."""
        return self.rows.splits

    def mask(self, number: int) -> NDArray[np.bool_]:
        """Return which rows of a step are records of it, and do not fill it up."""
        size = self.options.steps.size(self.steps[number])
        return self.options.rows_of(size) < size

    def blocks(self) -> tuple[Indices, Indices, Indices]:
        """Return the first record, the end and the last position of each row's block, in an order in blocks."""
        begins, ends, last_positions = np.empty((3, len(self.positions)), np.int64)
        for rows, epoch_slice, first_position in _rows_by_epoch(self.options, self.steps, self.positions):
            phase = epoch_slice.phase
            order = cast(OrderInBlocks, self.options.order_of(phase))
            bounds = order.blocks(epoch_slice.epoch, self.positions[rows] - first_position)
            begins[rows] = bounds.begin + phase.first
            ends[rows] = bounds.end + phase.first
            last_positions[rows] = bounds.last + first_position
        return begins, ends, last_positions


def _rows_of(options: StreamOptions, steps: StepRange) -> ChunkRows:
    first, *more = options.steps.by_epoch(steps.begins[0], steps.end)
    is_arranged = options.arranges and options.order.in_blocks
    is_in_order = options.rows is None and options.steps.shard_count == 1 and not is_arranged
    count = steps.end - steps.begins[0]
    if is_in_order and not more and count % options.steps.global_batch == 0 and not options.steps.left_out:
        # All rows of whole steps: positions, places and so the numbers of an epoch follow one another.
        numbers = options.order_of(first.phase).between(first.epoch, first.begin, first.end)
        positions = np.arange(steps.begins[0], steps.end)
        splits: Sequence[int] = range(0, count + 1, options.steps.global_batch)
        return ChunkRows(positions, numbers + first.phase.first if first.phase.first else numbers, splits)
    positions, splits = _positions_and_splits(options, steps)
    numbers = np.empty_like(positions)
    for rows, epoch_slice, first_position in _rows_by_epoch(options, steps, positions):
        phase = epoch_slice.phase
        numbers[rows] = options.order_of(phase).at(epoch_slice.epoch, positions[rows] - first_position)
        numbers[rows] += phase.first
    return ChunkRows(positions, numbers, splits)


def _positions_and_splits(options: StreamOptions, steps: StepRange) -> tuple[Indices, Sequence[int]]:
    count = len(steps)
    batch = options.steps.global_batch
    last = _positions_of(options, steps[count - 1])
    if count == 1:
        return last, [0, len(last)]
    if _arranged_offsets(options, steps.begins[0], batch) is None:
        # All steps before the last are whole, and their rows come in the order of their positions.
        rows = options.rows_of(batch)
        whole = (np.array(steps.begins[:-1])[:, None] + rows).reshape(-1)
        splits = [*(np.arange(count) * len(rows)).tolist(), len(whole) + len(last)]
        return np.concatenate([whole, last]), splits
    positions = [_positions_of(options, steps[number]) for number in range(count - 1)]
    positions.append(last)
    return np.concatenate(positions), list(accumulate(map(len, positions), initial=0))


def _positions_of(options: StreamOptions, step: Step) -> Indices:
    """Return the position of each row of a step."""
    steps = options.steps
    size = steps.size(step)
    rows = options.rows_of(size)
    if size < step.end - step.begin:
        # The step reaches over positions that are left out.
        return steps.positions(step)[rows]
    offsets = rows if steps.rule.fill is None else steps.rule.fill(rows, size)
    arranged = _arranged_offsets(options, step.begin, size)
    if arranged is None:
        return step.begin + offsets
    # What fills a step up comes after all of its records, wherever the last of them is arranged.
    return step.begin + np.where(rows < size, arranged[offsets], offsets)


def _arranged_offsets(options: StreamOptions, begin: int, size: int) -> Indices | None:
    """Return the offset of each row's position from the begin of its step; None if rows come in order."""
    if not (options.arranges and options.order.in_blocks) or size == 1:
        return None
    first, *more = options.steps.by_epoch(begin, begin + size)
    if more:
        # A step that crosses the end of an epoch is not arranged.
        return None
    order = cast(OrderInBlocks, options.order_of(first.phase))
    return arrange_rows(order.sort_keys(first.epoch, np.arange(first.begin, first.end)))


def _rows_by_epoch(
    options: StreamOptions, steps: StepRange, positions: Indices
) -> Iterator[tuple[Any, EpochSlice, int]]:
    """Yield for each epoch: which rows lie in it, its places that the chunk has, and the position of place 0."""
    begin = steps.begins[0]
    for epoch_slice in options.steps.by_epoch(begin, steps.end):
        end = begin + epoch_slice.end - epoch_slice.begin
        if begin == steps.begins[0] and end == steps.end:
            rows: Any = slice(None)
        else:
            rows = (begin <= positions) & (positions < end)
        yield rows, epoch_slice, begin - epoch_slice.begin
        begin = end


def plan_chunk(options: StreamOptions, position: int, most: int) -> ChunkPlan | None:
    """Return the plan of at most ``most`` steps from a position on; None after the last step."""
    steps = options.steps.range_at(position, most)
    return None if steps is None else _plan_of(options, steps)


def plan_step(options: StreamOptions, step: Step) -> ChunkPlan:
    """Return the plan of a chunk of one step."""
    return _plan_of(options, StepRange.of(step))


def _plan_of(options: StreamOptions, steps: StepRange) -> ChunkPlan:
    return ChunkPlan(options, steps, [*steps.begins[1:], options.steps.next_start(steps.end)])
