"""Hand out the items of a stream so that the position always agrees with what was handed out.

An iterator takes chunks, which are items that were read at once. A chunk knows the position after each of its items;
the number of items that are left in it says which of them was the last one. So one statement, which takes an item from
the chunk, moves the position too. With steps of 4 records, after the second ``next()``::

    chunk       items       batch 0   batch 1   batch 2        items.popleft() hands one out
                position  0         4         8         12
                                              ^ the position of the iterator, and of its state

An exhausted chunk is replaced by the one that begins at its end. An error comes as the end of a chunk, behind the items
before it: it is raised when these are handed out, and then its step is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cachelayer.counting import counting_into
from cachelayer.locks import ProcessLock
from cachelayer.protocols import T
from cachelayer.streams.ahead.prefetch import Chunk, Prefetcher
from cachelayer.streams.reading.failures import Failure, too_many, warn_of_failure
from cachelayer.streams.reading.step_reader import StepReader

if TYPE_CHECKING:
    from cachelayer.streams.checkpoint import Awaited
    from cachelayer.streams.stream_stats import StreamStats


class Chunks(Protocol[T]):
    """Gives an iterator its chunks."""

    def chunk(self, position: int) -> Chunk[T] | None:
        """Return the chunk at a position, the same one on every call; None at the end."""

    def forget(self) -> None:
        """Drop what was read."""

    def reread(self) -> None:
        """Let the next call of :meth:`chunk` read once more the step at which an error came, and the steps after it."""


class StreamIterator(Iterator[T]):
    """Hands out the items of a stream, and knows its position. Threads that share it get each item once.

    If ``next()`` raises an error, it has handed out nothing, and the next call continues after the last item. The
    position changes just before an item is handed out. So if a signal handler raises in between, that item is lost to
    this iterator: go on from the last state that was saved.

    Examples:
        >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0)
        >>> iterator = iter(stream)
        >>> next(iterator).tolist(), next(iterator).tolist(), iterator.position
        ([3, 0, 8, 7], [5, 1, 6, 4], 8)
        >>> state = iterator.get_state()
        >>> other = iter(stream)  # in another process, after a kill, on another number of shards
        >>> other.set_state(state)
        >>> [batch.tolist() for batch in other]
        [[2, 9]]

    Args:
        reader: reads the steps.
        chunks_of: given a reader, returns what gives the chunks of its steps; by default it reads some of them ahead.
        finished: called when the iterator has run from the start to the end.
    """

    def __init__(
        self,
        reader: StepReader,
        chunks_of: Callable[[StepReader], Chunks[T]] = Prefetcher,
        finished: Callable[[], None] | None = None,
    ) -> None:
        from cachelayer.streams.stream_stats import ConsumerClock

        self._reader = reader
        self._chunks_of = chunks_of
        self._chunks = chunks_of(reader)
        self._finished = finished
        self._has_ended = False
        self._failures: list[Failure] = []
        """The replaced elements of the chunks so far, also of items that were not handed out yet."""
        self._has_warned = False
        self._lock = ProcessLock()
        self._clock = ConsumerClock()
        # The only state that changes the position: replaced as a whole.
        self._chunk: Chunk[T] = Chunk(reader.options.steps.next_start(reader.options.start))

    def __repr__(self) -> str:
        reader = self._reader
        return f"{type(self).__name__}({reader.records!r}, {reader.options}, position={self.position})"

    def __iter__(self) -> StreamIterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            items = self._chunk.items
            if not items:
                self._follow()
                continue
            try:
                return items.popleft()
            except IndexError:
                # Another thread that shares this iterator was quicker.
                continue

    def _follow(self) -> None:
        """Go from an exhausted chunk to the one that begins at its end, or raise what ended it."""
        has_ended = False
        failure = None
        wait = self._clock.begin_wait()
        try:
            with self._lock.of_process():
                chunk = self._chunk
                if chunk.items:
                    # Another thread that shares this iterator was quicker.
                    return
                failure = chunk.failure
                if failure is None:
                    has_ended = not self._take_chunk(chunk.end)
                else:
                    self._chunks.reread()
                    self._stand_at(chunk.position)
        finally:
            self._clock.end_wait(wait, has_ended=has_ended)
        if has_ended:
            self._has_ended = True
            if self._finished is not None:
                self._finished()
            raise StopIteration
        if failure is not None:
            try:
                raise failure
            finally:
                # This frame is in the traceback of the error, and must not refer to it, nor to the items.
                del failure, chunk

    def _take_chunk(self, position: int) -> bool:
        """Take the chunk at a position; return False at the end."""
        chunk = counting_into(self._clock.counters, partial(self._chunks.chunk, position))
        if chunk is None:
            self._chunk = Chunk(position)
            return False
        if chunk.failures or self._failures:
            chunk = self._with_failures_counted(chunk)
        self._chunk = chunk
        return True

    def _with_failures_counted(self, chunk: Chunk[T]) -> Chunk[T]:
        """Count the failures of a chunk, and return it; it ends with an error before the first beyond the limit."""
        limit = self._reader.max_failures
        # If an earlier call for this chunk was interrupted, its failures are among those so far.
        failures = [failure for failure in self._failures if failure.position < chunk.position]
        failures += chunk.failures
        if limit is not None and len(failures) > limit:
            chunk = chunk.until(failures[limit].position, too_many(failures, limit))
        if chunk.failures and not self._has_warned:
            self._has_warned = True
            warn_of_failure(chunk.failures[0], "iterator.failures lists all that fail")
        self._failures = failures
        return chunk

    @property
    def failures(self) -> list[Failure]:
        """The failed elements that stand-ins replaced in the items so far, in order of position.

        ``map(fn, on_error="replace")`` replaces them. The state does not hold them: an iterator that continues in
        another process begins with none. After ``set_state``, the failed elements before the new position are left.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(5)
            >>> iterator = iter(stream.map(lambda n: 60 // n, on_error="replace"))
            >>> next(iterator).tolist()
            [15, 60, 30, 20, 15]
            >>> print(*iterator.failures)
            record 0 at position 0: ZeroDivisionError: integer division or modulo by zero
            >>> iterator.failures[0].stand_in
            4
        """
        position = self.position
        return [failure for failure in self._failures if failure.position < position]

    def _stand_at(self, position: int) -> None:
        self._failures = [failure for failure in self._failures if failure.position < position]
        self._chunk = Chunk(self._reader.options.steps.next_start(position))

    def _read_with(self, reader: StepReader, position: int) -> None:
        """Continue at a position with another reader, which replaces this one as a whole."""
        with self._lock.of_process():
            chunks = self._chunks_of(reader)
            self._chunks.forget()
            self._chunks = chunks
            self._reader = reader
            self._has_ended = False
            self._stand_at(position)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return copied, (partial(type(self), self._reader, self._chunks_of), self.position)

    def __identity__(self) -> Any:
        return self._reader.__identity__(), self.position

    @property
    def position(self) -> int:
        """The position after the last item: ``stream(start=position)`` continues there.

        Examples:
            >>> ten = cachelayer.wrap(list(range(10)), identity="ten")
            >>> iterator = iter(ten.stream(4))
            >>> batch = next(iterator)
            >>> iterator.position, ten.stream(4, start=4)[0].tolist() == next(iterator).tolist()
            (4, True)
        """
        return self._chunk.position

    def stats(self) -> StreamStats:
        """Return how long the consumer of this iterator waited for it so far, for what, and what to do about it.

        Any thread may ask at any time, also after the end, an error or a restore, after which it counts on.

        Examples:
            >>> iterator = iter(cachelayer.wrap(list(range(10)), identity="ten").stream(4))
            >>> print(iterator.stats())
            nothing read yet
            >>> batches = list(iterator)
            >>> stats = iterator.stats()
            >>> stats.waited <= stats.seconds, stats.is_mapped
            (True, False)
        """
        return self._clock.stats(is_mapped=self._reader.is_mapped)

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last item: small, JSON, the same on every shard after the same number of steps.

        Examples:
            >>> iterator = iter(cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=7))
            >>> batch = next(iterator)
            >>> state = iterator.get_state()
            >>> state["position"], state["records"], state["order"]["seed"]
            (4, 10, 7)
        """
        return self._reader.state(self.position)

    def set_state(self, state: Any) -> None:
        """Continue where an iterator of the same records in the same order was, on any number of shards.

        Steps that :meth:`cachelayer.Stream.without` had left out are left out here too, and records to which that
        iterator had advanced come as they would have come there.

        Examples:
            >>> ten = cachelayer.wrap(list(range(10)), identity="ten")
            >>> alone = iter(ten.stream(4, shuffle=True, seed=0))
            >>> batch = next(alone)
            >>> hosts = [iter(ten.stream(4, shuffle=True, seed=0, shard=(host, 2))) for host in (0, 1)]
            >>> for host in hosts:
            ...     host.set_state(alone.get_state())
            >>> next(alone).tolist(), [next(host).tolist() for host in hosts]
            ([5, 1, 6, 4], [[5, 1], [6, 4]])

        Args:
            state: what ``get_state`` returned, or its JSON.

        Raises:
            StateError: if it belongs to other records or another order, or lies past the end.
        """
        from cachelayer.streams.continuing import restore_reader

        reader, position = restore_reader(self._reader, state)
        self._read_with(reader, position)
        self._finished = None

    def advance_to(self, newer: Any) -> None:
        """Go on over a newer version, to which records were appended; what was handed out so far stays as it is.

        The epoch under way ends over the records that it began with. Then the new records come once, in an order of
        their own, which counts as no epoch. The epochs that follow, up to ``num_epochs``, run over all records. Between
        two epochs, the one that has just ended counts as the one under way.

        A state that is saved from then on belongs to the newer version, and names the one that came before.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> iterator = iter(storage.cache(range(4), "numbers", "v1").stream(2, num_epochs=2))
            >>> next(iterator).tolist()
            [0, 1]
            >>> iterator.advance_to(storage.append("numbers", "v1", "v2", [4, 5]))
            >>> [batch.tolist() for batch in iterator]
            [[2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]

        Args:
            newer: the newer version or, if this stream is of a view, the same view of it, such as
                ``newer.windows("tokens", 2048)``. It must begin with the elements of this stream: the digests prove
                it, and no record is read.

        Raises:
            InvalidArgumentError: if it does not, as where new records change or move elements of a view; if it has
                other fields; or if the stream is of a mixture, a sample or buckets.
            InvalidTypeError: if it has no records.
        """
        from cachelayer.streams.continuing import advance_reader

        self._read_with(advance_reader(self._reader, newer, self.position), self.position)
        self._finished = None

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; only the first shard writes it.

        Examples:
            >>> iterator = iter(cachelayer.wrap(list(range(10)), identity="ten").stream(4))
            >>> batch = next(iterator)
            >>> saved = iterator.save(folder / "checkpoint-1")
            >>> (folder / "checkpoint-1" / "state.json").read_text()
            '{"format": 1, "dataset": "ten", ... "position": 4}'

        Args:
            directory: a path: the state is written when this returns, and nothing has to be awaited. Orbax passes an
                object for a directory that it is about to make, and awaits the result.

        Raises:
            StorageError: if it cannot be written.
        """
        from cachelayer.streams.checkpoint import save_state

        return save_state(self.get_state(), directory, writes=self._reader.options.shard_index == 0)

    def load(self, directory: Any) -> Awaited:
        """Continue from a state that :meth:`save` wrote, on any number of shards, at once; Orbax calls this too.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4)
            >>> iterator = iter(stream)
            >>> batch = next(iterator)
            >>> saved = iterator.save(folder)
            >>> other = iter(stream)
            >>> loaded = other.load(folder)
            >>> next(other).tolist()
            [4, 5, 6, 7]

        Raises:
            StateError: if there is no state, or it is damaged or belongs to other records or another order.
        """
        from cachelayer.streams.checkpoint import load_state

        return load_state(directory, self.set_state)


def has_ended(iterator: StreamIterator[Any]) -> bool:
    """Return whether an iterator has raised StopIteration at its position."""
    return iterator._has_ended


def state_at(iterator: StreamIterator[Any], position: int) -> dict[str, Any]:
    """Return the state of an iterator's stream at another position."""
    return iterator._reader.state(position)


def continue_as(iterator: StreamIterator[Any], other: StreamIterator[Any]) -> None:
    """Have an iterator continue where another one of the same kind is, and read what that one reads."""
    iterator._read_with(other._reader, other.position)


class ChunksWithStates:
    """Gives an iterator chunks whose items are pairs: an item of the stream, and the state after it."""

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._chunks: Prefetcher[Any] = Prefetcher(reader)

    def chunk(self, position: int) -> Chunk[tuple[Any, dict[str, Any]]] | None:
        chunk = self._chunks.chunk(position)
        return None if chunk is None else chunk.replaced(lambda item, after: (item, self._reader.state(after)))

    def forget(self) -> None:
        self._chunks.forget()

    def reread(self) -> None:
        self._chunks.reread()


def copied(make: Callable[[], StreamIterator[T]], position: int) -> StreamIterator[T]:
    """Return a copy of an iterator, which reads ahead independently."""
    iterator = make()
    iterator._stand_at(position)
    return iterator
