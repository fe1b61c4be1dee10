"""Streams: records in an order, for one shard, from a position, with a state."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import integer
from cachelayer.errors import InvalidTypeError, RecordIndexError, StateError
from cachelayer.protocols import RandomAccess, T
from cachelayer.sequential.checkpoint import load_state, save_state
from cachelayer.sequential.options import StreamOptions
from cachelayer.sequential.prefetch import Chunk, Prefetcher
from cachelayer.sequential.state import StreamIdentity
from cachelayer.sequential.steps import Step

# What is read at once at least, where batches are smaller or there are none.
_CHUNK_NBYTES = 4 << 20
_CHUNK_RECORDS = 1024


class Stream(Generic[T]):
    """Records in an order, for one shard: iterate it as often as you like, or ask for the batch of any step.

    Made by :meth:`cachelayer.DataRef.stream`, where the arguments are explained.
    """

    def __init__(self, records: RandomAccess[Any], options: StreamOptions) -> None:
        self._records = records
        self._options = options
        self._chunk_records = min(_CHUNK_RECORDS, max(1, _CHUNK_NBYTES // max(1, records.record_nbytes)))

    @property
    def options(self) -> StreamOptions:
        """What was asked for, checked."""
        return self._options

    @property
    def source(self) -> RandomAccess[Any]:
        """The records."""
        return self._records

    def __iter__(self) -> StreamIterator[T]:
        """An iterator from ``start`` on, independent of others."""
        return StreamIterator(self)

    def __len__(self) -> int:
        """What a fresh iterator of this shard hands out, from ``start``.

        Raises:
            TypeError: where the stream has no end.
        """
        options = self._options
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
        if self._options.batched:
            return cast(T, self._with_mask(found, self._records.read(self._numbers(found))))
        elements = self._records.__getitems__(self._numbers(found))
        if len(elements) == 0:
            raise RecordIndexError(f"step {step} has no element for shard {self._options.shard_index}")
        return cast(T, elements[0])

    def records(self, step: int) -> NDArray[np.int64]:
        """The record numbers in the batch of a step, one a row: int64. Padding rows repeat the last one."""
        return self._numbers(self._step(step))

    def with_state(self) -> Iterator[tuple[T, dict[str, Any]]]:
        """Pairs of a batch and the state after it, for consumers that hold back batches before they hand them out."""
        iterator = iter(self)
        for item in iterator:
            yield item, iterator.get_state()

    def _step(self, number: int) -> Step:
        index = integer("step", number)
        total = self._options.steps.count(self._options.start)
        if index < 0:
            if total is None:
                raise RecordIndexError(f"step {index}: an endless stream has no last step")
            index += total
        found = None if index < 0 else self._options.steps.nth(self._options.start, index)
        if found is None:
            raise RecordIndexError(f"step {number}: the stream has {total} steps")
        return found

    def _numbers(self, step: Step) -> NDArray[np.int64]:
        """The record numbers that this shard takes in a step."""
        options = self._options
        first, last = options.steps.part(step, options.shard_index)
        epoch, place = divmod(step.begin, options.steps.records)
        size = step.end - step.begin
        if last <= size:
            return options.order(epoch, place + first, place + last)
        final = options.order(epoch, place + size - 1, place + size)
        real = options.order(epoch, place + first, place + size) if first < size else final[:0]
        return np.concatenate([real, np.repeat(final, last - max(first, size))])

    def _batches(self, steps: list[Step]) -> Iterator[Any]:
        numbers = [self._numbers(step) for step in steps]
        batches: Iterable[Any]
        try:
            batches = self._records.read_batches(numbers)
        except Exception:  # noqa: BLE001 - read one by one, the error comes in the place of the batch that has it
            batches = map(self._records.read, numbers)
        return map(self._with_mask, steps, batches)

    def _with_mask(self, step: Step, batch: Any) -> Any:
        if self._options.steps.remainder != "pad":
            return batch
        first, last = self._options.steps.part(step, self._options.shard_index)
        return batch, np.arange(first, last) < step.end - step.begin

    def plan(self, position: int) -> Chunk | None:
        """What is read next from a position: some steps at once, so that small batches cost little; None at the end."""
        steps = self._options.steps
        if self._options.batched:
            share = steps.global_batch // steps.shard_count
            found: list[Step] = []
            while len(found) * share < self._chunk_records and (step := steps.at(position)) is not None:
                position = steps.after(step)
                found.append(step)
            if not found:
                return None
            after = [steps.after(step) for step in found]
            return Chunk(after, lambda: self._batches(found))
        block = steps.block(position, self._chunk_records)
        if block is None:
            return None
        stride = steps.shard_count
        after = [*range(block.begin + stride, block.end, stride), steps.after(block)]
        return Chunk(after, lambda: self._elements(block))

    def _elements(self, block: Step) -> Iterator[Any]:
        epoch, place = divmod(block.begin, self._options.steps.records)
        numbers = self._options.order(epoch, place, place + block.end - block.begin)
        mine = numbers[self._options.shard_index :: self._options.steps.shard_count]
        yield from self._records.__getitems__(mine)

    @property
    def identity(self) -> StreamIdentity:
        """What the positions of this stream count in."""
        return StreamIdentity(self._records.digest, self._options.order)

    def __repr__(self) -> str:
        return f"Stream({self._records!r}, {self._options!r})"


class StreamIterator(Iterator[T]):
    """Hands out a stream, and knows where it is. For one thread at a time."""

    def __init__(self, stream: Stream[T]) -> None:
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
            StateError: where there is none, or it belongs to other records or another order; raised when the result
                is awaited.
        """
        return await load_state(directory, self.set_state)
