"""What users iterate over epoch by epoch: ``stream.epochs()``, and the loaders of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

from cachelayer.protocols import T
from cachelayer.streams.continuing import restore_reader
from cachelayer.streams.cursor import Cursor
from cachelayer.streams.epochs import EpochCursor
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream_stats import StreamStats


class Epochwise(Generic[T]):
    """The items of a stream, for loops over epochs: every iteration has the next epoch.

    If the stream has one epoch, iteration k has epoch k; with ``num_epochs=3``, it has epochs 3k to 3k + 2. A loop that
    was left before its last item uses up no epoch: the next one begins where it began, at a restored state too.
    An endless stream has one iterator in all, which every ``iter()`` returns: each loop goes on after the last one.

    The state tells where in the loops it was saved: after a loop the next epoch follows; after the last item, but
    within the loop, nothing of this epoch follows, and then the next.

    Examples:
        >>> from cachelayer.adapters import torch
        >>> loader = torch.loader(cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0))
        >>> [batch.tolist() for batch in loader], [batch.tolist() for batch in loader]
        ([[3, 0, 8, 7], [5, 1, 6, 4], [2, 9]], [[8, 5, 3, 6], [2, 7, 1, 0], [9, 4]])

    Args:
        cursor: the cursor of the present epoch, and the way to the next one.
        iterator_of: makes the iterator of a cursor.
    """

    def __init__(
        self, cursor: EpochCursor[T], iterator_of: Callable[[Cursor[T]], StreamIterator[T]] = StreamIterator
    ) -> None:
        self._cursor = cursor
        self._iterator_of = iterator_of

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cursor.stream.records!r}, {self._cursor.stream.schedule})"

    def __iter__(self) -> StreamIterator[T]:
        """Iterate over the next epoch, or the one that was left early; if there is no end, go on."""
        return self._iterator_of(self._cursor.started())

    def __len__(self) -> int:
        """Return the number of items of a whole iteration; raise TypeError if the stream has no end."""
        return len(self._cursor)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with an epoch; with ``num_epochs=3``, with epoch ``3 * epoch``.

        After a restore, the next iteration has what is left of that epoch from the state on: the rest if the state lies
        in it, nothing if the state lies at its end. An endless stream goes on as it would without this call.

        Examples:
            >>> from cachelayer.adapters import torch
            >>> loader = torch.loader(cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0))
            >>> loader.set_epoch(1)
            >>> next(iter(loader)).tolist()
            [8, 5, 3, 6]
        """
        self._cursor.set_epoch(epoch)

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last item that was returned: small, JSON, the same on every shard.

        Its structure is always the same: the epoch under way or, after the loop, the next one; the position; and
        the stream that it belongs to, as a JSON text.

        Examples:
            >>> from cachelayer.adapters import torch
            >>> loader = torch.loader(cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0))
            >>> first, *rest = loader
            >>> state = loader.get_state()
            >>> state["epoch"], state["position"], type(state["stream"]).__name__
            (1, 10, 'str')
        """
        return self._cursor.state()

    def set_state(self, state: Any) -> None:
        """Begin the next iteration at a state of any stream of the same records in the same order.

        Examples:
            >>> from cachelayer.adapters import torch
            >>> loader = torch.loader(cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0))
            >>> iterator = iter(loader)
            >>> batch = next(iterator)
            >>> state = loader.get_state()
            >>> loader.set_state(state)
            >>> [batch.tolist() for batch in loader], [batch.tolist() for batch in loader]
            ([[5, 1, 6, 4], [2, 9]], [[8, 5, 3, 6], [2, 7, 1, 0], [9, 4]])

        Raises:
            StateError: if the state belongs to other records or another order.
        """
        self._cursor.restore(state)

    def advance_to(self, newer: Any) -> None:
        """Go on over a newer version, to which records were appended, as :meth:`cachelayer.StreamIterator.advance_to`.

        The stream must be endless: then a loop that is under way goes on too. States that are saved from then on belong
        to the newer version.

        Examples:
            >>> from cachelayer.adapters import torch
            >>> storage = cachelayer.Storage(folder)
            >>> loader = torch.loader(storage.cache(range(4), "numbers@v1").stream(4, num_epochs=None))
            >>> iterator = iter(loader)
            >>> next(iterator).tolist()
            [0, 1, 2, 3]
            >>> loader.advance_to(storage.append("numbers@v1", "v2", [4, 5]))
            >>> next(iterator).tolist(), next(iterator).tolist()
            ([4, 5], [0, 1, 2, 3])

        Args:
            newer: the newer version, the same view of it as the stream has, or a newer mixture.

        Raises:
            InvalidArgumentError: if the stream has an end, or cannot go on over these elements.
        """
        self._cursor.advance_to(newer)

    def stats(self) -> StreamStats:
        """Return what the last iteration has waited for; of worker processes, only how long they were waited for.

        Examples:
            >>> from cachelayer.adapters import torch
            >>> loader = torch.loader(cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0))
            >>> batches = list(loader)
            >>> stats = loader.stats()
            >>> stats.waited <= stats.seconds, stats.is_mapped
            (True, False)
        """
        cursor = self._cursor.cursor
        return StreamStats(0.0, 0.0, 0.0, self._cursor.stream.is_mapped) if cursor is None else cursor.stats()


class Epochs(Iterator[StreamIterator[T]], Generic[T]):
    """Gives an iterator over every epoch in turn; made by :meth:`Stream.epochs`. For one thread at a time.

    If an epoch is left before its end, the next one follows.

    Examples:
        >>> epochs = cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0).epochs()
        >>> [batch.tolist() for batch in next(epochs)]
        [[3, 0, 8, 7], [5, 1, 6, 4], [2, 9]]
        >>> next(next(epochs)).tolist()
        [8, 5, 3, 6]

    Args:
        reader: reads the steps of the stream.
    """

    def __init__(self, reader: StepReader) -> None:
        schedule = reader.schedule
        # Streams have one epoch by default, so 1 does not limit the epochs here.
        self._reader = reader.with_schedule(num_epochs=None) if schedule.num_epochs == 1 else reader
        first = schedule.start // max(1, schedule.records)
        self._cursor: EpochCursor[T] = EpochCursor(reader.with_schedule(num_epochs=first + 1))
        self._is_new = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._reader.records!r}, {self._reader.schedule})"

    def __identity__(self) -> Any:
        return self._reader.__identity__(), self.get_state()["position"]

    def __iter__(self) -> Epochs[T]:
        return self

    def __next__(self) -> StreamIterator[T]:
        if not self._is_new:
            self._cursor.begin_next()
        self._is_new = False
        schedule = self._reader.schedule
        if schedule.records == 0 or (schedule.end is not None and self._cursor.begin >= schedule.end):
            raise StopIteration
        return StreamIterator(self._cursor.started())

    def get_state(self) -> dict[str, Any]:
        """Return the state of the epoch under way or, after it, of the next one; iterators of the stream accept it.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4)
            >>> epochs = stream.epochs()
            >>> batches = list(next(epochs))
            >>> state = epochs.get_state()
            >>> state["epoch"], state["position"]
            (1, 10)
        """
        return self._cursor.state()

    def set_state(self, state: Any) -> None:
        """Continue with the rest of the epoch in which a state lies; nothing is left of it after its last item.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4)
            >>> epochs = stream.epochs()
            >>> epochs.set_state(stream.state(1))
            >>> [batch.tolist() for batch in next(epochs)]
            [[4, 5, 6, 7], [8, 9]]

        Raises:
            StateError: if the state belongs to other records or another order, or lies past the end.
        """
        reader, _ = restore_reader(self._reader, state)
        self._cursor.restore(state)
        self._reader = reader
        self._is_new = True
