"""The records, positions and blocks of the rows that are read of each step, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order.exact import BlockSpans, shares
from cachelayer.streams.steps import Step
from cachelayer.streams.stream_options import StreamOptions

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class StepRows:
    """The rows of each step that are read.

    Args:
        options: which records to read, and in which order.
        chosen: given the size of a global batch, returns the rows to read; None for those of the shard.
    """

    options: StreamOptions
    chosen: Callable[[int], Indices] | None

    @property
    def share(self) -> int:
        """Number of records that are read in a whole step."""
        steps = self.options.steps
        return steps.global_batch // steps.shard_count if self.chosen is None else len(self.chosen(steps.global_batch))

    def numbers(self, step: Step) -> Indices:
        """Return the record numbers of a step, one for each row; padding rows repeat the step's last record."""
        epoch, place = divmod(step.begin, self.options.steps.records)
        size = step.end - step.begin
        arranged = self.options.order.arranged(epoch, place, place + size)
        if arranged is not None:
            offsets = self._offsets(step)
            if len(offsets) < size:
                return self.options.order.at(epoch, place + offsets)
            found: Indices = self.options.order(epoch, place, place + size)[offsets]
            return found
        if self.chosen is None:
            first, last = self.options.steps.part(step, self.options.shard_index)
            if last <= size:
                return self.options.order(epoch, place + first, place + last)
        rows = np.minimum(self.rows(step), size - 1)
        if len(rows) == 0:
            return rows
        first, last = int(rows.min()), int(rows.max()) + 1
        numbers: Indices = self.options.order(epoch, place + first, place + last)[rows - first]
        return numbers

    def numbers_of(self, steps: Sequence[Step]) -> list[Indices]:
        """Return what :meth:`numbers` returns for each of some steps."""
        options, first, last = self.options, steps[0], steps[-1]
        epoch, place = divmod(first.begin, options.steps.records)
        size, stop = options.steps.global_batch, place + last.end - first.begin
        are_whole = stop - place == len(steps) * size and stop <= options.steps.records
        if not are_whole or not self._reads_all(first):
            return [self.numbers(step) for step in steps]
        found = options.order(epoch, place, stop).reshape(len(steps), size)
        arranged = [options.order.arranged(epoch, begin, begin + size) for begin in range(place, stop, size)]
        return [numbers if rows is None else numbers[rows] for numbers, rows in zip(found, arranged, strict=True)]

    def numbers_of_elements(self, block: Step) -> Indices:
        """Return the record numbers of this shard's elements in several steps of one element a shard."""
        return self.places_of_elements(block)[0]

    def places_of_elements(self, block: Step) -> tuple[Indices, Indices]:
        """Return the record numbers and the global positions of such elements."""
        epoch, place = divmod(block.begin, self.options.steps.records)
        offsets = self._offsets_of_elements(block)
        return self.options.order.at(epoch, place + offsets), block.begin + offsets

    def positions(self, step: Step) -> Indices:
        """Return the global positions of the rows of a step; padding rows have that of the step's last record."""
        return step.begin + self._offsets(step)

    def rows(self, step: Step) -> Indices:
        """Return the rows of a step's global batch that are read; those past its records are padding."""
        if self.chosen is None:
            return np.arange(*self.options.steps.part(step, self.options.shard_index))
        padded = self.options.steps.remainder == "pad"
        return self.chosen(self.options.steps.global_batch if padded else step.end - step.begin)

    def blocks(self, step: Step) -> BlockSpans | None:
        """Return the blocks of the rows that this shard reads in a step; None if records are read one by one."""
        epoch, place = divmod(step.begin, self.options.steps.records)
        return self.options.order.blocks_at(epoch, place + self._offsets(step))

    def blocks_of_elements(self, block: Step) -> BlockSpans | None:
        """Return the blocks of the elements that this shard reads in several steps of one element a shard."""
        epoch, place = divmod(block.begin, self.options.steps.records)
        return self.options.order.blocks_at(epoch, place + self._offsets_of_elements(block))

    def _reads_all(self, step: Step) -> bool:
        """Return whether the rows of a step that are read are its records, each once."""
        part = self.options.steps.part(step, self.options.shard_index)
        return self.chosen is None and part == (0, step.end - step.begin)

    def _offsets(self, step: Step) -> Indices:
        """Return the offsets of the positions of the rows that are read from the begin of the step."""
        epoch, place = divmod(step.begin, self.options.steps.records)
        size = step.end - step.begin
        arranged = self.options.order.arranged(epoch, place, place + size)
        if arranged is not None and self._reads_all(step):
            return arranged
        rows = self.rows(step)
        if arranged is None:
            return np.minimum(rows, size - 1)
        # Padding comes after all records, and repeats the one at the last position, wherever that is arranged.
        return np.where(rows < size, arranged[np.minimum(rows, size - 1)], size - 1)

    def _offsets_of_elements(self, block: Step) -> Indices:
        """Return the offsets of the positions of this shard's elements from the begin of several steps."""
        epoch, place = divmod(block.begin, self.options.steps.records)
        stop = place + block.end - block.begin
        steps = self.options.steps
        return shares(self.options.order, epoch, place, stop, self.options.shard_index, steps.shard_count)
