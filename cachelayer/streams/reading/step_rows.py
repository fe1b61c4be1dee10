"""The records and positions of the rows that are read of each step, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, cast

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

    def of(self, part: slice) -> Rows:
        """Return the rows of one step."""
        return Rows(self.numbers[part], self.positions[part], [0, part.stop - part.start])


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

    def _numbers(self, steps: Step, positions: Indices) -> Indices:
        """Return the record number at each position of some steps."""
        places = list(self.options.steps.places(steps.begin, steps.end))
        if len(places) == 1:
            return self._at(places[0], positions - (steps.begin - places[0].begin))
        numbers, begin = np.empty_like(positions), steps.begin
        for part in places:
            end = begin + part.end - part.begin
            inside = (begin <= positions) & (positions < end)
            numbers[inside] = self._at(part, positions[inside] - (begin - part.begin))
            begin = end
        return numbers

    def _at(self, places: Places, wanted: Indices) -> Indices:
        """Return the record numbers at some places of an epoch."""
        numbers = self.options.order_of(places.segment).at(places.epoch, wanted)
        return numbers + places.segment.first if places.segment.first else numbers

    def blocks(self, steps: Step) -> tuple[Indices, Indices, Indices]:
        """Return the begin, the end and the last position of each row's block, for some steps of an order in blocks."""
        positions, _ = self._positions(steps)
        out, begin = np.empty((3, len(positions)), np.int64), steps.begin
        for part in self.options.steps.places(steps.begin, steps.end):
            shift, end = begin - part.begin, begin + part.end - part.begin
            inside = (begin <= positions) & (positions < end)
            order, first = self.options.order_of(part.segment), part.segment.first
            spans = cast(Spans, order.spans(part.epoch, positions[inside] - shift))
            out[:, inside] = spans.begin + first, spans.end + first, spans.last + shift
            begin = end
        return out[0], out[1], out[2]
