"""Apply the functions of a stream to the elements of a chunk, and find others for those that fail.

Every function is called once for each element, however many steps were read at once. An error is known by its row, so
it ends the chunk before the step that has this row. With ``on_error="replace"`` it ends nothing: the element of another
record stands in. Steps of 4 rows, and a function that fails for the element of row 6::

    row                 0  1  2  3   4  5  6  7   8  9
    on_error="raise"    a  b  c  d                         error: comes in place of the step of rows 4 to 7
    on_error="replace"  a  b  c  d   e  f  b  h   i  j     failures: [row 6]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cachelayer.protocols import Attempted, Failed
from cachelayer.streams.order.orders import stand_ins
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.reading.chunk_plan import ChunkPlan, HeldOf
from cachelayer.streams.reading.element_map import ElementMap
from cachelayer.streams.reading.failures import (
    Failure,
    ReadContext,
    attempt,
    failure_of,
    no_stand_in_error,
    too_many,
)

if TYPE_CHECKING:
    from cachelayer.streams.reading.step_reader import StepReader


class MappedChunk:
    """The elements of a chunk after the functions of the stream, once :meth:`read` was called.

    Args:
        reader: has the records, the functions and the order.
        plan: the plan of the chunk.
        context: gets the failures.
        deciding_position: the position of the element that decides what functions pass on; None if nobody asks.
    """

    def __init__(
        self, reader: StepReader, plan: ChunkPlan, context: ReadContext, deciding_position: int | None = None
    ) -> None:
        self.elements: list[Any] = []
        """The element of each row, up to the step that an error ends."""
        self.error: BaseException | None = None
        """The error in place of the step after the elements; None if there is none."""
        self.passed_on: Mapping[str, Any] | None = None
        """The specs of the leaves that functions pass on; None if the chunk does not have the deciding element."""
        self._reader = reader
        self._plan = plan
        self._context = context
        self._deciding_position = -1 if deciding_position is None else deciding_position
        self._end = len(plan.numbers)
        """The number of rows before the step that an error ends."""

    def read(self, held: HeldOf) -> None:
        """Read the elements, of records that were fetched, and apply the functions."""
        rows, index_of_row = self._different_rows()
        numbers = self._plan.numbers[rows]
        positions = self._plan.positions[rows]
        attempted: Attempted = self._read_rows(rows, held) if len(rows) else ([], {})
        values, failed = self._map(attempted, numbers, positions)
        if not failed and index_of_row is rows:
            self.elements = values
            return
        if len(values) < len(rows):
            # The last error belongs to the row after the values.
            self._end_before(int(rows[len(values)]), failed.pop(len(values)))
        self._replace_failed(rows, values, failed)
        self.elements = [values[index] for index in index_of_row[: self._end].tolist()]

    def raise_error(self) -> None:
        """Raise the error that came in place of the step after the elements, if there is one."""
        error = self.error
        self.error = None
        if error is not None:
            try:
                raise error
            finally:
                # This frame is in the traceback of the error, and must not refer to it.
                del error

    def _different_rows(self) -> tuple[Indices, Indices]:
        """Return the rows with different positions, which are read once, and which of these each row is."""
        positions = self._plan.positions
        options = self._reader.options
        if options.steps.rule.fill is None and options.rows is None:
            every = np.arange(len(positions))
            return every, every
        _, firsts, inverse = np.unique(positions, return_index=True, return_inverse=True)
        rows = np.sort(firsts)
        return rows, rows.searchsorted(firsts[inverse])

    def _read_rows(self, rows: Indices, held: HeldOf) -> Attempted:
        """Read the elements of some rows at once; or step by step, if fetching what one of them needs has failed."""
        records = self._reader.records
        numbers = self._plan.numbers[rows]
        stops = self._reader.max_failures is None
        fetched, error = attempt(held, slice(None))
        if error is None:
            return records.try_elements(numbers, fetched, stops=stops)
        values = list[Any]()
        failed = Failed()
        for begin, end in pairwise(self._plan.splits):
            first, stop = rows.searchsorted([begin, end]).tolist()
            fetched, error = attempt(held, slice(begin, end))
            if error is not None:
                failed[first] = error
                return values, failed
            elements, errors = records.try_elements(numbers[first:stop], fetched, stops=stops)
            failed |= {first + index: error_of_row for index, error_of_row in errors.items()}
            values += elements
            if len(values) < stop:
                break
        return values, failed

    def _end_before(self, row: int, error: BaseException) -> None:
        """Have an error come in place of the step that has a row."""
        self._end = self._plan.splits[bisect_right(self._plan.splits, row) - 1]
        self.error = error

    # Stand-ins.

    def _replace_failed(self, rows: Indices, values: list[Any], failed: Failed) -> None:
        """Put the elements of other records in place of those values that have failed, given the row of each value."""
        indices = sorted(failed)
        limit = self._reader.max_failures
        if limit is not None and len(indices) > limit:
            self._end_for_too_many([int(rows[index]) for index in indices], [failed[index] for index in indices], limit)
        failures = list[Failure]()
        for index in indices:
            row = int(rows[index])
            if self.error is not None and row >= self._end:
                break
            stand_in, error = self._context.attempt(self._read_stand_in, row, failed[index])
            if error is not None:
                self._end_before(row, error)
                break
            values[index], number = stand_in
            failures.append(self._failure(row, failed[index], number))
        self._context.failures += sorted(failures, key=lambda failure: failure.position)

    def _end_for_too_many(self, rows: Sequence[int], errors: Sequence[BaseException], limit: int) -> None:
        """End the chunk before the step in which the failures of rows, ascending, become more than the limit."""
        step_end = self._plan.splits[bisect_right(self._plan.splits, rows[limit])]
        listed = [self._failure(row, error, -1) for row, error in zip(rows, errors, strict=True) if row < step_end]
        self._end_before(rows[len(listed) - 1], too_many(listed, limit))

    def _read_stand_in(self, row: int, error: BaseException) -> tuple[Any, int]:
        """Return the element that stands in for that of a row, and its record; raise if all candidates fail."""
        options = self._reader.options
        number = int(self._plan.numbers[row])
        position = int(self._plan.positions[row])
        [at_position] = options.steps.by_epoch(position, position + 1)
        phase = at_position.phase
        position_in_phase = at_position.epoch * phase.records + at_position.begin
        candidates = stand_ins(options.order_of(phase), phase.records, position_in_phase)
        # In the shape of its bucket, if there are buckets.
        records = self._reader.records.padded_as(number)
        tried = [number]
        for attempts, candidate in enumerate(candidates, 1):
            tried.append(candidate + phase.first)
            candidate_number = np.array(tried[-1:])
            read = records.try_elements(candidate_number, stops=False)
            values, failed = self._map(read, candidate_number, np.array([position]), attempts)
            if not failed:
                return values[0], tried[-1]
            if not values:
                # An error that ends the chunk, such as one of the storage.
                raise failed.pop(0)
            error = failed[0]
        raise no_stand_in_error(position, tried, error)

    def _failure(self, row: int, error: BaseException, stand_in: int) -> Failure:
        # Only errors of elements are replaced, which are no interrupts.
        element_error = cast(Exception, error)
        return failure_of(int(self._plan.numbers[row]), int(self._plan.positions[row]), element_error, stand_in)

    # Functions.

    def _map(self, attempted: Attempted, numbers: Indices, positions: Indices, attempts: int = 0) -> Attempted:
        """Return what all functions make of elements; ``attempts`` records were tried before at these positions."""
        deciding_row = next(iter(np.flatnonzero(positions == self._deciding_position).tolist()), None)
        passing = [self._reader.stacker.passing(element) for element in _elements_in(attempted, deciding_row)]
        for function in self._reader.maps:
            self._context.clock.enter("functions")
            attempted = self._apply(function, attempted, numbers, positions, attempts)
            self._context.clock.enter("reading")
            if function.declared is not None:
                # The functions behind this one pass on leaves of the spec that it declares, not of the dataset's.
                passing = [function.declared.passing(element) for element in _elements_in(attempted, deciding_row)]
        for find_passed_on, element in zip(passing, _elements_in(attempted, deciding_row), strict=False):
            self.passed_on = find_passed_on(element)
        return attempted

    def _apply(
        self, function: ElementMap, before: Attempted, numbers: Indices, positions: Indices, attempts: int
    ) -> Attempted:
        """Return what a function makes of the elements that have not failed before."""
        elements, failed = before
        if not failed:
            count = len(elements)
            if not count:
                return before
            return function.apply(
                elements, numbers[:count], positions[:count], attempts, self._context, self._is_nullable
            )
        rows = [row for row in range(len(elements)) if row not in failed]
        if not rows:
            return before
        index = np.array(rows, np.int64)
        present = [elements[row] for row in rows]
        mapped, errors = function.apply(
            present, numbers[index], positions[index], attempts, self._context, self._is_nullable
        )
        # An error that is not replaced ends the values at its row.
        end = rows[len(mapped)] if len(mapped) < len(rows) else len(elements)
        values: list[Any] = [None] * end
        for row, value in zip(rows, mapped, strict=False):
            values[row] = value
        every_error = failed | {rows[place]: error for place, error in errors.items()}
        return values, {row: error for row, error in every_error.items() if row <= end}

    def _is_nullable(self) -> bool:
        """Return whether elements may be None. Only records that are wrapped are read to find it out."""
        return bool(getattr(self._reader.records.element_spec, "nullable", False))


def _elements_in(attempted: Attempted, row: int | None) -> list[Any]:
    """Return the element of a row in a list, which is empty if the row has none."""
    values, failed = attempted
    return [] if row is None or row in failed else values[row : row + 1]
