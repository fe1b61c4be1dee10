"""Handing a stream out, so that position and items never come apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

from cachelayer.errors import StateError
from cachelayer.protocols import T
from cachelayer.streams.blocks import prefetcher
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.reads import Block

if TYPE_CHECKING:
    from cachelayer.streams.stream import Stream

# Called, it says that there is no more.
END: Callable[[], Any] = iter(()).__next__


class Blocks(Protocol[T]):
    """Where an iterator takes its blocks from."""

    def block(self, position: int) -> Block[T] | None:
        """The block at a position, the same one if it is asked for again; None at the end."""

    def forget(self) -> None:
        """Drop what was read."""


class StreamIterator(Iterator[T]):
    """Hands out a stream, and knows where it is. For one thread at a time.

    Position and items cannot come apart: if ``next()`` raises, whatever and whenever, nothing was handed out, and the
    next call hands out what comes after the last item that was. A signal handler may raise at any moment.
    """

    def __init__(self, stream: Stream[Any], blocks: Blocks[Any] | None = None) -> None:
        self._stream = stream
        reader = stream._reader
        self._identity = reader.identity
        self._steps = reader.options.steps
        self._writes = reader.options.shard_index == 0
        self._blocks: Blocks[Any] = prefetcher(reader) if blocks is None else blocks
        self._from_start = True
        # All that changes: replaced as a whole, by one assignment.
        self._block: Block[T] = Block(self._steps.next_start(reader.options.start))

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
                    return END
            return self._block.items.popleft

    # Apart from __next__, whose frame is in the traceback of the error and must not hold it.
    def _follow(self, block: Block[T]) -> bool:
        """Get the block after an exhausted one ready; False at the end."""
        # A shard that has no element in the last step of an epoch passes it over here.
        found = self._blocks.block(block.end)
        following = Block[T](block.end) if found is None else self._shown(found)
        # Unless another thread was quicker.
        if self._block is block:
            self._block = following
        if found is None and self._from_start:
            self._stream._iterated_through = True
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
        self._blocks.forget()
        self._block = Block(self._steps.next_start(position))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restored, (type(self), self._stream, self.get_state())

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
        self._from_start = False

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; the first shard writes it.

        Args:
            directory: a path: the state is written when this returns, and nothing has to be awaited. Orbax passes one
                that it is about to make, and awaits what is returned.

        Raises:
            StorageError: if it cannot be written.
        """
        return save_state(self.get_state(), directory, writes=self._writes)

    def load(self, directory: Any) -> Awaited:
        """Go on from a state that :meth:`save` wrote, on any number of shards, at once; Orbax calls this too.

        Raises:
            StateError: if there is none, it is damaged, or it belongs to other records or another order.
        """
        return load_state(directory, self.set_state)


class StatesIterator(StreamIterator[Any]):
    """Hands out pairs of an item and the state after it."""

    def _shown(self, block: Block[Any]) -> Block[Any]:
        return block.replaced(lambda item, position: (item, self._identity.state(position)))


def _restored(cls: type[StreamIterator[T]], stream: Stream[T], state: dict[str, Any]) -> StreamIterator[T]:
    """A copy of an iterator, which reads ahead by itself."""
    iterator = cls(stream)
    iterator.set_state(state)
    return iterator
