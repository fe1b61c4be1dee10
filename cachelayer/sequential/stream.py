"""Streams: records in an order, for one shard, from a position, with a state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import boolean, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError, StateError
from cachelayer.protocols import RandomAccess, T
from cachelayer.sequential.block import Block, Plan
from cachelayer.sequential.checkpoint import load_state, save_state
from cachelayer.sequential.maps import ElementMap
from cachelayer.sequential.options import StreamOptions
from cachelayer.sequential.pace import BLOCK_NBYTES, Pace
from cachelayer.sequential.prefetch import Prefetcher
from cachelayer.sequential.state import StreamIdentity
from cachelayer.sequential.step_reader import StepReader
from cachelayer.sequential.steps import Step

U = TypeVar("U")

# Elements that functions are applied to are read in so many at once at most.
_MAPPED_RECORDS = 128


class Stream(Generic[T]):
    """Records in an order, for one shard: iterate it as often as you like, or ask for the batch of any step.

    Made by :meth:`cachelayer.DataRef.stream`, where the arguments are explained.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader

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
    def map(self, fn: Callable[[T], U], *, rng: Literal[False] = ..., threads: int = ...) -> Stream[U]: ...
    @overload
    def map(
        self, fn: Callable[[T, np.random.Generator], U], *, rng: Literal[True], threads: int = ...
    ) -> Stream[U]: ...
    def map(self, fn: Callable[..., Any], *, rng: bool = False, threads: int = 0) -> Stream[Any]:
        """The same stream of what a function makes of each element, before elements are stacked to batches.

        Args:
            fn: a function of one element; with ``rng`` of an element and a :class:`numpy.random.Generator`. The
                generator is good until the function returns, and gives the same numbers to the same global position
                with the same seed: on any number of shards, in any thread, after any restore.
            rng: whether it takes random numbers; the stream needs a seed, also where it is not shuffled.
            threads: number of threads that call the function at once, for functions that release the GIL; 0 calls it in
                one at a time.

        Raises:
            InvalidArgumentError: where the stream has no seed for ``rng``, or batches were mapped already.
        """
        if self._reader.batch_maps:
            raise InvalidArgumentError("map() works on elements, map_batches() on batches of them: call map() first")
        if rng and self.options.order.seed is None:
            raise InvalidArgumentError("map(rng=True) needs a seed: pass seed=<an integer in [0, 2**64)> to stream()")
        drawing = sum(earlier.rng for earlier in self._reader.maps)
        added = ElementMap(_function(fn), boolean("rng", rng), integer("threads", threads, 0), drawing)
        return Stream(replace(self._reader, maps=(*self._reader.maps, added)))

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

    def with_state(self) -> StreamIterator[tuple[T, dict[str, Any]]]:
        """Pairs of a batch and the state after it, for consumers that hold back batches before they hand them out."""
        return _StatesIterator(self)

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


# Called, it says that there is no more.
_END: Callable[[], Any] = iter(()).__next__


class StreamIterator(Iterator[T]):
    """Hands out a stream, and knows where it is. For one thread at a time.

    Position and items cannot come apart: if ``next()`` raises, whatever and whenever, nothing was handed out, and the
    next call hands out what comes after the last item that was. A signal handler may raise at any moment.
    """

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream
        self._identity = stream.identity
        self._steps = stream.options.steps
        self._writes = stream.options.shard_index == 0
        self._prefetcher = stream.prefetcher()
        # All that changes: replaced as a whole, by one assignment.
        self._block: Block[T] = Block(self._steps.next_start(stream.options.start))

    def __iter__(self) -> StreamIterator[T]:
        return self

    if TYPE_CHECKING:

        def __next__(self) -> T: ...

    else:

        @property
        def __next__(self) -> Callable[[], T]:
            """What hands out the next item.

            ``next()`` calls it in C: no bytecode comes between the moment when the item leaves its block and the
            caller, and so no signal handler.
            """
            while not self._block.items:
                if self._block.failure is not None:
                    raise self._taken_failure()
                if not self._follow(self._block):
                    return _END
            return self._block.items.popleft

    # Apart from __next__, whose frame is in the traceback of the error and must not hold it.
    def _follow(self, block: Block[T]) -> bool:
        """Get the block after an exhausted one ready; False at the end."""
        # A shard that has no element in the last step of an epoch passes it over here.
        found = self._prefetcher.block(block.end)
        following = Block[T](block.end) if found is None else self._shown(found)
        # Unless another thread was quicker.
        if self._block is block:
            self._block = following
        return found is not None

    def _shown(self, block: Block[Any]) -> Block[T]:
        """A block as it is handed out."""
        return block

    def _taken_failure(self) -> BaseException:
        """The error that ended a block early; what it concerns is read again on the next call."""
        failure = cast(BaseException, self._block.failure)
        self._go_to(self._block.position)
        return failure

    def _go_to(self, position: int) -> None:
        self._prefetcher.forget()
        self._block = Block(self._steps.next_start(position))

    def __reduce__(self) -> tuple[Callable[..., StreamIterator[T]], tuple[Stream[T], dict[str, Any]]]:
        return _restored, (self._stream, self.get_state())

    @property
    def position(self) -> int:
        """The global position after what was handed out: ``stream(start=position)`` goes on there."""
        return self._block.position

    def get_state(self) -> dict[str, Any]:
        """The state after what was handed out: small, JSON, the same on every shard after the same number of steps."""
        return self._identity.state(self.position)

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


class _StatesIterator(StreamIterator[Any]):
    """Hands out pairs of an item and the state after it."""

    def _shown(self, block: Block[Any]) -> Block[Any]:
        return block.replaced(lambda item, position: (item, self._identity.state(position)))


def _restored(stream: Stream[T], state: dict[str, Any]) -> StreamIterator[T]:
    """A copy of an iterator, which reads ahead by itself."""
    iterator = StreamIterator(stream)
    iterator.set_state(state)
    return iterator
