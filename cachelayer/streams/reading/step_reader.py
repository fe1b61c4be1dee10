"""Read the steps of a shard: its records, after the user's functions, as elements or stacked to batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StateError
from cachelayer.locks import cached_property
from cachelayer.protocols import PaddedRecords, RandomAccess, RecordReads, Stacker, has_records, records_of
from cachelayer.streams.order.buckets import BucketOrder
from cachelayer.streams.reading.context import ReadContext
from cachelayer.streams.reading.failures import Failure, attempt, clear_callers, too_many
from cachelayer.streams.reading.map_run import MapRun
from cachelayer.streams.reading.maps import Collate, ElementMap, returned_none
from cachelayer.streams.reading.step_rows import Rows, StepRows
from cachelayer.streams.state import StreamIdentity
from cachelayer.streams.steps import Step, Steps
from cachelayer.streams.stream_options import StreamOptions, order_over

Indices = NDArray[np.int64]


class FetchedRows(Protocol):
    """The rows of some steps, whose records are fetched together or on the way."""

    def reads(self, rows: slice, numbers: Indices, /) -> RecordReads[Any]:
        """Wait for some of these rows, and return what reads their records."""


@dataclass(frozen=True)
class StepReader:
    """Reads steps of one shard.

    Args:
        records: the records.
        options: which records to read, and in which order.
        maps: functions of elements, in the order in which they are called.
        batch_maps: functions of batches.
        rows: given the number of rows of a global batch, returns those to read; None for those of the shard.
        kinds: for each path of a leaf, whether functions pass it on unchanged; filled in by the first batch.
        warned_in: the processes that were warned of a failure that no iterator counts.
        buckets: for each bucket, the records padded to its bound; empty if there are no buckets.
        convert: given an item and the number of rows of its global batch (1 for an element), returns what to hand out;
            None to hand it out.
    """

    records: RandomAccess[Any]
    options: StreamOptions
    maps: tuple[ElementMap, ...] = ()
    batch_maps: tuple[Callable[[Any], Any], ...] = ()
    rows: Callable[[int], Indices] | None = None
    kinds: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    warned_in: set[int] = field(default_factory=set, compare=False, repr=False)
    buckets: Sequence[PaddedRecords[Any]] = ()
    convert: Callable[[Any, int], Any] | None = None

    @property
    def identity(self) -> StreamIdentity:
        """The records and the order that positions of the stream refer to."""
        records = self.records
        order, steps = self.options.order, self.options.steps
        return StreamIdentity(records.rows_digest, order, steps, records.original_digest, records.facts.name)

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

    def with_steps(self, steps: Steps) -> StepReader:
        """Return the reader of other steps."""
        return replace(self, options=replace(self.options, steps=steps))

    def restored(self, state: Any) -> tuple[StepReader, int]:
        """Return the reader that goes on from a state, with the steps of the state, and its position.

        Raises:
            StateError: if it belongs to other records or another order, or lies past the end.
        """
        restored, position = self.identity.restored(state)
        steps = restored.steps
        for segment in steps.earlier:
            if self.records.prefix_digest(segment.first + segment.records) != segment.digest:
                raise StateError(
                    f"the state has advanced from records with the digest {segment.digest!r}, with which these do not "
                    "begin: restore it over the version that advance_to() was given"
                )
        if steps.last_state is not None and position > steps.last_state:
            raise StateError(
                f"position {position} of the state is past the end of this stream, {steps.end}: set it on "
                "stream.epochs(), or pass a larger num_epochs, which a mixture does not have"
            )
        return replace(self, options=replace(self.options, order=restored.order, steps=steps)), position

    def advanced(self, newer: Any, position: int) -> StepReader:
        """Return the reader that goes on over a newer version from the end of the epoch that a position lies in."""
        if not has_records(newer):
            raise InvalidTypeError(f"advance_to takes a DataRef of a newer version, not a {type(newer).__name__}")
        records, old = records_of(newer), self.records
        if records.rows_digest == old.rows_digest:
            return self
        if self.buckets or len(old) == 0 or records.prefix_digest(len(old)) != old.rows_digest:
            raise InvalidArgumentError(
                f"advance_to({newer!r}): it does not begin with the {len(old)} records of this stream, of digest "
                f"{old.rows_digest!r}: pass the whole version that append() made of them, for a stream over a whole "
                "version without buckets or mixing"
            )
        order = order_over(self.options.order, len(records))
        steps = self.options.steps.advanced(position, len(records), old.rows_digest, records.rows_digest)
        return replace(self, records=records, options=replace(self.options, order=order, steps=steps))

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

    def item(self, step: Step, fetched: FetchedRows | None = None) -> Any:
        """Return the batch of a step, with its mask if there is one; or the element of this shard."""
        item, failures = self.item_and_failures(step, fetched)
        limit = self.max_failures
        if limit is not None and len(failures) > limit:
            raise too_many(failures, limit)
        if failures and os.getpid() not in self.warned_in:
            self.warned_in.add(os.getpid())
            failures[0].warn("Further ones in this process are not reported")
        return item

    def item_and_failures(self, step: Step, fetched: FetchedRows | None = None) -> tuple[Any, tuple[Failure, ...]]:
        """Return what :meth:`item` does, and the elements that others stand in for, without a warning."""
        context = ReadContext()
        items, error = self.read(step, context, fetched)
        if error is not None:
            clear_callers(error)
            try:
                raise error
            finally:
                # This frame is in the traceback of the error, and must not refer to it.
                del error
        return items[0], tuple(context.failures)

    def read(
        self, steps: Step, context: ReadContext, fetched: FetchedRows | None = None
    ) -> tuple[list[Any], BaseException | None]:
        """Return the items of some steps in a row, and the error that comes in place of the one after them, if any.

        An error of the first of the steps may be raised.
        """
        rows, items = self.read_rows.of(steps), list[Any]()
        if not self.options.batched:
            run = MapRun(self, context, self.records)
            run.run(rows, self._source(rows, fetched))
            if self.convert is None:
                return run.elements, run.error
            for element in run.elements:
                item, error = context.attempt(self.convert, element, 1)
                if error is not None:
                    return items, error
                items.append(item)
            return items, run.error
        single = list(self.options.steps.single(steps))
        if self.maps and self.buckets and len(single) > 1:
            # Functions get the elements of one bucket.
            for step in single:
                more, error = self.read(step, context, fetched)
                items += more
                if error is not None:
                    return items, error
            return items, None
        batches = self._batches(steps, rows, context, fetched)
        for step in single:
            item, error = context.attempt(self._finished, step, batches, context)
            if error is not None:
                return items, error
            items.append(item)
        return items, None

    def _source(self, rows: Rows, fetched: FetchedRows | None) -> Callable[[slice], RecordReads[Any]]:
        """Return a function that returns what reads the records of some of the rows."""
        return lambda part: self.records if fetched is None else fetched.reads(part, rows.numbers[part])

    def _batches(self, steps: Step, rows: Rows, context: ReadContext, fetched: FetchedRows | None) -> Iterator[Any]:
        """Return the batch of each step, before functions of batches and the mask. An error comes in its place."""
        source = self._source(rows, fetched)
        if self.maps:
            return self._mapped_batches(steps, rows, context, source)
        if not self.buckets:
            return self._plain_batches(rows, source)
        single = self.options.steps.single(steps)
        every = zip(single, rows.parts, self._plain_batches(rows, source), strict=True)
        return (self._padded(step).padded(rows.numbers[part], batch) for step, part, batch in every)

    def _plain_batches(self, rows: Rows, source: Callable[[slice], RecordReads[Any]]) -> Iterator[Any]:
        """Return the batch of each step, read at once if that works."""
        parts = [rows.numbers[part] for part in rows.parts]
        if len(parts) > 1:
            batches, error = attempt(lambda: iter(source(slice(None)).read_batches(parts)))
            if error is None:
                return cast("Iterator[Any]", batches)
        # Once more one by one, to find the step that the error belongs to.
        return (source(part).read(rows.numbers[part]) for part in rows.parts)

    def _padded(self, step: Step) -> PaddedRecords[Any]:
        """Return the records padded as those of a step are."""
        [places] = self.options.steps.places(step.begin, step.end)
        order = cast(BucketOrder, self.options.order)
        return self.buckets[order.bucket_at(places.epoch, places.begin)]

    # The user's functions.

    @cached_property
    def _stacker(self) -> Stacker:
        # Elements of all buckets have the same leaves of fixed shape, only other shapes.
        return (self.buckets[0] if self.buckets else self.records).stacking()

    def _mapped_batches(
        self, steps: Step, rows: Rows, context: ReadContext, source: Callable[[slice], RecordReads[Any]]
    ) -> Iterator[Any]:
        """Yield the batch of each of some steps, of elements that functions have changed."""
        others: RecordReads[Any] = self.records
        if self.buckets:
            others = self._padded(steps)
            source = lambda _: others  # noqa: E731
        run = MapRun(self, context, others, self._stacker)
        run.run(rows, source)
        collate, elements = run.collate, run.elements
        for step, part in zip(self.options.steps.single(steps), rows.parts, strict=True):
            if part.stop > len(elements):
                break
            if collate is None or part.start == part.stop:
                yield self._empty(step, others)
            else:
                yield collate(elements[part])
        run.raise_error()

    def _empty(self, step: Step, others: RecordReads[Any]) -> Any:
        """Return a batch of no elements, which takes its structure from one of the step's elements."""
        # Another shard counts the element if it fails.
        run = MapRun(self, ReadContext(), others, self._stacker)
        run.run(StepRows(self.options, lambda _: np.arange(1)).of(step), lambda _: others)
        run.raise_error()
        return cast(Collate, run.collate)(run.elements, 0)

    def _finished(self, step: Step, batches: Iterator[Any], context: ReadContext) -> Any:
        """Return what is handed out: a batch after functions of batches, with its mask."""
        batch = next(batches)
        for function in self.batch_maps:
            context.check()
            changed = function(batch)
            if changed is None and batch is not None:
                raise returned_none("map_batches()", f"of the batch at global position {step.begin}", None)
            batch = changed
        steps = self.options.steps
        item = (batch, self.read_rows.mask(step)) if steps.pads else batch
        if self.convert is None:
            return item
        context.check()
        return self.convert(item, steps.rows(steps.size(step)))
