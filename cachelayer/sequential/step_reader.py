"""What a shard hands out in a step: its records read, mapped, stacked and masked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.protocols import RandomAccess, Stacking
from cachelayer.sequential.maps import ElementMap, called
from cachelayer.sequential.options import StreamOptions
from cachelayer.sequential.steps import Step

Indices = NDArray[np.int64]
Collate = Callable[..., Any]


@dataclass(frozen=True)
class StepReader:
    """Reads steps of one shard.

    Args:
        records: the records.
        options: which of them, in which order.
        maps: functions of elements, in the order in which they are called.
        batch_maps: functions of batches.
        rows: the rows of a global batch of so many rows that are read, where they are not those of the shard.
        kinds: at each path of a leaf, whether functions pass it on as it is in the records: the first batch tells.
    """

    records: RandomAccess[Any]
    options: StreamOptions
    maps: tuple[ElementMap, ...] = ()
    batch_maps: tuple[Callable[[Any], Any], ...] = ()
    rows: Callable[[int], Indices] | None = None
    kinds: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def _stacking(self) -> Stacking:
        return self.records.stacking()

    @property
    def share(self) -> int:
        """Records that are read in a whole step."""
        steps = self.options.steps
        return steps.global_batch // steps.shard_count if self.rows is None else len(self.rows(steps.global_batch))

    def numbers(self, step: Step) -> Indices:
        """The record numbers of a step, one a row; padding rows repeat the step's last record."""
        epoch, place = divmod(step.begin, self.options.steps.records)
        size = step.end - step.begin
        if self.rows is None:
            first, last = self.options.steps.part(step, self.options.shard_index)
            if last <= size:
                return self.options.order(epoch, place + first, place + last)
        rows = np.minimum(self._rows(step), size - 1)
        if len(rows) == 0:
            return rows
        first, last = int(rows.min()), int(rows.max()) + 1
        found: Indices = self.options.order(epoch, place + first, place + last)[rows - first]
        return found

    def batch(self, step: Step) -> Any:
        """The batch of a step; with remainder "pad" with its mask."""
        return self._finished(step, self._read(step))

    def batches(self, steps: Sequence[Step]) -> Iterator[Any]:
        """The batches of some steps, read at once where that can be."""
        read: Iterable[Any]
        try:
            read = self._read_at_once(steps)
        except Exception:  # noqa: BLE001 - read one by one, the error comes in the place of the batch that has it
            read = map(self._read, steps)
        return map(self._finished, steps, read)

    def _read_at_once(self, steps: Sequence[Step]) -> Iterable[Any]:
        numbers = [self.numbers(step) for step in steps]
        if not self.maps:
            return self.records.read_batches(numbers)
        splits = list(accumulate(map(len, numbers), initial=0))
        positions = np.concatenate([self._positions(step) for step in steps])
        elements, collate = self._collated(np.concatenate(numbers), positions)
        parts = [elements[start:stop] for start, stop in pairwise(splits)]
        return [self._stacked(step, part, collate) for step, part in zip(steps, parts, strict=True)]

    def elements(self, step: Step) -> Sequence[Any]:
        """The elements of a step."""
        return self._mapped(self.numbers(step), self._positions(step))

    def _positions(self, step: Step) -> Indices:
        """The global positions of the rows of a step; those of padding rows are that of the step's last record."""
        return step.begin + np.minimum(self._rows(step), step.end - step.begin - 1)

    def block(self, block: Step) -> Iterator[Any]:
        """The elements of this shard in several steps of an element a shard."""
        epoch, place = divmod(block.begin, self.options.steps.records)
        mine = slice(self.options.shard_index, None, self.options.steps.shard_count)
        numbers = self.options.order(epoch, place, place + block.end - block.begin)[mine]
        positions = np.arange(block.begin, block.end)[mine]
        try:
            yield from self._mapped(numbers, positions)
        except Exception:  # noqa: BLE001 - one by one, the error comes in the place of the element that has it
            for row in range(len(numbers)):
                yield from self._mapped(numbers[row : row + 1], positions[row : row + 1])

    def _rows(self, step: Step) -> Indices:
        """The rows of a step's global batch that are read; those past its records are padding."""
        if self.rows is None:
            return np.arange(*self.options.steps.part(step, self.options.shard_index))
        padded = self.options.steps.remainder == "pad"
        return self.rows(self.options.steps.global_batch if padded else step.end - step.begin)

    def _read(self, step: Step) -> Any:
        """The batch of a step, before functions of batches and the mask."""
        if not self.maps:
            return self.records.read(self.numbers(step))
        return self._stacked(step, *self._collated(self.numbers(step), self._positions(step)))

    def _stacked(self, step: Step, elements: Sequence[Any], collate: Collate) -> Any:
        """The batch of the elements of a step."""
        if len(elements):
            return collate(elements)
        # What a batch of nothing looks like is seen from one of the step's elements.
        epoch, place = divmod(step.begin, self.options.steps.records)
        one, collate = self._collated(self.options.order(epoch, place, place + 1), np.array([step.begin]))
        return collate(one, 0)

    def _mapped(self, numbers: Indices, positions: Indices) -> Sequence[Any]:
        """The elements of these record numbers, which stand at global positions, after all functions."""
        elements: Sequence[Any] = self.records.__getitems__(numbers)
        for function in self.maps:
            elements = self._called(function, elements, numbers, positions)
        return elements

    def _collated(self, numbers: Indices, positions: Indices) -> tuple[Sequence[Any], Collate]:
        """The same, and what makes batches of them, which has to know what they were made of."""
        elements: Sequence[Any] = self.records.__getitems__(numbers)
        collate = self._stacking.collator(elements, self.kinds)
        for function in self.maps:
            elements = self._called(function, elements, numbers, positions)
            if function.declared is not None:
                collate = function.declared.collator(elements, self.kinds)
        return elements, collate

    def _called(self, fn: ElementMap, elements: Sequence[Any], numbers: Indices, positions: Indices) -> Sequence[Any]:
        return fn.conform(fn(elements, positions, self.options.order.seed or 0), numbers, positions)

    def _finished(self, step: Step, batch: Any) -> Any:
        for function in self.batch_maps:
            batch = called(function, batch)
        if self.options.steps.remainder != "pad":
            return batch
        return batch, self._rows(step) < step.end - step.begin
