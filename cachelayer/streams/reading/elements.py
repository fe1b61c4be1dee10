"""Make the elements of a chunk: read them, apply the functions of the stream, find others for those that fail.

Each is a stage: given elements by row, it makes elements and errors of them. Every function is called once for each
element, however many steps were read at once. An error is known by its row, so it ends the chunk before the step that
has this row. With ``on_error="replace"`` it ends nothing: the element of another record stands in. Steps of 4 rows, and
a function that fails for the element of row 6::

    row                 0  1  2  3   4  5  6  7   8  9
    on_error="raise"    a  b  c  d                         error: comes in place of the step of rows 4 to 7
    on_error="replace"  a  b  c  d   e  f  b  h   i  j     failures: [row 6]
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np

from cachelayer.protocols import Attempted, DatasetRows, Stacker
from cachelayer.streams.order.orders import GROUP, stand_ins
from cachelayer.streams.reading.chunk_plan import ChunkPlan, HeldOf, plan_of_first_row, read_in_place
from cachelayer.streams.reading.failures import (
    Failure,
    ReadContext,
    attempt,
    failure_of,
    is_of_element,
    no_stand_in_error,
    too_many,
)
from cachelayer.streams.reading.functions import ElementMap, ElementRows, Learned, Stage
from cachelayer.streams.schedule import Schedule, StepRange
from cachelayer.support.locks import cached_property


@dataclass(frozen=True)
class StreamElements:
    """The elements of a stream: its records after the functions of elements.

    A leaf that the functions pass on unchanged is batched as in the dataset, such as texts of various lengths as a
    Ragged. A leaf that they make is stacked. All batches must agree on which leaves are passed on, whichever batch or
    shard is read first. So what they make of the first element of the stream decides, when a first chunk is read.
    """

    records: DatasetRows[Any]
    schedule: Schedule
    maps: tuple[ElementMap, ...]
    learned: Learned
    max_failures: int | None
    """How many failed elements an iterator may replace by stand-ins; None to raise the first failure."""

    @cached_property
    def stacker(self) -> Stacker:
        """The stacker of elements of the dataset, before functions change them."""
        # Elements of all buckets have the same leaves, only in other shapes.
        return self.records.padded_as(0).stacking()

    @property
    def may_be_none(self) -> bool:
        """Whether elements may be None. Only records that are wrapped are read to find it out."""
        return bool(getattr(self.records.element_spec, "nullable", False))

    def of_chunk(self, plan: ChunkPlan, context: ReadContext, held: HeldOf, *, to_stack: bool = False) -> Elements:
        """Return the elements of a chunk; if they are ``to_stack``, :meth:`batches` makes batches of them."""
        return Elements(self, plan, context, held, self._deciding_position if to_stack else None)

    def batches(self, elements: Elements, plan: ChunkPlan, context: ReadContext) -> Iterator[Any]:
        """Yield the batch of each step up to the error that ends the elements."""
        for number, (begin, end) in enumerate(pairwise(plan.splits)):
            if end > len(elements.values):
                return
            values = elements.values[begin:end]
            if begin == end:
                # This shard has no row of this step. Its empty batch has the structure of the first row, which another
                # shard has; if that row fails, the other shard counts it.
                values = self._first_row(plan.steps[number], context).values
            yield self.stacker.collate(values, self._passed_on(elements, context), end - begin)

    @property
    def _deciding_position(self) -> int | None:
        """The position of the element that decides what functions pass on; None if that is decided."""
        if self.learned.passed_on is None:
            specs = (each.declared for each in reversed(self.maps) if each.declared is not None)
            varying = next(specs, self.stacker).varying
            # What a declared spec says is batched so, and no function behind the last one changes it.
            if not varying or self.maps[-1].declared is not None:
                self.learned.passed_on = varying
        return self.schedule.next_start(0) if self.learned.passed_on is None else None

    def _passed_on(self, elements: Elements, context: ReadContext) -> Mapping[str, Any]:
        """Return the specs of the leaves that functions pass on, by their paths in what they make."""
        if self.learned.passed_on is None:
            passed_on = elements.passed_on
            self.learned.passed_on = self._decided(context) if passed_on is None else passed_on
        return self.learned.passed_on

    def _decided(self, context: ReadContext) -> Mapping[str, Any]:
        """Return what functions pass on of the first element of the stream, or of the first that does not fail."""
        schedule = self.schedule
        position = schedule.next_start(0)
        tried = 0
        while True:
            try:
                alone = StepRange(range(position, position + 1), position + 1, position + 1)
                first = self._first_row(alone, context, decides=True)
                return cast(Mapping[str, Any], first.passed_on)
            except Exception as error:
                tried += 1
                position = schedule.next_start(position + 1)
                if tried == GROUP or not is_of_element(error) or schedule.at(position) is None:
                    raise

    def _first_row(self, step: StepRange, context: ReadContext, *, decides: bool = False) -> Elements:
        """Return the element in the first row of a step, which may be another shard's; raise its error if it fails.

        It may decide what functions pass on.
        """
        plan = plan_of_first_row(self.schedule, step)
        deciding = plan.positions.item(0) if decides else None
        elements = Elements(self, plan, ReadContext(context.closed, context.submit), deciding=deciding)
        if elements.error is None:
            return elements
        try:
            raise elements.error
        finally:
            del elements


class Elements:
    """The elements of a chunk after the functions of the stream.

    ``deciding`` is the position of the element that decides what functions pass on; None if nobody asks.
    """

    def __init__(
        self,
        stream: StreamElements,
        plan: ChunkPlan,
        context: ReadContext,
        held: HeldOf = read_in_place,
        deciding: int | None = None,
    ) -> None:
        self.passed_on: Mapping[str, Any] | None = None
        """The specs of the leaves that functions pass on; None if the chunk does not have the deciding element."""
        self._stream = stream
        self._plan = plan
        self._context = context
        self._deciding = deciding
        self._rows = ElementRows(plan.numbers, plan.positions)
        self._firsts: Sequence[int] = range(len(plan.positions))
        """The row of the chunk in which each element comes first."""
        elements_of_rows = None
        if stream.schedule.pads or stream.schedule.rows is not None:
            # Rows that fill up a step have the positions of others. An element is made for each position.
            _, firsts, inverse = np.unique(plan.positions, return_index=True, return_inverse=True)
            ascending = np.sort(firsts)
            self._firsts = ascending.tolist()
            self._rows = self._rows.some(ascending)
            elements_of_rows = ascending.searchsorted(firsts[inverse]).tolist()
        attempted = self._apply_functions(self._read(held), self._rows)
        self._put_stand_ins(attempted)
        end = self._end_of(attempted)
        if elements_of_rows is None:
            self.values = attempted.elements[:end]
        else:
            self.values = [attempted.elements[index] for index in elements_of_rows[:end]]
        """The element of each row, up to the step that an error ends."""
        self.error = attempted.ended[attempted.end] if attempted.ended else None
        """The error in place of the step after the elements; None if there is none."""

    def _end_of(self, attempted: Attempted) -> int:
        """Return the row before which an error ends the chunk: the first of its step. Without errors, all rows."""
        splits = self._plan.splits
        return splits[bisect_right(splits, self._firsts[attempted.end]) - 1] if attempted.ended else splits[-1]

    # Stages.

    def _read(self, held: HeldOf) -> Attempted:
        """Read the elements at once; or step by step, if fetching what one of them needs has failed."""
        records = self._stream.records
        numbers = self._rows.numbers
        stops = self._stream.max_failures is None
        attempted = Attempted.of_rows(len(numbers))
        if not len(numbers):
            return attempted
        fetched, error = attempt(held, slice(None))
        if error is None:
            return records.try_elements(numbers, fetched, stops=stops)
        for begin, end in pairwise(dict.fromkeys(self._plan.splits)):
            rows = range(bisect_left(self._firsts, begin), bisect_left(self._firsts, end))
            fetched, error = attempt(held, slice(begin, end))
            if error is not None:
                attempted.ended[rows.start] = error
            else:
                attempted.put(rows, records.try_elements(numbers[rows.start : rows.stop], fetched, stops=stops))
            if attempted.ended:
                break
        return attempted

    def _apply_functions(self, attempted: Attempted, rows: ElementRows) -> Attempted:
        """Return what all functions make of elements; see which leaves of the deciding one they pass on."""
        passing = [self._stream.stacker.passing(element) for element in self._deciding_in(attempted, rows)]
        for function in self._stream.maps:
            self._context.clock.enter("functions")
            attempted = _changed(
                attempted, rows, partial(function.call, self._context, lambda: self._stream.may_be_none)
            )
            if function.declared is not None:
                attempted = _changed(attempted, rows, partial(function.conform, function.declared))
                # The functions behind this one pass on leaves of the spec that it declares, not of the dataset's.
                passing = [function.declared.passing(element) for element in self._deciding_in(attempted, rows)]
            self._context.clock.enter("reading")
        for find_passed_on, element in zip(passing, self._deciding_in(attempted, rows), strict=False):
            self.passed_on = find_passed_on(element)
        return attempted

    def _deciding_in(self, attempted: Attempted, rows: ElementRows) -> list[Any]:
        """Return the deciding element in a list, which is empty if these rows do not have it, or it has failed."""
        if self._deciding is None:
            return []
        of_position = np.flatnonzero(rows.positions == self._deciding).tolist()
        return [attempted.elements[row] for row in of_position if row < attempted.end and row not in attempted.failed]

    def _put_stand_ins(self, attempted: Attempted) -> None:
        """Put the elements of other records in place of those that have failed."""
        failed = sorted(row for row in attempted.failed if row < attempted.end)
        limit = self._stream.max_failures
        if limit is not None and len(failed) > limit:
            splits = self._plan.splits
            step_end = splits[bisect_right(splits, self._firsts[failed[limit]])]
            listed = [self._failure(row, attempted.failed[row], -1) for row in failed if self._firsts[row] < step_end]
            attempted.ended[failed[limit]] = too_many(listed, limit)
        failures = list[Failure]()
        for row in failed:
            if self._firsts[row] >= self._end_of(attempted):
                break
            stand_in, error = self._context.attempt(self._stand_in, row, attempted.failed[row])
            if error is not None:
                attempted.ended[row] = error
                break
            attempted.elements[row], number = stand_in
            failures.append(self._failure(row, attempted.failed[row], number))
        self._context.failures += sorted(failures, key=lambda failure: failure.position)

    def _stand_in(self, row: int, error: BaseException) -> tuple[Any, int]:
        """Return the element that stands in for that of a row, and its record; raise if all candidates fail."""
        number = int(self._rows.numbers[row])
        position = int(self._rows.positions[row])
        stretch = next(self._stream.schedule.stretches(position))
        candidates = stand_ins(stretch.order, stretch.epoch, position - stretch.origin)
        # In the shape of its bucket, if there are buckets.
        records = self._stream.records.padded_as(number)
        tried = [number]
        for attempts, candidate in enumerate(candidates, 1):
            tried.append(candidate + stretch.first)
            rows = ElementRows(np.array(tried[-1:]), np.array([position]), attempts)
            attempted = self._apply_functions(records.try_elements(rows.numbers, stops=False), rows)
            if attempted.ended:
                raise attempted.ended.pop(0)
            if not attempted.failed:
                return attempted.elements[0], tried[-1]
            error = attempted.failed[0]
        raise no_stand_in_error(position, tried, error)

    def _failure(self, row: int, error: BaseException, stand_in: int) -> Failure:
        # Only errors of elements are replaced, which are no interrupts.
        element_error = cast(Exception, error)
        return failure_of(int(self._rows.numbers[row]), int(self._rows.positions[row]), element_error, stand_in)


def _changed(attempted: Attempted, rows: ElementRows, stage: Stage) -> Attempted:
    """Return what a stage makes of the elements that have not failed, with the errors so far."""
    if not attempted.failed and not attempted.ended:
        return stage(attempted.elements, rows)
    present = [row for row in range(attempted.end) if row not in attempted.failed]
    attempted.put(present, stage([attempted.elements[row] for row in present], rows.some(present)))
    return attempted
