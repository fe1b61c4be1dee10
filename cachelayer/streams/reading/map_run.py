"""Run the functions of a stream over the elements of some steps, and find others for those that fail.

Each function sees each element once. What a function makes of it, or the error, is known by its row: so an error ends
the steps before the one that it belongs to, however many steps were read at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.counting import Timed
from cachelayer.protocols import Attempted, Failed, Held, Stacker
from cachelayer.streams.order.orders import stand_ins
from cachelayer.streams.reading.chunk_plan import ChunkPlan
from cachelayer.streams.reading.failures import Failure, ReadContext, attempt, failure_of, no_stand_in_error, too_many
from cachelayer.streams.reading.maps import ElementMap

if TYPE_CHECKING:
    from cachelayer.streams.reading.step_reader import StepReader

Indices = NDArray[np.int64]
# Returns the records of some rows that were fetched; None if they are read where they lie.
HeldOf = Callable[[slice], Held | None]


def read_in_place(_: slice) -> None:
    """Return what is held of rows that nobody has fetched."""


class MapRun:
    """The elements of some steps in a row, after the functions of the stream.

    Args:
        reader: has the records, the functions and the order.
        context: gets the failures.
        deciding: the position of the element that shows what functions pass on; None if nobody asks.

    Attributes:
        elements: the elements by row, up to the step that an error ends.
        error: that error; None if there is none.
        passed_on: the specs of the leaves that functions pass on; None if the element that shows it is not here.
    """

    def __init__(self, reader: StepReader, context: ReadContext, deciding: int | None = None) -> None:
        self.elements: list[Any] = []
        self.error: BaseException | None = None
        self.passed_on: Mapping[str, Any] | None = None
        self._deciding = -1 if deciding is None else deciding
        self._reader = reader
        self._context = context

    def run(self, plan: ChunkPlan, held: HeldOf) -> None:
        """Make the elements of the rows of a chunk.

        Args:
            plan: the plan of the chunk.
            held: returns the records of some of the rows that were fetched.
        """
        kept, place_of = self._without_repeats(plan.positions)
        numbers, positions = plan.numbers[kept], plan.positions[kept]
        attempted = self._read(plan, kept, held) if len(numbers) else ([], {})
        values, failed = self._through(attempted, numbers, positions)
        if not failed and place_of is kept:
            self.elements = values
            return
        if len(values) < len(numbers):
            self._end_before(plan, int(kept[len(values)]), failed.pop(len(values)))
        self._replace(plan, kept, values, failed)
        end = len(plan.numbers) if self.error is None else self._end
        self.elements = [values[place] for place in place_of[:end].tolist()]

    def raise_error(self) -> None:
        """Raise the error that came in place of the step after the elements, if there is one."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                # This frame is in the traceback of the error, and must not refer to it.
                del error

    def _read(self, plan: ChunkPlan, kept: Indices, held: HeldOf) -> Attempted:
        """Read the elements of all rows that are kept at once, or step by step if what they need has not come."""
        numbers, stops = plan.numbers[kept], self._reader.max_failures is None
        found, error = attempt(held, slice(None))
        if error is None:
            return self._reader.records.try_elements(numbers, found, stops=stops)
        values, failed = list[Any](), Failed()
        for begin, end in pairwise(plan.splits):
            first, stop = kept.searchsorted([begin, end]).tolist()
            found, error = attempt(held, slice(begin, end))
            if error is not None:
                return values, failed | {first: error}
            made, errors = self._reader.records.try_elements(numbers[first:stop], found, stops=stops)
            failed |= {first + row: each for row, each in errors.items()}
            values += made
            if len(values) < stop:
                break
        return values, failed

    def _without_repeats(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the rows with different positions, and for each row which of these it has, as some fill up a step."""
        every = np.arange(len(positions))
        options = self._reader.options
        if options.steps.rule.fill is None and options.rows is None:
            return every, every
        _, firsts, inverse = np.unique(positions, return_index=True, return_inverse=True)
        kept = np.sort(firsts)
        return kept, kept.searchsorted(firsts[inverse])

    def _end_before(self, plan: ChunkPlan, row: int, error: BaseException | None) -> None:
        """Have an error come in place of the step that has a row."""
        self._end = plan.splits[bisect_right(plan.splits, row) - 1]
        self.error = error

    def _replace(self, plan: ChunkPlan, kept: Indices, values: list[Any], failed: Failed) -> None:
        """Put other elements in place of those that have failed."""
        limit, failures = self._reader.max_failures, list[Failure]()
        at = {int(kept[place]): place for place in sorted(failed)}
        if limit is not None and len(at) > limit:
            step = bisect_right(plan.splits, sorted(at)[limit])
            listed = [row for row in at if row < plan.splits[step]]
            every = [_failure(plan, row, failed[at[row]], -1) for row in listed]
            self._end_before(plan, listed[-1], too_many(every, limit))
        for row, place in at.items():
            if self.error is not None and row >= self._end:
                break
            number, position = int(plan.numbers[row]), int(plan.positions[row])
            found, error = self._context.attempt(self._stand_in, number, position, failed[place])
            if error is not None:
                self._end_before(plan, row, error)
                break
            values[place], stand_in = found
            failures.append(_failure(plan, row, failed[place], stand_in))
        self._context.failures += sorted(failures, key=lambda failure: failure.position)

    def _stand_in(self, number: int, position: int, error: BaseException) -> tuple[Any, int]:
        """Return the element that stands in for a record that failed, and its own record number."""
        tried, options = [number], self._reader.options
        [places] = options.steps.by_epoch(position, position + 1)
        first, records = places.phase.first, places.phase.records
        order, place = options.order_of(places.phase), places.epoch * records + places.begin
        others = self._reader.records.padded_as(number)
        for turn, candidate in enumerate(stand_ins(order, records, place), 1):
            tried.append(candidate + first)
            alone = np.array(tried[-1:])
            read = others.try_elements(alone, stops=False)
            values, failed = self._through(read, alone, np.array([position]), turn)
            if not failed:
                return values[0], tried[-1]
            if not values:
                # Nothing stands in for this one.
                raise failed.pop(0)
            error = failed[0]
        raise no_stand_in_error(position, tried, error)

    def _through(self, attempted: Attempted, numbers: Indices, positions: Indices, tried: int = 0) -> Attempted:
        """Return what all functions make of elements that were read."""
        row = next(iter(np.flatnonzero(positions == self._deciding).tolist()), None)
        passed_on = _passing(self._reader.stacker, attempted, row)
        for function in self._reader.maps:

            def apply(given: Sequence[Any], rows: Indices | slice, function: ElementMap = function) -> Attempted:
                return function.apply(given, numbers[rows], positions[rows], tried, self._context, self._is_nullable)

            with Timed("functions"):
                attempted = _after(attempted, apply)
            if function.declared is not None:
                passed_on = _passing(function.declared, attempted, row)
        for element in _element_at(attempted, row):
            if passed_on is not None:
                self.passed_on = passed_on(element)
        return attempted

    def _is_nullable(self) -> bool:
        """Return whether elements may be None. Only records that are wrapped are read to find it out."""
        return bool(getattr(self._reader.records.element_spec, "nullable", False))


def _element_at(attempted: Attempted, row: int | None) -> list[Any]:
    """Return the element of a row in a list, which is empty if the row has none."""
    values, failed = attempted
    return [] if row is None or row in failed else values[row : row + 1]


def _passing(stacker: Stacker, attempted: Attempted, row: int | None) -> Callable[[Any], Mapping[str, Any]] | None:
    """Return what finds the leaves that functions pass on of the element of a row; None if there is none."""
    elements = _element_at(attempted, row)
    return stacker.passing(elements[0]) if elements else None


def _present(attempted: Attempted) -> list[Any]:
    """Return the elements that have not failed."""
    values, failed = attempted
    return [value for row, value in enumerate(values) if row not in failed] if failed else values


def _after(before: Attempted, apply: Callable[[Sequence[Any], Indices | slice], Attempted]) -> Attempted:
    """Return what a function makes of those elements that have not failed before.

    Args:
        before: the elements.
        apply: given elements and their rows, returns what becomes of each.
    """
    values, failed = before
    if not failed:
        return apply(values, slice(len(values))) if values else before
    places = [row for row in range(len(values)) if row not in failed]
    if not places:
        return before
    made, errors = apply(_present(before), np.array(places, np.int64))
    end = places[len(made)] if len(made) < len(places) else len(values)
    out: list[Any] = [None] * end
    for row, value in zip(places, made, strict=False):
        out[row] = value
    every = {**failed, **{places[row]: error for row, error in errors.items()}}
    return out, {row: error for row, error in every.items() if row <= end}


def _failure(plan: ChunkPlan, row: int, error: BaseException, stand_in: int) -> Failure:
    # Only errors of elements are replaced.
    return failure_of(int(plan.numbers[row]), int(plan.positions[row]), cast(Exception, error), stand_in)
