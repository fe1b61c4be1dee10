"""Streams: records in an order, for one shard, from a position, with a state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import boolean, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError, StateError
from cachelayer.protocols import RandomAccess, T
from cachelayer.sequential.checkpoint import load_state, save_state
from cachelayer.sequential.maps import ElementMap
from cachelayer.sequential.options import StreamOptions
from cachelayer.sequential.prefetch import Chunk, Prefetcher
from cachelayer.sequential.state import StreamIdentity
from cachelayer.sequential.step_reader import StepReader
from cachelayer.sequential.steps import Step

U = TypeVar("U")

# What is read at once at most, where batches are smaller or there are none.
_CHUNK_NBYTES = 4 << 20
# Of elements that functions are applied to, which may take long.
_MAPPED_RECORDS = 128


class Stream(Generic[T]):
    """Records in an order, for one shard: iterate it as often as you like, or ask for the batch of any step.

    Made by :meth:`cachelayer.DataRef.stream`, where the arguments are explained.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        records = reader.records
        most = min(records.read_together, _MAPPED_RECORDS if reader.maps else records.read_together)
        self._chunk_records = min(most, max(1, _CHUNK_NBYTES // max(1, records.record_nbytes)))

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
        """An iterator from ``start`` on, independent of others."""
        return StreamIterator(self)

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

    def with_state(self) -> Iterator[tuple[T, dict[str, Any]]]:
        """Pairs of a batch and the state after it, for consumers that hold back batches before they hand them out."""
        iterator = iter(self)
        for item in iterator:
            yield item, iterator.get_state()

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

    def plan(self, position: int) -> Chunk | None:
        """What is read next from a position: some steps at once, so that small batches cost little; None at the end."""
        steps = self.options.steps
        if self.options.batched:
            share = max(1, self._reader.share)
            found: list[Step] = []
            while len(found) * share < self._chunk_records and (step := steps.at(position)) is not None:
                position = steps.after(step)
                found.append(step)
            if not found:
                return None
            after = [steps.after(step) for step in found]
            return Chunk(after, lambda: self._reader.batches(found))
        block = steps.block(position, self._chunk_records)
        if block is None:
            return None
        stride = steps.shard_count
        after = [*range(block.begin + stride, block.end, stride), steps.after(block)]
        return Chunk(after, lambda: self._reader.block(block))

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


class StreamIterator(Iterator[T]):
    """Hands out a stream, and knows where it is. For one thread at a time."""

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream
        self._identity = stream.identity
        self._steps = stream.options.steps
        self._writes = stream.options.shard_index == 0
        self._prefetcher = Prefetcher(stream.plan, stream.options.prefetch)
        self._go_to(stream.options.start)

    def _go_to(self, position: int) -> None:
        self._position = self._steps.next_start(position)
        self._ready: Iterator[tuple[T, int]] = iter(())
        self._failure: BaseException | None = None
        self._chunk_end = self._position
        self._prefetcher.go_to(self._position)

    def __iter__(self) -> StreamIterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            ready = next(self._ready, None)
            if ready is not None:
                item, self._position = ready
                return item
            if self._failure is not None:
                raise self._taken_failure()
            if not self._next_chunk():
                raise StopIteration

    # Apart from __next__, whose frame is in the traceback of the error and must not hold it.
    def _next_chunk(self) -> bool:
        """Get the next chunk ready; False at the end."""
        # A shard that has no element in the last step of an epoch passes it over here.
        self._position = self._chunk_end
        loaded = self._prefetcher.next_chunk()
        if loaded is None:
            return False
        chunk, items, self._failure = loaded
        self._chunk_end = chunk.end
        self._ready = zip(items, chunk.after, strict=False)
        return True

    def _taken_failure(self) -> BaseException:
        """The error that ended a chunk early; what it concerns is read again on the next call."""
        failure = cast(BaseException, self._failure)
        self._go_to(self._position)
        return failure

    def __reduce__(self) -> tuple[Callable[..., StreamIterator[T]], tuple[Stream[T], dict[str, Any]]]:
        return _restored, (self._stream, self.get_state())

    @property
    def position(self) -> int:
        """The global position after what was handed out: ``stream(start=position)`` goes on there."""
        return self._position

    def get_state(self) -> dict[str, Any]:
        """The state after what was handed out: small, JSON, the same on every shard after the same number of steps."""
        return self._identity.state(self._position)

    def set_state(self, state: Any) -> None:
        """Go on where an iterator of the same records in the same order was, on any number of shards.

        Args:
            state: what ``get_state`` gave, or its JSON.

        Raises:
            StateError: where it belongs to other records or another order, or lies past the end.
        """
        position = self._identity.position(state)
        end = self._steps.end
        if end is not None and position > end:
            raise StateError(
                f"position {position} of the state is past the end of this stream, {end}: pass a larger num_epochs"
            )
        self._go_to(position)

    async def save(self, directory: Any) -> Awaitable[None]:
        """Save the state beside a model: Orbax calls this. The first shard writes ``state.json``.

        Args:
            directory: a path, or one that Orbax is about to make.
        """
        return await save_state(self.get_state(), directory, writes=self._writes)

    async def load(self, directory: Any) -> Awaitable[None]:
        """Go on from a state that :meth:`save` wrote, on any number of shards: Orbax calls this.

        Raises:
            StateError: where there is none, or it belongs to other records or another order.
        """
        return await load_state(directory, self.set_state)


def _restored(stream: Stream[T], state: dict[str, Any]) -> StreamIterator[T]:
    """A copy of an iterator, which reads ahead by itself."""
    iterator = StreamIterator(stream)
    iterator.set_state(state)
    return iterator
