"""The plan of a chunk, which is some steps that are read at once: the records and positions of the rows of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.order.orders import OrderInBlocks, arrange_rows
from cachelayer.streams.steps import Indices, Places, Step, StepRange
from cachelayer.streams.stream_options import StreamOptions


@dataclass(frozen=True)
class ChunkPlan:
    """The rows that a shard reads of some steps in a row, by arithmetic alone.

    Args:
        options: which records to read, and in which order.
        steps: the steps.
    """

    options: StreamOptions
    steps: StepRange

    @cached_property
    def after(self) -> Sequence[int]:
        """The position after each step, where the next one begins."""
        return [*self.steps.begins[1:], self.options.steps.next_start(self.steps.end)]

    @property
    def positions(self) -> Indices:
        """The global position of each row; rows that fill up a step repeat positions of it."""
        return self._rows[0]

    @property
    def splits(self) -> Sequence[int]:
        """Where the rows of each step begin, and the number of all."""
        return self._rows[1]

    @cached_property
    def numbers(self) -> Indices:
        """The record number of each row."""
        numbers = np.empty_like(self.positions)
        for inside, places, shift in self._by_epoch():
            order = self.options.order_of(places.segment)
            numbers[inside] = order.at(places.epoch, self.positions[inside] - shift)
            numbers[inside] += places.segment.first
        return numbers

    def mask(self, number: int) -> NDArray[np.bool_]:
        """Return which rows of a step are records of it, and do not fill it up."""
        size = self.options.steps.size(self.steps[number])
        return self.options.rows_of(size) < size

    def blocks(self) -> tuple[Indices, Indices, Indices]:
        """Return the begin, the end and the last position of each row's block, in an order in blocks."""
        begins, ends, lasts = np.empty((3, len(self.positions)), np.int64)
        for inside, places, shift in self._by_epoch():
            order, first = self.options.order_of(places.segment), places.segment.first
            begin, end, last = cast(OrderInBlocks, order).blocks(places.epoch, self.positions[inside] - shift)
            begins[inside], ends[inside], lasts[inside] = begin + first, end + first, last + shift
        return begins, ends, lasts

    @cached_property
    def _rows(self) -> tuple[Indices, Sequence[int]]:
        """The positions of the rows, and where the rows of each step begin."""
        count, batch = len(self.steps), self.options.steps.global_batch
        last = self._positions(self.steps[count - 1])
        if count == 1:
            return last, [0, len(last)]
        if self._arranged(self.steps.begins[0], batch) is None:
            # All steps before the last are whole, and their rows come in the order of their positions.
            rows = self.options.rows_of(batch)
            whole = (np.array(self.steps.begins[:-1])[:, None] + rows).reshape(-1)
            return np.concatenate([whole, last]), [*(np.arange(count) * len(rows)).tolist(), len(whole) + len(last)]
        parts = [self._positions(self.steps[number]) for number in range(count - 1)]
        parts.append(last)
        return np.concatenate(parts), list(accumulate(map(len, parts), initial=0))

    def _positions(self, step: Step) -> Indices:
        """Return the positions of the rows of a step."""
        steps = self.options.steps
        size = steps.size(step)
        rows = self.options.rows_of(size)
        if size < step.end - step.begin:
            return steps.positions(step)[rows]
        offsets = rows if steps.rule.fill is None else steps.rule.fill(rows, size)
        arranged = self._arranged(step.begin, size)
        # What fills a step up comes after all of its records, wherever the last of them is arranged.
        return step.begin + (offsets if arranged is None else np.where(rows < size, arranged[offsets], offsets))

    def _arranged(self, begin: int, size: int) -> Indices | None:
        """Return the offset from the begin of a step of each of its rows; None if they come in order."""
        if not self.options.order.in_blocks or size == 1:
            return None
        first, *more = self.options.steps.places(begin, begin + size)
        if more:
            return None
        order = cast(OrderInBlocks, self.options.order_of(first.segment))
        return arrange_rows(order.sort_keys(first.epoch, np.arange(first.begin, first.end)))

    def _by_epoch(self) -> Iterator[tuple[Any, Places, int]]:
        """Yield for each epoch which rows lie in it, its places, and what leads from places to positions."""
        begin, stop = self.steps.begins[0], self.steps.end
        for places in self.options.steps.places(begin, stop):
            end = begin + places.end - places.begin
            is_all = end - begin == stop - self.steps.begins[0]
            inside = slice(None) if is_all else (begin <= self.positions) & (self.positions < end)
            yield inside, places, begin - places.begin
            begin = end


def plan_chunk(options: StreamOptions, position: int, most: int) -> ChunkPlan | None:
    """Return the plan of the steps from a position on that are read at once, at most so many; None at the end."""
    steps = options.steps.plan(position, most)
    return None if steps is None else ChunkPlan(options, steps)


def plan_step(options: StreamOptions, step: Step) -> ChunkPlan:
    """Return the plan of a chunk of one step."""
    return ChunkPlan(options, StepRange.of(step))
