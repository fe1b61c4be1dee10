"""Hand out a stream so that its position and its items always agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, cast

from cachelayer.errors import StateError
from cachelayer.protocols import T
from cachelayer.streams.block_plan import Block
from cachelayer.streams.blocks import blocks_of
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.failures import Failure, too_many, warn_of
from cachelayer.streams.stream_meter import Meter
from cachelayer.streams.stream_stats import StreamStats

if TYPE_CHECKING:
    from cachelayer.streams.stream import Stream

# Raises StopIteration.
END: Callable[[], Any] = iter(()).__next__


class Blocks(Protocol[T]):
    """Gives an iterator its blocks."""

    def block(self, position: int) -> Block[T] | None:
        """Return the block at a position, the same one on every call; None at the end."""

    def forget(self) -> None:
        """Drop what was read."""

    def ready(self, position: int) -> int:
        """Return how many items are ready from a position on."""


class StreamIterator(Iterator[T]):
    """Hands out the items of a stream, and knows its position. Threads that share it get each item once.

    Position and items always agree, although a signal handler may raise at any moment: if ``next()`` raises, it has
    handed out nothing, and the next call continues after the last item.
    """

    def __init__(self, stream: Stream[Any], blocks: Blocks[Any] | None = None) -> None:
        self._stream = stream
        reader = stream._reader
        self._identity = reader.identity
        self._steps = reader.options.steps
        self._writes = reader.options.shard_index == 0
        self._prefetch = reader.options.prefetch
        self._meter = Meter()
        self._blocks: Blocks[Any] = blocks_of(reader, self._meter) if blocks is None else blocks
        self._from_start = True
        self._max_failures = reader.max_failures
        self._has_warned = False
        # The only state that changes. One assignment replaces it as a whole.
        self._block: Block[T] = Block(self._steps.next_start(reader.options.start))

    def __iter__(self) -> StreamIterator[T]:
        return self

    if TYPE_CHECKING:

        def __next__(self) -> T: ...

    else:

        @property
        def __next__(self) -> Callable[[], T]:
            """The function that returns the next item.

            ``next()`` calls it in C: no bytecode, and so no signal handler, runs between the moment when the item
            leaves its block and the moment when the caller has it.
            """
            while not self._block.items:
                if self._block.failure is not None:
                    failures = self._taken_failure(self._block)
                    if failures:
                        # This frame is in the traceback of the error, and must not refer to it.
                        raise failures.pop()
                elif not self._follow(self._block):
                    return END
            return self._block.items.popleft

    # Not in __next__: its frame is in the traceback of the error, and must not refer to the error.
    def _follow(self, block: Block[T]) -> bool:
        """Go from an exhausted block to the one after it; return False at the end."""
        # A shard without an element in the last step of an epoch skips that step here.
        ended = False
        self._meter.waiting = since = perf_counter()
        try:
            found = self._blocks.block(block.end)
            following = self._counted(block, Block(block.end) if found is None else self._shown(found))
            ended = found is None
        finally:
            self._meter.resume(since, ended=ended)
        following.before = block.handed_out
        # Unless another thread was quicker.
        if self._block is block:
            self._block = following
        if found is None and self._from_start:
            self._stream._iterated_through = True
        return found is not None

    def _shown(self, block: Block[Any]) -> Block[T]:
        """Return a block with the items to hand out."""
        return block

    def _counted(self, block: Block[T], following: Block[T]) -> Block[T]:
        """Return the block after another, as far as its failures may be replaced."""
        before, limit = block.all_failures, self._max_failures
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

    def _taken_failure(self, block: Block[T]) -> list[BaseException]:
        """Return the error that ended a block early; the next call reads the failed items again.

        Returns:
            Nothing if another thread has it, which may have gone on already.
        """
        self._blocks.forget()
        following = self._beginning(block.position, block)
        if self._block is not block:
            return []
        self._block = following
        return [cast(BaseException, block.failure)]

    def _beginning(self, position: int, block: Block[T]) -> Block[T]:
        """Return an empty block at a position, after those up to a block."""
        found: Block[T] = Block(self._steps.next_start(position))
        found.all_failures = block.all_failures.until(position)
        found.before = block.handed_out
        return found

    def _go_to(self, position: int) -> None:
        self._blocks.forget()
        self._block = self._beginning(position, self._block)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restored, (type(self), self._stream, self.get_state())

    @property
    def position(self) -> int:
        """The global position after the last item: ``stream(start=position)`` continues there."""
        return self._block.position

    def stats(self) -> StreamStats:
        """Return what this iterator has done so far, and how long its consumer waited for it.

        Any thread may ask at any time, also after the end, an error or a restore, after which it counts on.
        """
        block = self._block
        ready = len(block.items) + self._blocks.ready(block.end)
        return self._meter.stats(block.handed_out, ready, self._prefetch)

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
        self._go_to(position)
        self._from_start = False

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; only the first shard writes it.

        Args:
            directory: a path: the state is written when this returns, and nothing has to be awaited. Orbax passes an
                object for a directory that it is about to make, and awaits the result.

        Raises:
            StorageError: if it cannot be written.
        """
        return save_state(self.get_state(), directory, writes=self._writes)

    def load(self, directory: Any) -> Awaited:
        """Continue from a state that :meth:`save` wrote, on any number of shards, at once; Orbax calls this too.

        Raises:
            StateError: if there is no state, or it is damaged or belongs to other records or another order.
        """
        return load_state(directory, self.set_state)


class StatesIterator(StreamIterator[Any]):
    """Hands out pairs of an item and the state after it."""

    def _shown(self, block: Block[Any]) -> Block[Any]:
        return block.replaced(lambda item, position: (item, self._identity.state(position)))


def _restored(cls: type[StreamIterator[T]], stream: Stream[T], state: dict[str, Any]) -> StreamIterator[T]:
    """Return a copy of an iterator, which reads ahead independently."""
    iterator = cls(stream)
    iterator.set_state(state)
    return iterator
