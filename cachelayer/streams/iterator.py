"""Hand out a stream so that its position and its items always agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol, cast

from cachelayer.errors import StateError
from cachelayer.locks import ProcessLock
from cachelayer.protocols import T
from cachelayer.streams.ahead.block_plan import Chunk
from cachelayer.streams.ahead.blocks import blocks_of
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.reading.failures import Failure, too_many, warn_of
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream_stats import StreamStats


class Chunks(Protocol[T]):
    """Gives an iterator its blocks."""

    def block(self, position: int) -> Chunk[T] | None:
        """Return the block at a position, the same one on every call; None at the end."""

    def forget(self) -> None:
        """Drop what was read."""


class StreamIterator(Iterator[T]):
    """Hands out the items of a stream, and knows its position. Threads that share it get each item once.

    If ``next()`` raises an error, it has handed out nothing, and the next call continues after the last item. The
    position changes just before an item is handed out. So if a signal handler raises in between, that item is lost to
    this iterator: go on from the last state that was saved.

    Args:
        reader: reads the steps.
        blocks: gives the blocks; by default those of the reader, some of them read ahead.
        finished: called when the iterator has run from the start to the end.
    """

    def __init__(
        self, reader: StepReader, blocks: Chunks[Any] | None = None, finished: Callable[[], None] | None = None
    ) -> None:
        self._reader = reader
        self._identity = reader.identity
        self._steps = reader.options.steps
        self._blocks: Chunks[Any] = blocks_of(reader) if blocks is None else blocks
        self._finished = finished
        self._has_warned = False
        self._lock = ProcessLock()
        # Since when the consumer waits, and since when and how long it has; for the stats.
        self._waiting: float | None = None
        self._times = _Times()
        # The only state that changes the position: replaced as a whole.
        self._block: Chunk[T] = Chunk(self._steps.next_start(reader.options.start))

    def __iter__(self) -> StreamIterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            items = self._block.items
            if not items:
                self._follow()
                continue
            try:
                return items.popleft()
            except IndexError:
                # Another thread that shares this iterator was quicker.
                continue

    def _follow(self) -> None:
        """Go from an exhausted block to the one after it."""
        begun = self._waiting = perf_counter()
        has_ended = False
        try:
            with self._lock:
                block = self._block
                if block.items:
                    return
                failure = block.failure
                if failure is None:
                    following = self._blocks.block(block.end)
                    has_ended = following is None
                    after = Chunk[T](block.end) if following is None else self._shown(following)
                    self._times = replace(self._times, mapping=self._times.mapping + after.mapping)
                    self._block = self._counted(block, after)
                else:
                    self._go_to(block.position)
        finally:
            self._waiting = None
            self._times = self._times.after(begun, perf_counter(), ended=has_ended)
        if has_ended:
            if self._finished is not None:
                self._finished()
            raise StopIteration
        if failure is not None:
            try:
                raise failure
            finally:
                # This frame is in the traceback of the error, and must not refer to it, nor to the items.
                del failure, block

    def _shown(self, block: Chunk[Any]) -> Chunk[T]:
        """Return a block with the items to hand out."""
        return block

    def _counted(self, block: Chunk[T], following: Chunk[T]) -> Chunk[T]:
        """Return the block after another, as far as its failures may be replaced."""
        before, limit = block.all_failures, self._reader.max_failures
        over = 0 if limit is None else before.count + len(following.failures) - limit
        if over > 0:
            found = [*before, *following.failures]
            following = following.until(found[-over].position, too_many(found, cast(int, limit)))
        following.all_failures = before.followed(following.failures)
        if following.failures and not self._has_warned:
            self._has_warned = True
            warn_of(following.failures[0], "iterator.failures lists all that fail")
        return following

    @property
    def failures(self) -> list[Failure]:
        """The elements of the items so far that others stand in for, in order of position.

        They are those that ``map(fn, on_error="replace")`` replaced in the items that this iterator has handed out. The
        state does not hold them: an iterator that continues in another process begins with none. After ``set_state``,
        those before the new position are left.
        """
        return list(self._block.all_failures.until(self.position))

    def _go_to(self, position: int) -> None:
        """Continue at a position, after what was handed out up to there."""
        self._blocks.forget()
        following: Chunk[T] = Chunk(self._steps.next_start(position))
        following.all_failures = self._block.all_failures.until(position)
        self._block = following

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restored, (type(self), self._reader, self.get_state())

    @property
    def position(self) -> int:
        """The global position after the last item: ``stream(start=position)`` continues there."""
        return self._block.position

    def stats(self) -> StreamStats:
        """Return how long the consumer of this iterator waited for it so far, and what to do about it.

        Any thread may ask at any time, also after the end, an error or a restore, after which it counts on.
        """
        return self._times.stats(self._waiting, perf_counter())

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last item: small, JSON, the same on every shard after the same number of steps."""
        return self._identity.state(self.position)

    def set_state(self, state: Any) -> None:
        """Continue where an iterator of the same records in the same order was, on any number of shards.

        Args:
            state: what ``get_state`` returned, or its JSON.

        Raises:
            StateError: if it belongs to other records or another order, or lies past the end.
        """
        position = self._identity.position(state)
        end = self._steps.end
        if end is not None and position > end:
            raise StateError(
                f"position {position} of the state is past the end of this stream, {end}: set it on stream.epochs(), "
                "or pass a larger num_epochs, which a mixture does not have"
            )
        with self._lock:
            self._go_to(position)
        self._finished = None

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; only the first shard writes it.

        Args:
            directory: a path: the state is written when this returns, and nothing has to be awaited. Orbax passes an
                object for a directory that it is about to make, and awaits the result.

        Raises:
            StorageError: if it cannot be written.
        """
        return save_state(self.get_state(), directory, writes=self._reader.options.shard_index == 0)

    def load(self, directory: Any) -> Awaited:
        """Continue from a state that :meth:`save` wrote, on any number of shards, at once; Orbax calls this too.

        Raises:
            StateError: if there is no state, or it is damaged or belongs to other records or another order.
        """
        return load_state(directory, self.set_state)


class StatesIterator(StreamIterator[Any]):
    """Hands out pairs of an item and the state after it."""

    def _shown(self, block: Chunk[Any]) -> Chunk[Any]:
        return block.replaced(lambda item, position: (item, self._identity.state(position)))


@dataclass(frozen=True)
class _Times:
    """The times of an iterator.

    Args:
        elapsed: the seconds up to the last end of the stream.
        begun: when the consumer first asked after that; None if it did not.
        waited: the seconds that it has waited.
        mapping: the seconds that the functions took for the blocks that have come.
    """

    elapsed: float = 0.0
    begun: float | None = None
    waited: float = 0.0
    mapping: float = 0.0

    def after(self, since: float, now: float, *, ended: bool) -> _Times:
        """Return the times after the consumer has waited."""
        begun = since if self.begun is None else self.begun
        waited = self.waited + now - since
        if ended:
            return replace(self, elapsed=self.elapsed + now - begun, begun=None, waited=waited)
        return replace(self, begun=begun, waited=waited)

    def stats(self, waiting: float | None, now: float) -> StreamStats:
        begun = waiting if self.begun is None else self.begun
        seconds = self.elapsed + (0.0 if begun is None else now - begun)
        # Threads that share an iterator may wait for it at the same time.
        waited = min(seconds, self.waited + (0.0 if waiting is None else now - waiting))
        return StreamStats(seconds, waited, seconds - waited, self.mapping)


def _restored(cls: type[StreamIterator[T]], reader: StepReader, state: dict[str, Any]) -> StreamIterator[T]:
    """Return a copy of an iterator, which reads ahead independently."""
    iterator = cls(reader)
    iterator.set_state(state)
    return iterator
