"""Read the steps of a shard: its records, after the user's functions, as elements or stacked to batches.

What becomes of the plan of a chunk::

    no map()       Dataset.batches ────────────────────────────> batch ──┐
    map()          Dataset.try_elements ──> maps ──> stand-ins ──> batch ──> batch_maps ──> mask ──> convert
    no batches     Dataset.try_elements ──> maps ──> stand-ins ──> element ────────────────────────> convert

An *item* is what comes out: the batch of a step or, without batches, an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import DatasetRows, identity_of_records, takes_requests
from cachelayer.streams.order.orders import MOST_POSITIONS
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.reading.chunk_plan import (
    ChunkPlan,
    HeldOf,
    plan_chunk,
    plan_of,
    plan_of_first_row,
    read_in_place,
)
from cachelayer.streams.reading.failures import (
    Failure,
    ReadContext,
    attempt,
    clear_callers,
    too_many,
    warn_of_failure,
)
from cachelayer.streams.reading.functions import BatchMap, ElementMap, Learned, rows_of_batch, warning_of_global_random
from cachelayer.streams.schedule import Schedule, StepRange
from cachelayer.streams.state import state_of
from cachelayer.support.locks import cached_property

if TYPE_CHECKING:
    from cachelayer.streams.reading.elements import StreamElements


@dataclass(frozen=True)
class StepReader:
    """Reads the steps of one shard."""

    records: DatasetRows[Any]
    schedule: Schedule
    """Which records to read, and in which order."""
    maps: tuple[ElementMap, ...] = ()
    """Functions of elements, in the order in which they are called."""
    batch_maps: tuple[BatchMap, ...] = ()
    """Functions of batches, in the order in which they are called: first those of global batches."""
    learned: Learned = field(default_factory=Learned, compare=False, repr=False)
    convert: Callable[[Any, int], Any] | None = None
    """Given an item and the number of rows of its global batch (1 for an element), returns what to hand out; None to
    hand out items as they are."""
    reading: Schedule = field(init=False, repr=False, compare=False)
    """The schedule of what is read: for functions of global batches, the rows of all shards."""
    is_mapped: bool = field(init=False, repr=False, compare=False)
    """True if functions change what is handed out, so that the stream may have another spec than the records."""
    drawing: int = field(init=False, repr=False, compare=False)
    """The number of functions that take random numbers."""
    max_failures: int | None = field(init=False, repr=False, compare=False)
    """How many failed elements an iterator may replace by stand-ins; None to raise the first failure."""
    threads: int = field(init=False, repr=False, compare=False)
    """The number of threads that call functions of elements at once."""
    functions_have_threads: bool = field(init=False, repr=False, compare=False)
    """Whether all functions are called by threads of their own, so that two chunks may be read at once."""

    def __post_init__(self) -> None:
        functions: tuple[ElementMap | BatchMap, ...] = (*self.maps, *self.batch_maps)
        is_global = any(function.is_global for function in self.batch_maps)
        limits = [function.max_failures for function in self.maps if function.max_failures is not None]
        threads = [function.threads for function in self.maps]
        whole = replace(self.schedule, shard_index=0, shard_count=1, rows=None) if is_global else self.schedule
        vars(self).update(
            reading=whole,
            is_mapped=bool(functions),
            drawing=sum(function.generators is not None for function in functions),
            max_failures=min(limits, default=None),
            threads=max([1, *threads]),
            functions_have_threads=bool(threads) and not self.batch_maps and min(threads) > 1,
        )

    @classmethod
    def of(cls, records: DatasetRows[Any], schedule: Schedule) -> StepReader:
        """Return the reader of some records; erased ones are excluded if the records say so."""
        return cls(records, schedule).over(records)

    def over(self, records: DatasetRows[Any]) -> StepReader:
        """Return the reader of the same steps over other records."""
        excluded = records.origins.erased if records.info.excludes_erased else None
        if excluded is not None and not len(excluded):
            excluded = None
        if excluded is None and self.schedule.excluded is None:
            return replace(self, records=records)
        schedule = replace(self.schedule, excluded=excluded)
        if schedule.records >= MOST_POSITIONS:
            # Mixtures and samples have one epoch, which never ends, so they have no remainder otherwise.
            schedule = replace(schedule, remainder="keep")
        divides = schedule.batched or schedule.shard_count > 1
        if excluded is not None and divides and (schedule.drops or schedule.crosses):
            raise InvalidArgumentError(
                f"remainder={schedule.remainder!r} over {records.info.name}, of which erased records are left out, so "
                "that steps are shorter: pass remainder='keep' or 'pad'; or fetch it without erased='exclude', and let "
                "others stand in, with map(fn, on_error='replace')"
            )
        return replace(self, records=records, schedule=schedule)

    def positions_after(self, steps: StepRange) -> list[int]:
        """Return the position after each item of some steps, then that after the last step."""
        after = steps.after
        if self.schedule.batched or self.schedule.excluded is None:
            return after
        counts = np.diff(plan_of(self.schedule, steps).splits).tolist()
        return [*(position for position, count in zip(after, counts, strict=True) if count), after[-1]]

    @property
    def rows_per_step(self) -> int:
        """The number of rows that are read of a whole step."""
        return len(self.reading.rows_of(self.schedule.global_batch))

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the items, but for the user's functions, as JSON values: the records, their order, the steps."""
        digest, spec = identity_of_records(self.records)
        batch_maps = [[each.generators is not None, each.is_global] for each in self.batch_maps]
        return {
            "records": digest,
            "elements": spec,
            "stream": str(self.schedule),
            **self.schedule.order.past(MOST_POSITIONS),
            "maps": [[each.generators is not None, each.max_failures] for each in self.maps],
            **({"batch_maps": batch_maps} if any(map(any, batch_maps)) else {}),
        }

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's functions through which items go, in their order."""
        return (*(each.fn for each in self.maps), *(each.fn for each in self.batch_maps))

    def __identity__(self) -> Any:
        return self.facts, self.functions

    def with_schedule(self, **changes: Any) -> StepReader:
        """Return the reader of a stream whose :class:`Schedule` differs in some fields, which are taken as they are."""
        return replace(self, schedule=replace(self.schedule, **changes))

    def starting_at(self, position: int) -> StepReader:
        """Return the reader of a stream that begins at a position."""
        return self if position == self.schedule.start else self.with_schedule(start=position)

    def state(self, position: int) -> dict[str, Any]:
        """Return the state of a stream whose next step begins at a position.

        The first call takes a while if the records were chosen one by one: only then is their digest computed.
        """
        return state_of(self.records.origins.digests, self.records.info.name, self.schedule, position)

    def of_rows(self, rows: Callable[[int], Indices]) -> StepReader:
        """Return the reader of some rows of each global batch, for a process that holds part of a sharded array.

        ``rows`` returns the rows to read, in any order, of a global batch with so many. With remainder "pad" these are
        ``global_batch_size`` at every step, else the number of records in the step.
        """
        if not self.schedule.batched or self.schedule.shard_count > 1:
            raise InvalidArgumentError(
                "rows are those of a global batch: pass a global_batch_size and no shard to stream()"
            )
        return self.with_schedule(rows=rows)

    def item(self, step: StepRange, held: HeldOf = read_in_place) -> Any:
        """Return the batch of a step, with its mask if there is one; without batches, the element of this shard."""
        item, failures = self.item_and_failures(step, held)
        limit = self.max_failures
        if limit is not None and len(failures) > limit:
            raise too_many(failures, limit)
        if failures and not self.learned.has_warned:
            self.learned.has_warned = True
            warn_of_failure(failures[0], "Further ones in this process are not reported")
        return item

    def item_and_failures(self, step: StepRange, held: HeldOf = read_in_place) -> tuple[Any, tuple[Failure, ...]]:
        """Return the item of a step, and the failed elements that stand-ins replaced in it, without a warning."""
        context = ReadContext()
        items, error = self.read(step, context, held)
        if error is not None:
            clear_callers(error)
            try:
                raise error
            finally:
                # This frame is in the traceback of the error, and must not refer to it.
                del error
        return items[0], tuple(context.failures)

    def preparing(self, steps: StepRange, workers: int = 1) -> HeldOf:
        """Return what has stores prepare records of some steps, and of later ones, before they are read where they lie.

        Only a stream that reads whole epochs does this: copies of all shards on each of many hosts that share an epoch
        would multiply its bytes.

        So many ``workers`` take turns at the steps.
        """
        schedule = self.reading
        is_part = self.rows_per_step < schedule.global_batch
        if schedule.order.in_blocks or is_part or not takes_requests(self.records):
            return read_in_place

        def prepare(rows: slice) -> None:
            # Ever more sparsely, up to an epoch ahead.
            distances = (schedule.global_batch << power for power in range(64))
            begins = (steps.following + each for each in takewhile(lambda each: each < schedule.records, distances))
            plans = [plan_chunk(schedule, begin, 1) for begin in begins]
            these = plan_of(schedule, steps).numbers[rows]
            numbers = [these[:0], *(each.numbers for each in plans if each is not None)]
            later = self.records.needed(np.unique(np.concatenate(numbers)))
            for source, needed in self.records.needed(these).items():
                source.prepare(needed, later.get(source, needed[:0]), workers)

        return prepare

    def read(
        self, steps: StepRange, context: ReadContext, held: HeldOf = read_in_place
    ) -> tuple[list[Any], BaseException | None]:
        """Return the items of some steps, and the error in place of the step after them, if there is one."""
        items = list[Any]()
        context.clock.enter("reading")
        ended_by, error = context.attempt(self._append, items, steps, context, held)
        context.clock.enter("hand_over")
        return items, error or ended_by

    def _append(self, items: list[Any], steps: StepRange, context: ReadContext, held: HeldOf) -> BaseException | None:
        """Append the items of some steps to a list; an error is raised or returned in place of the step after them."""
        plan = plan_of(self.reading, steps)
        append = self._append_batches if self.schedule.batched else self._append_elements
        if self.learned.has_watched or not self.is_mapped:
            return append(items, plan, context, held)
        self.learned.has_watched = True
        with warning_of_global_random(draws=self.drawing > 0):
            return append(items, plan, context, held)

    @cached_property
    def _elements(self) -> StreamElements:
        from cachelayer.streams.reading.elements import StreamElements

        return StreamElements(self.records, self.schedule, self.maps, self.learned, self.max_failures)

    def _append_elements(
        self, items: list[Any], plan: ChunkPlan, context: ReadContext, held: HeldOf
    ) -> BaseException | None:
        elements = self._elements.of_chunk(plan, context, held)
        if self.convert is None:
            items.extend(elements.values)
        else:
            context.clock.enter("hand_over")
            items.extend(map(self.convert, elements.values, repeat(1)))
        return elements.error

    def _append_batches(
        self, items: list[Any], plan: ChunkPlan, context: ReadContext, held: HeldOf
    ) -> BaseException | None:
        elements = None
        if self.maps:
            elements = self._elements.of_chunk(plan, context, held, to_stack=True)
            batches = self._elements.batches(elements, plan, context)
        else:
            batches = self._batches(plan, held)
        for number, batch in enumerate(batches):
            items.append(self._finish(plan, number, batch, context))
        return None if elements is None else elements.error

    def _batches(self, plan: ChunkPlan, held: HeldOf) -> Iterator[Any]:
        """Yield the batch of records of each step.

        All are read at once; if that raises an error, one by one, so that the error comes at the step that it is of.
        """
        records = self.records
        filled = [0, *(end for begin, end in pairwise(plan.splits) if begin < end)]
        together = None
        if len(filled) > 2:
            together, _ = attempt(lambda: iter(records.batches(plan.numbers, filled, held(slice(None)))))
        for number, (begin, end) in enumerate(pairwise(plan.splits)):
            if begin == end:
                # This shard has no row of this step. Its empty batch has the shape of the first row, which another
                # shard has.
                first = plan_of_first_row(self.schedule, plan.steps[number]).numbers.item(0)
                yield records.padded_as(first).batch(plan.numbers[:0])
            elif together is None:
                yield records.batch(plan.numbers[begin:end], held(slice(begin, end)))
            else:
                yield next(together)

    # Functions of batches.

    def _finish(self, plan: ChunkPlan, number: int, batch: Any, context: ReadContext) -> Any:
        """Return what is handed out for a step: its batch after the functions of batches, with its mask."""
        size = plan.sizes[number]
        positions = plan.positions[plan.splits[number] : plan.splits[number + 1]]
        own_rows = None if self.reading is self.schedule else self.schedule.rows_of(size)
        for function in self.batch_maps:
            context.check()
            context.clock.enter("functions")
            if own_rows is not None and not function.is_global:
                batch = rows_of_batch(batch, own_rows, len(positions))
                positions = positions[own_rows]
                own_rows = None
            batch = function.call(batch, positions.item(0) if len(positions) else plan.steps.begins[number])
            context.clock.enter("reading")
        if own_rows is not None:
            batch = rows_of_batch(batch, own_rows, len(positions))
        item = (batch, self.schedule.rows_of(size) < size) if self.schedule.pads else batch
        if self.convert is None:
            return item
        context.check()
        context.clock.enter("hand_over")
        converted = self.convert(item, self.schedule.row_count(plan.sizes[number]))
        context.clock.enter("reading")
        return converted
