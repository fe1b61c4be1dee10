"""The elements of some rows: their records after the user's functions, with others in place of those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.protocols import Failed, RecordReads, Stacker
from cachelayer.streams.order.orders import stand_ins
from cachelayer.streams.reading.failures import Failure, bare, failure_of, is_of_element, none_left, too_many
from cachelayer.streams.reading.maps import Collate, returned_none
from cachelayer.streams.reading.step_rows import Rows

if TYPE_CHECKING:
    from cachelayer.streams.reading.step_reader import StepReader

Indices = NDArray[np.int64]


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class Reading:
    """Reading some steps: whether anybody still waits for them, and the elements that others stand in for.

    Args:
        closed: set when nobody waits any longer; None if the consumer itself reads.
    """

    __slots__ = ("closed", "failures")

    def __init__(self, closed: Event | None = None) -> None:
        self.closed = closed
        self.failures: list[Failure] = []

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function."""
        if self.closed is not None and self.closed.is_set():
            raise Dropped


@dataclass(eq=False)
class Elements:
    """Makes elements of records.

    Args:
        reader: has the functions and the order.
        reading: gets the failures.
        others: reads any record.
        stacker: makes batches of elements; None if nothing is stacked.
    """

    reader: StepReader
    reading: Reading
    others: RecordReads[Any]
    stacker: Stacker | None = None
    _collators: list[Collate] = field(default_factory=list)
    # Whether the function that failed last replaces failures.
    _replaces: bool = False

    @property
    def collate(self) -> Collate | None:
        """What stacks the elements that were made so far; None if none was."""
        return self.stacker.joined(self._collators) if self.stacker is not None and self._collators else None

    def of(self, rows: Rows, source: RecordReads[Any]) -> Sequence[Any]:
        """Return the elements of some rows, whose records are read from a source: perhaps blocks that are at hand."""
        numbers, positions, _ = rows
        if len(numbers) == 0:
            return []
        limit = self.reader.max_failures
        try:
            return self._call_maps(source.__getitems__(numbers), numbers, positions, 0)
        except Exception as error:
            if limit is None or not is_of_element(error):
                raise
        # Once more one by one, to find those that fail.
        failed: Failed = {}
        read, elements = source.elements(numbers, failed), list[Any]()
        for row, element in enumerate(read):
            if row not in failed:
                element, error_of_map = self._try_maps(element, numbers[row], positions[row], 0)
                if error_of_map is not None:
                    failed[row] = error_of_map
            elements.append(element)
        # Rows of padding repeat a position, and count once.
        first = {int(positions[row]): row for row in sorted(failed, reverse=True)}
        if len(first) > limit:
            failures = [failure_of(int(numbers[row]), at, failed[row], -1) for at, row in sorted(first.items())]
            raise too_many(failures, limit)
        for row in sorted(failed):
            number, position = int(numbers[row]), int(positions[row])
            elements[row], stand_in = self._stand_in(number, position, failed[row])
            if first[position] == row:
                self.reading.failures.append(failure_of(number, position, failed[row], stand_in))
        self.reading.failures.sort(key=lambda failure: failure.position)
        return elements

    def _stand_in(self, number: int, position: int, error: Exception) -> tuple[Any, int]:
        """Return the element that stands in for a record that failed, and its own record number."""
        tried, options = [number], self.reader.options
        [places] = options.steps.places(position, position + 1)
        first, records = places.segment.first, places.segment.records
        order, place = options.order_of(places.segment), places.epoch * records + places.begin
        for attempt, candidate in enumerate(stand_ins(order, records, place), 1):
            tried.append(candidate + first)
            failed: Failed = {}
            read = self.others.elements(np.array(tried[-1:]), failed)
            element, failure = read[0], failed.get(0)
            if failure is None:
                element, failure = self._try_maps(element, tried[-1], position, attempt)
            if failure is None:
                return element, tried[-1]
            error = failure
        raise none_left(position, tried, error)

    def _try_maps(self, element: Any, number: int, position: int, attempt: int) -> tuple[Any, Exception | None]:
        """Return what all functions make of an element, or the error of the one that fails, if it replaces failures."""
        try:
            [out] = self._call_maps([element], np.array([number]), np.array([position]), attempt)
        except Exception as error:
            if not self._replaces:
                raise
            return None, bare(error)
        return out, None

    def _call_maps(self, elements: Sequence[Any], numbers: Indices, positions: Indices, attempt: int) -> Sequence[Any]:
        """Return what all functions make of elements."""
        reader, stacker = self.reader, self.stacker
        seed, self._replaces = reader.options.order.seed or 0, False
        collate = None if stacker is None else stacker.collator(elements, reader.kinds)
        for function in reader.maps:
            try:
                changed = function(elements, numbers, positions, seed, self.reading.check, attempt)
                if function.declared is None:
                    self._refuse_none(elements, changed, numbers, positions)
            except Exception as error:
                self._replaces = function.max_failures is not None and is_of_element(error)
                raise
            elements = changed
            if collate is not None and function.declared is not None:
                collate = function.declared.collator(elements, reader.kinds)
        if collate is not None:
            self._collators.append(collate)
        return elements

    def _refuse_none(self, before: Sequence[Any], after: Sequence[Any], numbers: Indices, positions: Indices) -> None:
        """Raise if a function returned None for an element. Only records that are wrapped are read to find it out."""
        is_nullable = getattr(self.reader.records.element_spec, "nullable", False)
        if is_nullable or not any(element is None for element in after):
            return
        for row, (given, changed) in enumerate(zip(before, after, strict=True)):
            if changed is None and given is not None:
                raise returned_none("map()", f"at global position {positions[row]}", int(numbers[row]))
