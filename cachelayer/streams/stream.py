"""Streams: records in an order, for one shard, from a position, with a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import boolean, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.protocols import RandomAccess, T
from cachelayer.streams.epochs import Epochs, Iterations, epoch_options
from cachelayer.streams.iterator import StatesIterator, StreamIterator
from cachelayer.streams.maps import ElementMap
from cachelayer.streams.pace import BLOCK_NBYTES, Pace
from cachelayer.streams.prefetch import Prefetcher
from cachelayer.streams.reads import Plan
from cachelayer.streams.state import StreamIdentity
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.steps import MOST_POSITIONS, Step
from cachelayer.streams.stream_options import StreamOptions
from cachelayer.user_warnings import warn

U = TypeVar("U")

# Elements that functions are applied to are read in so many at once at most.
_MAPPED_RECORDS = 128


class Stream(Generic[T]):
    """Records in an order, for one shard: iterate it as often as you like, or ask for the batch of any step.

    Made by :meth:`cachelayer.DataRef.stream`, where the arguments are explained.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        # Set by an iterator that came from the start to the end.
        self.iterated_through = False
        self._warned = False

    @property
    def options(self) -> StreamOptions:
        """What was asked for, checked."""
        return self._reader.options

    @property
    def source(self) -> RandomAccess[Any]:
        """The records."""
        return self._reader.records

    @property
    def is_mapped(self) -> bool:
        """Whether functions change what is handed out, so that the spec of the records is not that of the stream."""
        return bool(self._reader.maps or self._reader.batch_maps)

    @property
    def element_spec(self) -> Any:
        """The element spec of what is handed out; None if functions make that, and the last of them declares none."""
        if not self.is_mapped:
            return self.source.element_spec
        declared = None if self._reader.batch_maps else self._reader.maps[-1].declared
        return None if declared is None else declared.spec

    @overload
    def map(
        self, fn: Callable[[T], U], *, rng: Literal[False] = ..., threads: int = ..., element_spec: Any = ...
    ) -> Stream[U]: ...
    @overload
    def map(
        self,
        fn: Callable[[T, np.random.Generator], U],
        *,
        rng: Literal[True],
        threads: int = ...,
        element_spec: Any = ...,
    ) -> Stream[U]: ...
    def map(
        self, fn: Callable[..., Any], *, rng: bool = False, threads: int = 0, element_spec: Any = None
    ) -> Stream[Any]:
        """The same stream of what a function makes of each element, before elements are stacked to batches.

        Args:
            fn: a function of one element; with ``rng`` of an element and a :class:`numpy.random.Generator`. The
                generator is good until the function returns, and gives the same numbers to the same global position
                with the same seed: on any number of shards, in any thread, after any restore.
            rng: whether it takes random numbers; the stream needs a seed, also where it is not shuffled.
            threads: number of threads that call the function at once, for functions that release the GIL; 0 calls it in
                one at a time.
            element_spec: the structure of what it returns, with leaf specs, dtypes or objects with shape and dtype.
                Needed where shapes vary or something may be None: such leaves come as :class:`cachelayer.Ragged` and
                :class:`cachelayer.Nullable` in every batch, and what does not fit is an ``ElementError``. Without it, a
                leaf that the function passes on stays what it is in the dataset's batches, and one that it replaces is
                stacked, so it has one shape.

        Raises:
            InvalidArgumentError: where the stream has no seed for ``rng``, or batches were mapped already, or
                ``element_spec`` is none.
        """
        if self._reader.batch_maps:
            raise InvalidArgumentError("map() works on elements, map_batches() on batches of them: call map() first")
        if rng and self.options.order.seed is None:
            raise InvalidArgumentError("map(rng=True) needs a seed: pass seed=<an integer in [0, 2**64)> to stream()")
        drawing = sum(earlier.rng for earlier in self._reader.maps)
        declared = None if element_spec is None else self._reader.records.stacking(element_spec)
        added = ElementMap(_function(fn), boolean("rng", rng), integer("threads", threads, 0), drawing, declared)
        return Stream(replace(self._reader, maps=(*self._reader.maps, added), kinds={}))

    def map_batches(self, fn: Callable[[T], U]) -> Stream[U]:
        """The same stream of what a function makes of each batch.

        Args:
            fn: a function of one batch; with ``remainder="pad"`` the mask is not passed to it, and stays.

        Raises:
            InvalidArgumentError: where the stream has no batches.
        """
        if not self.options.batched:
            raise InvalidArgumentError(
                "map_batches() needs batches: pass a global_batch_size to stream(), or use map()"
            )
        return Stream(replace(self._reader, batch_maps=(*self._reader.batch_maps, _function(fn))))

    def of_rows(self, rows: Callable[[int], NDArray[np.int64]]) -> Stream[T]:
        """The same stream, of some rows of each global batch: what a process of a sharded array needs.

        Args:
            rows: the row numbers that are read of a global batch of so many rows, in any order; with remainder "pad"
                that is ``global_batch_size`` at every step, else the rows of the step.

        Raises:
            InvalidArgumentError: where the stream has no batches, or is that of one shard of several.
        """
        if not self.options.batched or self.options.steps.shard_count > 1:
            raise InvalidArgumentError(
                "rows are those of a global batch: pass a global_batch_size and no shard to stream()"
            )
        return Stream(replace(self._reader, rows=rows))

    def with_records(self, records: RandomAccess[Any]) -> Stream[Any]:
        """Return the stream of other records in the order of these: for adapters."""
        return Stream(replace(self._reader, records=records))

    def with_options(self, **changes: Any) -> Stream[T]:
        """The same stream with other options, which are taken as they are: for adapters."""
        return Stream(replace(self._reader, options=replace(self.options, **changes)))

    def __iter__(self) -> StreamIterator[T]:
        """An iterator from ``start`` on, independent of others: each one has the same order."""
        self._warn_once()
        return StreamIterator(self)

    def epoch(self, epoch: int) -> StreamIterator[T]:
        """An iterator over one whole epoch, whatever ``start`` and ``num_epochs`` are: epoch e of any run.

        Args:
            epoch: its number, from 0 on.
        """
        options = epoch_options(self.options, integer("epoch", epoch, 0))
        return iter(self.with_options(start=options.start, steps=options.steps))

    def epochs(self) -> Epochs[T]:
        """Iterators over one epoch after the other: ``for epoch in stream.epochs(): for batch in epoch: ...``.

        The first is that of ``start``, from there on. The last is that before epoch ``num_epochs``; if that is 1, as it
        is by default, or None, there is no last one. What is returned has ``get_state`` and ``set_state``.
        """
        return Epochs(self)

    def iteration(self, number: int) -> Stream[T]:
        """What the iteration of a number hands out, of a dataset that is made of this stream: for adapters.

        Iteration 0 is this stream, the next has as many epochs, those that follow, and so on. If all epochs have one
        order, or there is no end, each is this stream.
        """
        options = Iterations(self.options).options_of(number)
        return self.with_options(start=options.start, steps=options.steps)

    def iteration_at(self, position: int) -> int:
        """The number of the iteration that goes on at a position."""
        return Iterations(self.options).number_at(position)

    @property
    def iterations_differ(self) -> bool:
        """True if each iteration has epochs of its own."""
        return Iterations(self.options).differ

    def _warn_once(self) -> None:
        order, message = self.options.order, None
        if self.iterated_through and order.shuffle and order.reshuffle and self.options.steps.num_epochs == 1:
            message = (
                "this stream is iterated over again, and has the same order each time: iterate over stream.epoch(e), "
                "or over stream.epochs(), for another order in every epoch, or pass reshuffle=False"
            )
        elif order.seed is not None and not order.shuffle and not any(function.rng for function in self._reader.maps):
            message = f"seed {order.seed} changes nothing here: pass shuffle=True too, or map(fn, rng=True)"
        if message is not None and not self._warned:
            self._warned = True
            warn(message)

    # Steps can be asked for by number, but without batches they are more than what is handed out.
    __reversed__ = None

    def __len__(self) -> int:
        """What a fresh iterator of this shard hands out, from ``start``.

        Raises:
            TypeError: where the stream has no end.
        """
        options = self.options
        # Without batches a shard skips the steps that are too short to have an element for it.
        offset = 0 if options.batched else options.shard_index
        count = options.steps.count(options.start, offset)
        if count is None and options.steps.records >= MOST_POSITIONS:
            raise InvalidTypeError("a mixture has no end, and so no length: take as many batches as you need of it")
        if count is None:
            raise InvalidTypeError("an endless stream has no length: pass num_epochs=")
        return count

    def __getitem__(self, step: int) -> T:
        """The batch of a step, counted from ``start``; the element where there are no batches.

        Raises:
            RecordIndexError: where there is no such step, or it has no element for this shard.
        """
        found = self._step(step)
        if self.options.batched:
            return cast(T, self._reader.batch(found))
        elements = self._reader.elements(found)
        if len(elements) == 0:
            raise RecordIndexError(f"step {step} has no element for shard {self.options.shard_index}")
        return cast(T, elements[0])

    def records(self, step: int) -> NDArray[np.int64]:
        """The record numbers in the batch of a step, one a row: int64. Padding rows repeat the last one."""
        return self._reader.numbers(self._step(step))

    def with_state(self) -> StreamIterator[tuple[T, dict[str, Any]]]:
        """Pairs of a batch and the state after it, for consumers that hold back batches before they hand them out."""
        self._warn_once()
        return StatesIterator(self)

    def _step(self, number: int) -> Step:
        index = integer("step", number)
        total = self.options.steps.count(self.options.start)
        if index < 0:
            if total is None:
                raise RecordIndexError(f"step {index}: an endless stream has no last step")
            index += total
        found = None if index < 0 else self.options.steps.nth(self.options.start, index)
        if found is None:
            raise RecordIndexError(f"step {number}: the stream has {total} steps")
        return found

    def plan(self, position: int, most: int) -> Plan[T] | None:
        """What is read next from a position: so many batches, or elements, at most; None at the end."""
        steps = self.options.steps
        if not self.options.batched:
            return self._plan_of_elements(position, most)
        begin, found, after = position, list[Step](), list[int]()
        while len(found) < most and (step := steps.at(position)) is not None:
            position = steps.after(step)
            found.append(step)
            after.append(position)
        return Plan(begin, after, lambda out, reading: self._reader.batches(found, out, reading)) if found else None

    def _plan_of_elements(self, position: int, most: int) -> Plan[T] | None:
        steps = self.options.steps
        block = steps.block(position, most)
        if block is None:
            return None
        stride = steps.shard_count
        after = [*range(block.begin + stride, block.end, stride), steps.after(block)]
        return Plan(position, after, lambda out, reading: self._reader.block(block, out, reading))

    def prefetcher(self) -> Prefetcher[T]:
        """Read the stream in blocks.

        One is a batch, or an element. It becomes several where they are known to be small and quick, or turn out to be.
        """
        reader, records = self._reader, self._reader.records
        share = max(1, reader.share) if self.options.batched else 1
        together = min(records.read_together, _MAPPED_RECORDS if reader.maps else records.read_together)
        most = -(-max(1, min(together, BLOCK_NBYTES // max(1, records.record_nbytes))) // share)
        threads = max((function.threads for function in reader.maps), default=1)
        least = 1 if self.options.prefetch == 0 else -(-max(1, threads) // share)
        known = records.reading_cost == "stored" and not self.is_mapped
        pace = Pace(most if known else least, least, max(least, most))
        return Prefetcher(self.plan, self.options.prefetch, pace, helps=known)

    @property
    def identity(self) -> StreamIdentity:
        """What the positions of this stream count in."""
        return StreamIdentity(self._reader.records.digest, self.options.order)

    def __repr__(self) -> str:
        return f"Stream({self._reader.records!r}, {self.options!r})"


def _function(fn: Any) -> Any:
    if not callable(fn):
        raise InvalidTypeError(f"fn {fn!r}: pass a function")
    return fn
