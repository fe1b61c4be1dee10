"""Hand out the items of a stream: what ``iter(stream)`` returns, with a state. A :class:`Cursor` knows where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cachelayer.protocols import T
from cachelayer.streams.cursor import Cursor
from cachelayer.streams.reading.failures import Failure

if TYPE_CHECKING:
    from cachelayer.streams.checkpoint import Awaited
    from cachelayer.streams.stream_stats import StreamStats


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
        cursor: where the stream is. Several iterators may share it.
    """

    def __init__(self, cursor: Cursor[T]) -> None:
        self._cursor = cursor

    def __repr__(self) -> str:
        reader = self._cursor.reader
        return f"{type(self).__name__}({reader.records!r}, {reader.schedule}, position={self.position})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._cursor.copied(),)

    def __identity__(self) -> Any:
        return self._cursor.reader.__identity__(), self.position

    def __iter__(self) -> StreamIterator[T]:
        return self

    def __next__(self) -> T:
        cursor = self._cursor
        while True:
            items = cursor.chunk.items
            if not items:
                cursor.follow()
                continue
            try:
                return items.popleft()
            except IndexError:
                # Another thread that shares the cursor was quicker.
                continue

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
        return self._cursor.failures

    @property
    def position(self) -> int:
        """The position after the last item: ``stream(start=position)`` continues there."""
        return self._cursor.position

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
        return self._cursor.stats()

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last item: small, JSON, the same on every shard after the same number of steps.

        Examples:
            >>> iterator = iter(cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=7))
            >>> batch = next(iterator)
            >>> state = iterator.get_state()
            >>> state["position"], state["records"], state["order"]["seed"]
            (4, 10, 7)
        """
        return self._cursor.state()

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
        self._cursor.restore(state)

    def advance_to(self, newer: Any) -> None:
        """Go on over a newer version, to which records were appended; what was handed out so far stays as it is.

        The epoch under way ends over the records that it began with. Then the new records come once, in an order of
        their own, which counts as no epoch. The epochs that follow, up to ``num_epochs``, run over all records. Between
        two epochs, the one that has just ended counts as the one under way.

        A stream of a mixture goes on over a newer mixture, which has the datasets of the older one, or newer versions
        of them, in their order, and perhaps further ones. Its weights count from here on. Each dataset goes on where it
        is: one that has grown ends its own epoch, then its new records come once, then all of them.

        A state that is saved from then on belongs to the newer version or mixture, and says what came before.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> iterator = iter(storage.cache(range(4), "numbers@v1").stream(2, num_epochs=2))
            >>> next(iterator).tolist()
            [0, 1]
            >>> iterator.advance_to(storage.append("numbers@v1", "v2", [4, 5]))
            >>> [batch.tolist() for batch in iterator]
            [[2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]
            >>> numbers, letters = storage.fetch("numbers@v1"), cachelayer.wrap([-1, -2], identity="more")
            >>> iterator = iter(cachelayer.mix([(numbers, 1)]).stream(2))
            >>> next(iterator).tolist()
            [0, 1]
            >>> iterator.advance_to(cachelayer.mix([(storage.fetch("numbers@v2"), 1), (letters, 1)]))
            >>> [next(iterator).tolist() for _ in range(4)]
            [[2, -1], [3, -2], [4, -1], [5, -2]]

        Args:
            newer: the newer version or, if this stream is of a view, the same view of it, such as
                ``newer.windows("tokens", 2048)``; of a mixture, a newer one. It must begin with the elements of this
                stream, or each dataset with those of its own: the digests prove it, and no record is read.

        Raises:
            InvalidArgumentError: if it does not, as where new records change or move elements of a view; if it has
                other fields; or if the stream is of a mixture with ``stop``, a sample or buckets.
            InvalidTypeError: if it has no records, or is no mixture where the stream is of one.
        """
        self._cursor.advance_to(newer)

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

        return save_state(self.get_state(), directory, writes=self._cursor.reader.schedule.shard_index == 0)

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
