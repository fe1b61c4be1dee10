"""Read the steps of a shard: its records, after the user's functions, stacked to batches and masked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed, PaddedRecords, RandomAccess, RecordReads, Stacker
from cachelayer.streams.ahead.block_plan import Reading
from cachelayer.streams.ahead.block_rows import BlockRows, joined
from cachelayer.streams.order.stand_ins import one, stand_ins
from cachelayer.streams.reading.failures import Failure, bare, failure_of, is_of_element, none_left, too_many
from cachelayer.streams.reading.maps import ElementMap, called, returned_none
from cachelayer.streams.reading.step_rows import StepRows
from cachelayer.streams.state import StreamIdentity
from cachelayer.streams.steps import Step
from cachelayer.streams.stream_options import StreamOptions

Indices = NDArray[np.int64]
Collate = Callable[..., Any]


@dataclass(frozen=True)
class StepReader:
    """Reads steps of one shard.

    Args:
        records: the records.
        options: which records to read, and in which order.
        maps: functions of elements, in the order in which they are called.
        batch_maps: functions of batches.
        rows: given the size of a global batch, returns the rows to read; None for those of the shard.
        kinds: for each path of a leaf, whether functions pass it on unchanged; filled in by the first batch.
        buckets: for each bucket, the records padded to its bound; empty if there are no buckets.
        sent: given an item and the number of rows of its global batch, returns what to hand out; None to hand it out.
    """

    records: RandomAccess[Any]
    options: StreamOptions
    maps: tuple[ElementMap, ...] = ()
    batch_maps: tuple[Callable[[Any], Any], ...] = ()
    rows: Callable[[int], Indices] | None = None
    kinds: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    buckets: Sequence[PaddedRecords[Any]] = ()
    sent: Callable[[Any, int], Any] | None = None

    @cached_property
    def _stacking(self) -> Stacker:
        # Elements of all buckets have the same leaves of fixed shape, only other shapes.
        return (self.buckets[0] if self.buckets else self.records).stacking()

    def _reads_of(self, step: Step) -> RecordReads[Any]:
        """Return the records as the batch of a step has them."""
        return self.buckets[self.options.steps.bucket(step)] if self.buckets else self.records

    @property
    def identity(self) -> StreamIdentity:
        """The records and the order that positions of the stream refer to."""
        records = self.records
        return StreamIdentity(records.digest, self.options.order, self.options.steps, records.original_digest)

    @cached_property
    def read_rows(self) -> StepRows:
        return StepRows(self.options, self.rows)

    @property
    def max_failures(self) -> int | None:
        """The number of failures that others stand in for, of all elements of an iterator; None to raise each."""
        return min((function.max_failures for function in self.maps if function.max_failures is not None), default=None)

    @property
    def is_mapped(self) -> bool:
        """True if functions change what is handed out, so that the stream may have another spec than the records."""
        return bool(self.maps or self.batch_maps)

    def of_rows(self, rows: Callable[[int], Indices]) -> StepReader:
        """Return the reader of some rows of each global batch, for a process that holds part of a sharded array.

        Args:
            rows: given the number of rows of a global batch, returns the rows to read, in any order. With remainder
                "pad" that number is ``global_batch_size`` at every step, else the number of records in the step.
        """
        if not self.options.batched or self.options.steps.shard_count > 1:
            raise InvalidArgumentError(
                "rows are those of a global batch: pass a global_batch_size and no shard to stream()"
            )
        return replace(self, rows=rows)

    def batch(self, step: Step, blocks: Mapping[int, BlockRows] | None = None) -> Any:
        """Return the batch of a step; with remainder "pad", the batch and its mask.

        Args:
            step: the step.
            blocks: for the begin of the step, the blocks that its records are read from; None to read them one by one.
        """
        batch, failures = self.batch_and_failures(step, blocks)
        self._notice(failures)
        return batch

    def batch_and_failures(
        self, step: Step, blocks: Mapping[int, BlockRows] | None = None
    ) -> tuple[Any, tuple[Failure, ...]]:
        """Return the batch of a step, as :meth:`batch` does, and the elements that others stand in for."""
        reading = Reading()
        reading.blocks = blocks
        return self._finished(step, self._read(step, reading), reading), tuple(reading.failures)

    def _notice(self, failures: Sequence[Failure]) -> None:
        """Warn of failures that no iterator counts, once in a process."""
        limit = self.max_failures
        if failures and limit is not None:
            if len(failures) > limit:
                raise too_many(failures, limit)
            next(function.notice for function in self.maps if function.max_failures is not None)(failures[0])

    def batches(self, steps: Sequence[Step], out: list[Any], reading: Reading) -> None:
        """Append the batches of some steps, read at once if that works; raise an error where its batch would come."""
        # Functions get the elements of a bucket, so the steps of several buckets are read one by one.
        together = len(steps) > 1 and not (self.maps and self.buckets)
        read = reading.tried(lambda: self._read_at_once(steps, reading)) if together else None
        if read is None:
            out.extend(self._finished(step, self._read(step, reading), reading) for step in steps)
        else:
            out.extend(self._finished(step, batch, reading) for step, batch in zip(steps, read, strict=True))

    def _read_at_once(self, steps: Sequence[Step], reading: Reading) -> Iterable[Any]:
        numbers = self.read_rows.numbers_of(steps)
        together = np.concatenate(numbers)
        if self.buckets:
            batches = zip(steps, numbers, self.records.read_batches(numbers), strict=True)
            return [self.buckets[self.options.steps.bucket(step)].padded(rows, batch) for step, rows, batch in batches]
        source = self._source(steps, together, reading)
        if not self.maps:
            return source.read_batches(numbers)
        splits = list(accumulate(map(len, numbers), initial=0))
        positions = np.concatenate([self.read_rows.positions(step) for step in steps])
        elements, collate = self._collated(together, positions, reading, source, self.records)
        parts = [elements[start:stop] for start, stop in pairwise(splits)]
        return [self._stacked(step, part, collate, reading) for step, part in zip(steps, parts, strict=True)]

    def elements(self, step: Step) -> Sequence[Any]:
        reading = Reading()
        found = self._mapped(self.read_rows.numbers(step), self.read_rows.positions(step), reading, self.records)
        self._notice(reading.failures)
        return found

    def _source(self, steps: Sequence[Step], numbers: Indices, reading: Reading) -> RecordReads[Any]:
        if reading.blocks is None:
            return self._reads_of(steps[0])
        return joined([reading.blocks[step.begin] for step in steps]).reads(numbers, reading.check)

    def block(self, block: Step, out: list[Any], reading: Reading) -> None:
        """Append the elements of this shard in several steps of one element a shard, read at once if that works."""
        numbers, positions = self.read_rows.places_of_elements(block)

        def read(rows: slice) -> Sequence[Any]:
            blocks = reading.blocks
            source = self.records if blocks is None else blocks[block.begin][rows].reads(numbers[rows], reading.check)
            return self._mapped(numbers[rows], positions[rows], reading, source)

        found = reading.tried(lambda: read(slice(None))) if len(numbers) > 1 else None
        if found is not None:
            out.extend(found)
            return
        for row in range(len(numbers)):
            out.extend(read(slice(row, row + 1)))

    def _read(self, step: Step, reading: Reading) -> Any:
        """Return the batch of a step, before functions of batches and the mask."""
        numbers = self.read_rows.numbers(step)
        source = self._source([step], numbers, reading)
        if not self.maps:
            return source.read(numbers)
        found = self._collated(numbers, self.read_rows.positions(step), reading, source, self._reads_of(step))
        return self._stacked(step, *found, reading)

    def _stacked(self, step: Step, elements: Sequence[Any], collate: Collate, reading: Reading) -> Any:
        """Return the batch of the elements of a step."""
        if len(elements):
            return collate(elements)
        # An empty batch takes its structure from one of the step's elements.
        epoch, place = divmod(step.begin, self.options.steps.records)
        number = self.options.order(epoch, place, place + 1)
        # Another shard counts it if it fails.
        apart = Reading(reading.closed)
        reads = self._reads_of(step)
        element, collate = self._collated(number, one(step.begin), apart, reads, reads)
        return collate(element, 0)

    def _mapped(
        self, numbers: Indices, positions: Indices, reading: Reading, source: RecordReads[Any]
    ) -> Sequence[Any]:
        """Return the elements of these record numbers, at these global positions, after all functions."""
        return self._elements(numbers, positions, reading, source, self.records, None)

    def _collated(
        self,
        numbers: Indices,
        positions: Indices,
        reading: Reading,
        source: RecordReads[Any],
        others: RecordReads[Any],
    ) -> tuple[Sequence[Any], Collate]:
        """Return the same elements, and the function that stacks them, which depends on the elements as read."""
        collators = list[Collate]()
        elements = self._elements(numbers, positions, reading, source, others, collators)
        return elements, self._stacking.joined(collators)

    def _elements(
        self,
        numbers: Indices,
        positions: Indices,
        reading: Reading,
        source: RecordReads[Any],
        others: RecordReads[Any],
        collators: list[Collate] | None,
    ) -> Sequence[Any]:
        """Return the elements of some records after all functions, with others in place of those that fail.

        Args:
            numbers, positions: the record number and the global position of each.
            reading: the reading of the block, which gets the failures.
            source: reads these records; perhaps out of blocks that are at hand.
            others: reads any record.
            collators: gets the functions that together stack the elements; None if nothing is stacked.
        """
        try:
            return self._made(source.__getitems__(numbers), numbers, positions, 0, reading, collators)
        except Exception as error:
            if self.max_failures is None or not is_of_element(error):
                raise
        # Once more one by one, to find those that fail.
        failed: Failed = {}
        read = source.elements(numbers, failed)
        elements = list[Any]()
        for row, (number, position) in enumerate(zip(numbers.tolist(), positions.tolist(), strict=True)):
            made, failure = None, failed.get(row)
            if failure is None:
                made, failure = self._tried(read[row], number, position, 0, reading, collators)
            if failure is not None:
                failed[row] = failure
            elements.append(made)
        # Rows of padding repeat a position, and count once.
        first = {int(positions[row]): row for row in sorted(failed, reverse=True)}
        if len(first) > self.max_failures:
            raise too_many(
                [failure_of(int(numbers[row]), position, failed[row], -1) for position, row in sorted(first.items())],
                self.max_failures,
            )
        for row in sorted(failed):
            number, position = int(numbers[row]), int(positions[row])
            elements[row], stand_in = self._stand_in(number, position, failed[row], reading, others, collators)
            if first[position] == row:
                reading.failures.append(failure_of(number, position, failed[row], stand_in))
        reading.failures.sort(key=lambda failure: failure.position)
        return elements

    def _stand_in(
        self,
        number: int,
        position: int,
        error: Exception,
        reading: Reading,
        others: RecordReads[Any],
        collators: list[Collate] | None,
    ) -> tuple[Any, int]:
        """Return the element that stands in for a record that failed, and its own record number."""
        tried = [number]
        for attempt, candidate in enumerate(stand_ins(self.options.order, self.options.steps.records, position), 1):
            failed: Failed = {}
            read = others.elements(one(candidate), failed)
            tried.append(candidate)
            if failed:
                error = failed[0]
                continue
            made, failure = self._tried(read[0], candidate, position, attempt, reading, collators)
            if failure is None:
                return made, candidate
            error = failure
        raise none_left(position, tried, error)

    def _tried(
        self,
        element: Any,
        number: int,
        position: int,
        attempt: int,
        reading: Reading,
        collators: list[Collate] | None,
    ) -> tuple[Any, Exception | None]:
        """Return what all functions make of an element, or the error of the one that fails, if it replaces failures."""
        failing: list[ElementMap] = []
        try:
            made = self._made([element], one(number), one(position), attempt, reading, collators, failing)
        except Exception as error:
            if not failing or failing[0].max_failures is None or not is_of_element(error):
                raise
            return None, bare(error)
        return made[0], None

    def _made(
        self,
        elements: Sequence[Any],
        numbers: Indices,
        positions: Indices,
        attempt: int,
        reading: Reading,
        collators: list[Collate] | None,
        failing: list[ElementMap] | None = None,
    ) -> Sequence[Any]:
        """Return what all functions make of elements. ``failing`` gets the function that raises an error."""
        seed = self.options.order.seed or 0
        collate = None if collators is None else self._stacking.collator(elements, self.kinds)
        for function in self.maps:
            try:
                made = function(elements, numbers, positions, seed, reading, attempt)
                if function.declared is None:
                    self._refuse_none(elements, made, numbers, positions)
            except Exception:
                if failing is not None:
                    failing.append(function)
                raise
            elements = made
            if collate is not None and function.declared is not None:
                collate = function.declared.collator(elements, self.kinds)
        if collators is not None and collate is not None:
            collators.append(collate)
        return elements

    def _refuse_none(self, elements: Sequence[Any], made: Sequence[Any], numbers: Indices, positions: Indices) -> None:
        """Raise if a function returned None for an element. Only records that are wrapped are read to find it out."""
        if not any(element is None for element in made) or getattr(self.records.element_spec, "nullable", False):
            return
        for row, (before, after) in enumerate(zip(elements, made, strict=True)):
            if after is None and before is not None:
                raise returned_none("map()", f"at global position {positions[row]}", int(numbers[row]))

    def _finished(self, step: Step, batch: Any, reading: Reading) -> Any:
        for function in self.batch_maps:
            reading.check()
            made = reading.timed(called, function, batch)
            if made is None and batch is not None:
                raise returned_none("map_batches()", f"of the batch at global position {step.begin}", None)
            batch = made
        padded = self.options.steps.remainder == "pad"
        size = step.end - step.begin
        item = (batch, self.read_rows.rows(step) < size) if padded else batch
        if self.sent is None:
            return item
        reading.check()
        return self.sent(item, self.options.steps.global_batch if padded else size)
