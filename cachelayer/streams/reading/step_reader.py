"""Read the steps of a shard: its records, after the user's functions, as elements or stacked to batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Any, cast

import numpy as np

from cachelayer.counting import Timed
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import Dataset, Stacker
from cachelayer.streams.order.orders import GROUP
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.reading.chunk_plan import ChunkPlan, plan_step
from cachelayer.streams.reading.failures import (
    Failure,
    ReadContext,
    attempt,
    clear_callers,
    is_of_element,
    too_many,
    warn_of_failure,
)
from cachelayer.streams.reading.map_run import HeldOf, MapRun, read_in_place
from cachelayer.streams.reading.maps import ElementMap, returned_none
from cachelayer.streams.state import state_of
from cachelayer.streams.steps import Step, Steps
from cachelayer.streams.stream_options import StreamOptions


@dataclass(eq=False)
class Learned:
    """What reading has shown of the functions of a stream; all readers of the stream share it.

    Args:
        passed_on: the specs of the leaves that functions pass on, by their paths in what they make: of those that
            batches of the dataset do not have as plain arrays. None as long as no batch has asked.
        has_warned: whether a failure that no iterator counts was warned of.
    """

    passed_on: Mapping[str, Any] | None = None
    has_warned: bool = False


@dataclass(frozen=True)
class StepReader:
    """Reads steps of one shard.

    Args:
        records: the records.
        options: which records to read, and in which order.
        maps: functions of elements, in the order in which they are called.
        batch_maps: functions of batches.
        learned: what reading has shown of the functions.
        convert: given an item and the number of rows of its global batch (1 for an element), returns what to hand out;
            None to hand it out.
    """

    records: Dataset[Any]
    options: StreamOptions
    maps: tuple[ElementMap, ...] = ()
    batch_maps: tuple[Callable[[Any], Any], ...] = ()
    learned: Learned = field(default_factory=Learned, compare=False, repr=False)
    convert: Callable[[Any, int], Any] | None = None

    @property
    def share(self) -> int:
        """The number of rows that are read of a whole step."""
        return len(self.options.rows_of(self.options.steps.global_batch))

    @property
    def max_failures(self) -> int | None:
        """The number of failures that others stand in for, of all elements of an iterator; None to raise each."""
        return min((function.max_failures for function in self.maps if function.max_failures is not None), default=None)

    @property
    def threads(self) -> int:
        """The number of threads that call functions of elements at once."""
        return max([1, *(function.threads for function in self.maps)])

    @property
    def is_mapped(self) -> bool:
        """True if functions change what is handed out, so that the stream may have another spec than the records."""
        return bool(self.maps or self.batch_maps)

    def with_steps(self, steps: Steps) -> StepReader:
        """Return the reader of other steps."""
        return replace(self, options=replace(self.options, steps=steps))

    def state(self, position: int) -> dict[str, Any]:
        """Return the state of a sampler whose next step begins at a position.

        The first takes a while if the records were chosen one by one, which have no digest before.
        """
        return state_of(self.records.digests, self.records.info.name, self.options, position)

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
        return replace(self, options=replace(self.options, rows=rows))

    def item(self, step: Step, held: HeldOf = read_in_place) -> Any:
        """Return the batch of a step, with its mask if there is one; or the element of this shard."""
        item, failures = self.item_and_failures(step, held)
        limit = self.max_failures
        if limit is not None and len(failures) > limit:
            raise too_many(failures, limit)
        if failures and not self.learned.has_warned:
            self.learned.has_warned = True
            warn_of_failure(failures[0], "Further ones in this process are not reported")
        return item

    def item_and_failures(self, step: Step, held: HeldOf = read_in_place) -> tuple[Any, tuple[Failure, ...]]:
        """Return what :meth:`item` does, and the elements that others stand in for, without a warning."""
        context = ReadContext()
        items, error = self.read(plan_step(self.options, step), context, held)
        if error is not None:
            clear_callers(error)
            try:
                raise error
            finally:
                # This frame is in the traceback of the error, and must not refer to it.
                del error
        return items[0], tuple(context.failures)

    def read(
        self, plan: ChunkPlan, context: ReadContext, held: HeldOf = read_in_place
    ) -> tuple[list[Any], BaseException | None]:
        """Return the items of the steps of a chunk, and the error that comes in place of the one after them, if any."""
        items = list[Any]()
        with Timed("decoding", is_outermost=True):
            _, error = context.attempt(self._read_into, items, plan, context, held)
        return items, error

    def _read_into(self, items: list[Any], plan: ChunkPlan, context: ReadContext, held: HeldOf) -> None:
        """Append the items of the steps of a chunk to a list, which has those before an error that is raised."""
        if not self.options.batched:
            run = MapRun(self, context)
            run.run(plan, held)
            if self.convert is None:
                items.extend(run.elements)
            else:
                with Timed("hand_over"):
                    items.extend(map(self.convert, run.elements, repeat(1)))
            run.raise_error()
            return
        batches = self._mapped_batches(plan, context, held) if self.maps else self._batches(plan, held)
        for number, batch in enumerate(batches):
            items.append(self._finished(plan, number, batch, context))

    def _batches(self, plan: ChunkPlan, held: HeldOf) -> Iterator[Any]:
        """Yield the batch of each step, before functions of batches and the mask; all are read at once, if possible."""
        filled = [plan.numbers[begin:end] for begin, end in pairwise(plan.splits) if begin < end]
        together, error = None, None
        if len(filled) > 1:
            together, error = attempt(lambda: iter(self.records.batches(filled, held(slice(None)))))
        for number, (begin, end) in enumerate(pairwise(plan.splits)):
            if begin == end:
                first = self._first_row(plan.steps[number]).numbers.item(0)
                yield self.records.padded_as(first).batch(plan.numbers[:0])
            elif together is None or error is not None:
                # By itself, to find the step that an error belongs to.
                yield self.records.batch(plan.numbers[begin:end], held(slice(begin, end)))
            else:
                yield next(together)

    def _first_row(self, step: Step) -> ChunkPlan:
        """Return the plan of the first row of a step, which may be that of another shard."""
        return plan_step(replace(self.options, rows=lambda _: np.arange(1)), step)

    # The user's functions.

    @cached_property
    def stacker(self) -> Stacker:
        """What makes batches of elements as they are read."""
        # Elements of all buckets have the same leaves of fixed shape, only other shapes.
        return self.records.padded_as(0).stacking()

    def _mapped_batches(self, plan: ChunkPlan, context: ReadContext, held: HeldOf) -> Iterator[Any]:
        """Yield the batch of each step, of elements that functions have changed."""
        run = MapRun(self, context, self._deciding_position)
        run.run(plan, held)
        for number, (begin, end) in enumerate(pairwise(plan.splits)):
            if end > len(run.elements):
                break
            elements, rows = run.elements[begin:end], end - begin
            if not rows:
                # A batch of no elements takes its structure from one of the step's elements, which another shard has:
                # there it counts if it fails.
                alone = MapRun(self, ReadContext())
                alone.run(self._first_row(plan.steps[number]), read_in_place)
                alone.raise_error()
                elements = alone.elements
            yield self.stacker.collate(elements, self._passed_on(run), rows)
        run.raise_error()

    @cached_property
    def _deciding_position(self) -> int | None:
        """The position of the first element of all, which decides what functions pass on; None if that is no matter."""
        declared = (function.declared for function in reversed(self.maps) if function.declared is not None)
        return None if next(declared, self.stacker).is_plain else self.options.steps.next_start(0)

    def _passed_on(self, run: MapRun) -> Mapping[str, Any]:
        """Return the specs of the leaves that functions pass on, by their paths in what they make.

        What they make of the first element of the stream decides it for all batches, whichever comes first here; if it
        fails, that of the next one. ``run`` may have it.
        """
        if self._deciding_position is None:
            return {}
        learned = self.learned
        if learned.passed_on is None:
            learned.passed_on = self._passed_on_at(self._deciding_position) if run.passed_on is None else run.passed_on
        return learned.passed_on

    def _passed_on_at(self, position: int) -> Mapping[str, Any]:
        """Return what functions pass on of the element at a position, or of the first behind it that does not fail."""
        for tried in range(position, position + GROUP):
            run = MapRun(self, ReadContext(), tried)
            run.run(self._first_row(Step(tried, tried + 1)), read_in_place)
            if run.error is None or not is_of_element(run.error):
                break
        run.raise_error()
        return cast(Mapping[str, Any], run.passed_on)

    def _finished(self, plan: ChunkPlan, number: int, batch: Any, context: ReadContext) -> Any:
        """Return what is handed out for a step: its batch after functions of batches, with its mask."""
        for function in self.batch_maps:
            context.check()
            with Timed("functions"):
                changed = function(batch)
            if changed is None and batch is not None:
                begin = plan.steps.begins[number]
                raise returned_none("map_batches()", f"of the batch at global position {begin}", None)
            batch = changed
        steps = self.options.steps
        item = (batch, plan.mask(number)) if steps.rule.masks else batch
        if self.convert is None:
            return item
        context.check()
        with Timed("hand_over"):
            return self.convert(item, steps.row_count(steps.size(plan.steps[number])))
