"""The records and positions of the rows that are read of each step, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order.orders import Spans, arrange_rows
from cachelayer.streams.steps import Places, Step
from cachelayer.streams.stream_options import StreamOptions

Indices = NDArray[np.int64]


class Rows(NamedTuple):
    """The rows that are read of some steps.

    Args:
        numbers: the record number of each.
        positions: the global position of each.
        splits: where the rows of each step begin, and the number of all.
    """

    numbers: Indices
    positions: Indices
    splits: Sequence[int]

    @property
    def parts(self) -> list[slice]:
        """The rows of each step."""
        return [slice(begin, end) for begin, end in pairwise(self.splits)]


@dataclass(frozen=True)
class StepRows:
    """The rows of each step that are read.

    Args:
        options: which records to read, and in which order.
        chosen: given the number of rows of a global batch, returns the rows to read; None for those of the shard.
    """

    options: StreamOptions
    chosen: Callable[[int], Indices] | None

    @property
    def share(self) -> int:
        """Number of rows that are read of a whole step."""
        return len(self.rows(self.options.steps.global_batch))

    def rows(self, size: int) -> Indices:
        """Return the rows of a global batch that are read of a step with so many records; those after are padding."""
        steps = self.options.steps
        if self.chosen is not None:
            return self.chosen(steps.rows(size))
        return np.arange(*steps.part(size, self.options.shard_index))

    def mask(self, step: Step) -> NDArray[np.bool_]:
        """Return which rows of a step are no padding."""
        size = self.options.steps.size(step)
        return self.rows(size) < size

    def of(self, steps: Step) -> Rows:
        """Return the rows of some steps in a row. Padding repeats the record at the last position of its step."""
        positions, splits = self._positions(steps)
        return Rows(self._numbers(steps, positions), positions, splits)

    def _positions(self, several: Step) -> tuple[Indices, Sequence[int]]:
        """Return the positions of the rows of some steps, and where the rows of each step begin."""
        steps = self.options.steps
        size, batch = steps.size(several), steps.global_batch
        count, rest = divmod(size, batch)
        # Of steps whose rows come in the order of their positions, all whole ones at once.
        if count > 1 and self._arranged(several.begin, batch) is None:
            rows = self.rows(batch)
            positions = (several.begin + np.arange(0, count * batch, batch)[:, None] + rows).reshape(-1)
            splits: Sequence[int] = (np.arange(count + 1) * len(rows)).tolist()
            if not rest:
                return positions, splits
            last = self._of_step(Step(several.end - rest, several.end))
            return np.concatenate([positions, last]), [*splits, len(positions) + len(last)]
        parts = [self._of_step(step) for step in steps.single(several)]
        positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return positions, list(accumulate(map(len, parts), initial=0))

    def _of_step(self, step: Step) -> Indices:
        """Return the positions of the rows of a step."""
        size = self.options.steps.size(step)
        rows = self.rows(size)
        if size < step.end - step.begin:
            return self.options.steps.positions(step)[rows]
        offsets = np.minimum(rows, size - 1)
        arranged = self._arranged(step.begin, size)
        # Padding comes after all records, wherever the last of them is arranged.
        return step.begin + (offsets if arranged is None else np.where(rows < size, arranged[offsets], offsets))

    def _arranged(self, begin: int, size: int) -> Indices | None:
        """Return the offset from the begin of a step of each of its rows; None if they come in order."""
        first, *more = self.options.steps.places(begin, begin + size)
        if more or size == 1:
            return None
        spans = self.options.order_of(first.segment).spans(first.epoch, np.arange(first.begin, first.end))
        return None if spans is None else arrange_rows(spans.ranks)

    def _by_epoch(self, steps: Step, positions: Indices) -> Iterator[tuple[Any, Places, int]]:
        """Yield for each epoch of some steps which positions lie in it, and what leads from its places to positions."""
        begin = steps.begin
        for places in self.options.steps.places(steps.begin, steps.end):
            end = begin + places.end - places.begin
            is_all = end - begin == steps.end - steps.begin
            yield slice(None) if is_all else (begin <= positions) & (positions < end), places, begin - places.begin
            begin = end

    def _numbers(self, steps: Step, positions: Indices) -> Indices:
        """Return the record number at each position of some steps."""
        numbers = np.empty_like(positions)
        for inside, places, shift in self._by_epoch(steps, positions):
            order = self.options.order_of(places.segment)
            numbers[inside] = order.at(places.epoch, positions[inside] - shift)
            numbers[inside] += places.segment.first
        return numbers

    def blocks(self, steps: Step) -> tuple[Indices, Indices, Indices]:
        """Return the begin, the end and the last position of each row's block, for some steps of an order in blocks."""
        positions, _ = self._positions(steps)
        begins, ends, lasts = np.empty((3, len(positions)), np.int64)
        for inside, places, shift in self._by_epoch(steps, positions):
            order, first = self.options.order_of(places.segment), places.segment.first
            begin, end, last = cast(Spans, order.spans(places.epoch, positions[inside] - shift)).edges()
            begins[inside], ends[inside], lasts[inside] = begin + first, end + first, last + shift
        return begins, ends, lasts
