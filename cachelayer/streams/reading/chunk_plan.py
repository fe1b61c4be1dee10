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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.order.orders import OrderInBlocks, arrange_rows
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.steps import EpochSlice, Step, StepRange
from cachelayer.streams.stream_options import StreamOptions


@dataclass(frozen=True)
class ChunkPlan:
    """The rows that a shard reads of the steps of a chunk."""

    options: StreamOptions
    steps: StepRange

    @cached_property
    def after(self) -> Sequence[int]:
        """The position after each step, where the next one begins."""
        return [*self.steps.begins[1:], self.options.steps.next_start(self.steps.end)]

    @property
    def positions(self) -> Indices:
        """The position of each row."""
        return self._positions_and_splits[0]

    @property
    def splits(self) -> Sequence[int]:
        """The first row of each step, then the number of all rows."""
        return self._positions_and_splits[1]

    @cached_property
    def numbers(self) -> Indices:
        """The record number of each row."""
        numbers = np.empty_like(self.positions)
        for rows, epoch_slice, first_position in self._rows_by_epoch():
            phase = epoch_slice.phase
            places = self.positions[rows] - first_position
            numbers[rows] = self.options.order_of(phase).at(epoch_slice.epoch, places)
            numbers[rows] += phase.first
        return numbers

    def mask(self, number: int) -> NDArray[np.bool_]:
        """Return which rows of a step are records of it, and do not fill it up."""
        size = self.options.steps.size(self.steps[number])
        return self.options.rows_of(size) < size

    def blocks(self) -> tuple[Indices, Indices, Indices]:
        """Return the first record, the end and the last position of each row's block, in an order in blocks."""
        begins, ends, last_positions = np.empty((3, len(self.positions)), np.int64)
        for rows, epoch_slice, first_position in self._rows_by_epoch():
            phase = epoch_slice.phase
            order = cast(OrderInBlocks, self.options.order_of(phase))
            bounds = order.blocks(epoch_slice.epoch, self.positions[rows] - first_position)
            begins[rows] = bounds.begin + phase.first
            ends[rows] = bounds.end + phase.first
            last_positions[rows] = bounds.last + first_position
        return begins, ends, last_positions

    @cached_property
    def _positions_and_splits(self) -> tuple[Indices, Sequence[int]]:
        count = len(self.steps)
        batch = self.options.steps.global_batch
        last = self._positions_of(self.steps[count - 1])
        if count == 1:
            return last, [0, len(last)]
        if self._arranged_offsets(self.steps.begins[0], batch) is None:
            # All steps before the last are whole, and their rows come in the order of their positions.
            rows = self.options.rows_of(batch)
            whole = (np.array(self.steps.begins[:-1])[:, None] + rows).reshape(-1)
            splits = [*(np.arange(count) * len(rows)).tolist(), len(whole) + len(last)]
            return np.concatenate([whole, last]), splits
        positions = [self._positions_of(self.steps[number]) for number in range(count - 1)]
        positions.append(last)
        return np.concatenate(positions), list(accumulate(map(len, positions), initial=0))

    def _positions_of(self, step: Step) -> Indices:
        """Return the position of each row of a step."""
        steps = self.options.steps
        size = steps.size(step)
        rows = self.options.rows_of(size)
        if size < step.end - step.begin:
            # The step reaches over positions that are left out.
            return steps.positions(step)[rows]
        offsets = rows if steps.rule.fill is None else steps.rule.fill(rows, size)
        arranged = self._arranged_offsets(step.begin, size)
        if arranged is None:
            return step.begin + offsets
        # What fills a step up comes after all of its records, wherever the last of them is arranged.
        return step.begin + np.where(rows < size, arranged[offsets], offsets)

    def _arranged_offsets(self, begin: int, size: int) -> Indices | None:
        """Return the offset of each row's position from the begin of its step; None if rows come in order."""
        if not (self.options.arranges and self.options.order.in_blocks) or size == 1:
            return None
        first, *more = self.options.steps.by_epoch(begin, begin + size)
        if more:
            # A step that crosses the end of an epoch is not arranged.
            return None
        order = cast(OrderInBlocks, self.options.order_of(first.phase))
        return arrange_rows(order.sort_keys(first.epoch, np.arange(first.begin, first.end)))

    def _rows_by_epoch(self) -> Iterator[tuple[Any, EpochSlice, int]]:
        """Yield for each epoch: which rows lie in it, its places that the chunk has, and the position of place 0."""
        begin = self.steps.begins[0]
        for epoch_slice in self.options.steps.by_epoch(begin, self.steps.end):
            end = begin + epoch_slice.end - epoch_slice.begin
            if begin == self.steps.begins[0] and end == self.steps.end:
                rows: Any = slice(None)
            else:
                rows = (begin <= self.positions) & (self.positions < end)
            yield rows, epoch_slice, begin - epoch_slice.begin
            begin = end


def plan_chunk(options: StreamOptions, position: int, most: int) -> ChunkPlan | None:
    """Return the plan of at most ``most`` steps from a position on; None after the last step."""
    steps = options.steps.range_at(position, most)
    return None if steps is None else ChunkPlan(options, steps)


def plan_step(options: StreamOptions, step: Step) -> ChunkPlan:
    """Return the plan of a chunk of one step."""
    return ChunkPlan(options, StepRange.of(step))
