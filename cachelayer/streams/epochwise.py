"""Iterate over the epochs of a stream, one after another: ``stream.epochs()``, and what frameworks iterate over.

A framework iterates over one object again and again, and expects the next epoch every time. An *iteration* has as many
epochs as the stream. With 10 records, ``num_epochs=2`` and ``start=14``::

    position     0 ...... 9 | 10 ...... 19 | 20 ..... 29 | 30 ..... 39 | 40 ...
    epoch        0          | 1            | 2           | 3           | 4
    the stream                    14 .. 19
    iteration                     1        | 2           | 3           | 4

The stream begins within epoch 1 and ends with it, so it has one epoch left. So has every iteration that follows, which
is whole.

**An iteration ends when its last item is handed out**, whether or not the loop over it asks for more. One that was left
before that begins again, where it began: so to look at a batch, as Keras does to build a model, uses up nothing. Only
who names another epoch, by ``set_epoch()`` or ``next(stream.epochs())``, has that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic

from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError, StateError
from cachelayer.protocols import T
from cachelayer.streams.continuing import advance_reader, restore_reader
from cachelayer.streams.iterator import StreamIterator, continue_as, has_ended, state_at
from cachelayer.streams.order.weighted import WeightedOrder
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.state import epoch_of, state_of_loops
from cachelayer.streams.step_numbers import count_steps, epoch_start
from cachelayer.streams.steps import MOST_POSITIONS
from cachelayer.streams.stream_options import StreamOptions
from cachelayer.streams.stream_stats import StreamStats
from cachelayer.user_warnings import warn


@dataclass(frozen=True)
class Iterations:
    """The epochs of each iteration over a stream that has an end.

    Iteration k of a stream of one epoch has epoch k. With ``num_epochs=3`` it has epochs 3k to 3k + 2. If the stream
    begins within an epoch, so does its own iteration; those that follow are whole.
    """

    options: StreamOptions
    """The options of the stream."""

    @property
    def epochs(self) -> int:
        """The number of epochs of an iteration; 0 if the stream has none: then every iteration is the empty stream."""
        steps = self.options.steps
        return (steps.num_epochs or 0) - self._epoch if steps.records else 0

    @property
    def first(self) -> int:
        """The number of the iteration that the stream itself is."""
        return self._epoch // self.epochs if self.epochs else 0

    @property
    def _epoch(self) -> int:
        """The epoch that the stream begins in; the last one, if it begins at its end."""
        steps = self.options.steps
        return max(0, min(self.options.start // max(1, steps.records), (steps.num_epochs or 0) - 1))

    @property
    def _offset(self) -> int:
        return self._epoch - self.first * self.epochs

    @property
    def steps(self) -> int:
        """The number of items of a whole iteration; iterations with records left out have fewer."""
        options = self.options
        whole = replace(options.steps, num_epochs=self.epochs, left_out=())
        return count_steps(whole, 0, 0 if options.batched else options.shard_index) or 0

    def number_at(self, position: int) -> int:
        """Return the number of the iteration that a position lies in; the end of one lies in the next."""
        if not self.epochs:
            return 0
        return max(0, position // self.options.steps.records - self._offset) // self.epochs

    def whole(self, number: int, base: int) -> StreamOptions:
        """Return the options of a whole iteration.

        Args:
            number: the number of the iteration.
            base: where a step before it begins, or the iteration before it ends. With "wrap", the last step of an
                iteration reaches into the next one, which therefore begins later.

        Raises:
            InvalidArgumentError: if there are no epochs, or not as many.
        """
        if not self.epochs:
            return self.options
        if isinstance(self.options.order, WeightedOrder):
            raise InvalidArgumentError("a weighted sample has no epochs: iterate over the stream itself")
        first = self._offset + number * self.epochs
        end = first + self.epochs
        if end * self.options.steps.records > MOST_POSITIONS:
            raise InvalidArgumentError(
                f"epoch {end - 1} of {self.options.steps.records} records ends past 2**62, the largest position"
            )
        steps = replace(self.options.steps, num_epochs=end)
        begin = epoch_start(steps, first, base)
        # The iteration before it has ended within this one.
        is_within = begin <= base < begin + steps.global_batch and steps.rule.crosses
        return replace(self.options, start=base if is_within else begin, steps=steps)

    def contains(self, number: int, position: int) -> bool:
        """Return whether a position lies in an iteration, or at its end."""
        if not self.epochs:
            return True
        steps = self.whole(number, 0).steps
        first_epoch = self._offset + number * self.epochs
        last = steps.last_position
        return last is not None and first_epoch * steps.records <= position <= last

    def rest(self, number: int, position: int) -> StreamOptions:
        """Return the options of what is left of an iteration from a position on, which lies in it."""
        return replace(self.whole(number, 0), start=position)


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
        reader: reads the steps of the stream.
        iterator_of: given the reader of an iteration, returns its iterator.
    """

    def __init__(
        self, reader: StepReader, iterator_of: Callable[[StepReader], StreamIterator[T]] = StreamIterator
    ) -> None:
        self._reader = reader
        self._iterator_of = iterator_of
        self._number = self._iterations.first
        """The number of the present iteration."""
        self._options = self._iterations.rest(self._number, reader.options.start)
        """The options of the present iteration."""
        self._iterator: StreamIterator[T] | None = None
        """The iterator of the present iteration, once ``iter()`` was called."""
        self._restored: int | None = None
        """The position of the state that the present iteration goes on from; None if there is none."""
        self._left_early = 0
        """The number of loops over the present iteration that were left early."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._reader.records!r}, {self._reader.options})"

    @property
    def _iterations(self) -> Iterations:
        return Iterations(self._reader.options)

    @property
    def _is_endless(self) -> bool:
        return self._reader.options.steps.end is None

    @property
    def _has_begun(self) -> bool:
        """True if the present iteration was asked for an item."""
        iterator = self._iterator
        return iterator is not None and (has_ended(iterator) or iterator.position != self._begin)

    @property
    def _is_over(self) -> bool:
        """True if the present iteration has handed out its last item."""
        iterator = self._iterator
        if iterator is None or not self._has_begun:
            return False
        return has_ended(iterator) or replace(self._options, start=iterator.position).item_count == 0

    def _begin_again(self) -> None:
        """Forget the iterator of the present iteration, which was left early: the next one begins where it began."""
        self._iterator = None
        self._left_early += 1
        order = self._options.order
        if self._left_early == 3 and order.shuffle and order.reshuffle:
            warn(
                f"loops over epoch {self._number} end before its last item, and each begins this epoch again: call "
                "set_epoch(e) before each loop for another epoch, or pass num_epochs=None to stream() to go on after "
                "the last item"
            )

    def _go_to(self, number: int, options: StreamOptions, reader: StepReader) -> None:
        """Make an iteration of a reader's stream the present one; it was not asked for an item yet."""
        iterator = self._iterator
        if iterator is not None and not self._has_begun:
            # A loop may have called iter() already: its iterator goes there too.
            continue_as(iterator, self._iterator_of(replace(reader, options=options)))
        else:
            self._iterator = None
        self._reader = reader
        self._number = number
        self._options = options
        self._left_early = 0

    def _following(self) -> tuple[int, StreamOptions]:
        """Return the number and the options of the iteration after the present one."""
        position = self._begin if self._iterator is None else self._iterator.position
        iterations = self._iterations
        number = self._number + 1 if iterations.epochs else 0
        return number, iterations.whole(number, position)

    def __iter__(self) -> StreamIterator[T]:
        """Iterate over the next epoch, or the one that was left early; if there is no end, go on."""
        if self._has_begun and not self._is_endless:
            if self._is_over:
                begin_next_iteration(self)
            else:
                self._begin_again()
        if self._iterator is None:
            self._iterator = self._iterator_of(reader_of_iteration(self))
        return self._iterator

    def __len__(self) -> int:
        """Return the number of items of a whole iteration; raise TypeError if the stream has no end."""
        return self._reader.options.item_count if self._is_endless else self._iterations.steps

    @property
    def _begin(self) -> int:
        """The position at which the first step of the present iteration begins."""
        return self._options.steps.next_start(self._options.start)

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
        number = integer("epoch", epoch, 0)
        expected = self._number + 1 if not self._is_endless and self._is_over else self._number
        if self._is_endless or number == expected:
            return
        if self._has_begun:
            self._restored = None
        position = self._restored
        if position is not None and self._iterations.contains(number, position):
            self._go_to(number, self._iterations.rest(number, position), self._reader)
        else:
            self._go_to(number, self._iterations.whole(number, self._reader.options.start), self._reader)

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
        if self._iterator is None or not has_ended(self._iterator) or self._is_endless:
            return state_of_iteration(self)
        number, options = self._following()
        return self._state(number, options.steps.next_start(options.start))

    def _state(self, number: int, position: int) -> dict[str, Any]:
        iterator = self._iterator
        state = self._reader.state(position) if iterator is None else state_at(iterator, position)
        epoch = position // self._reader.options.steps.records if self._is_endless else number
        return state_of_loops(state, epoch)

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
        steps = self._reader.options.steps
        reader, position = restore_reader(self._reader.with_steps(replace(steps, num_epochs=None)), state)
        reader = reader.with_steps(replace(reader.options.steps, num_epochs=steps.num_epochs))
        if reader.options.steps.earlier and not self._is_endless:
            raise StateError(
                "the state has advanced to more records, which epochs that are iterated over again and again do not: "
                "restore it with iter()"
            )
        iterations = Iterations(reader.options)
        epoch = epoch_of(state)
        is_known = epoch is not None and iterations.contains(epoch, position)
        number = epoch if epoch is not None and is_known else iterations.number_at(position)
        self._go_to(number, iterations.rest(number, position), reader)
        self._restored = position

    def advance_to(self, newer: Any) -> None:
        """Go on over a newer version, to which records were appended, as :meth:`cachelayer.StreamIterator.advance_to`.

        The stream must be endless: then a loop that is under way goes on too. States that are saved from then on belong
        to the newer version.

        Examples:
            >>> from cachelayer.adapters import torch
            >>> storage = cachelayer.Storage(folder)
            >>> loader = torch.loader(storage.cache(range(4), "numbers", "v1").stream(4, num_epochs=None))
            >>> iterator = iter(loader)
            >>> next(iterator).tolist()
            [0, 1, 2, 3]
            >>> loader.advance_to(storage.append("numbers", "v1", "v2", [4, 5]))
            >>> next(iterator).tolist(), next(iterator).tolist()
            ([4, 5], [0, 1, 2, 3])

        Args:
            newer: the newer version, or the same view of it as the stream has.

        Raises:
            InvalidArgumentError: if the stream has an end, or cannot go on over these elements.
            StateError: if worker processes read the steps.
        """
        if not self._is_endless:
            raise InvalidArgumentError(
                "advance_to(): iterations over a stream that has an end are epochs of its own records. Pass "
                "num_epochs=None to stream(); or between two epochs, use newer.stream(...), and set_epoch() with the "
                "number of the next"
            )
        iterator = iter(self)
        reader = advance_reader(self._reader, newer, iterator.position)
        iterator.advance_to(newer)
        self._reader = reader
        self._options = replace(reader.options, start=iterator.position)

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
        if self._iterator is None:
            return StreamStats(0.0, 0.0, 0.0, self._reader.is_mapped)
        return self._iterator.stats()


def reader_of_iteration(loops: Epochwise[Any]) -> StepReader:
    """Return the reader of the present iteration: of what is left of it, if it began at a state."""
    return replace(loops._reader, options=loops._options)


def begin_next_iteration(loops: Epochwise[Any]) -> None:
    """Go to the iteration after the present one, whether or not anything was asked of this one."""
    loops._number, loops._options = loops._following()
    loops._iterator = loops._restored = None
    loops._left_early = 0


def state_of_iteration(loops: Epochwise[Any]) -> dict[str, Any]:
    """Return the state within the present iteration: at its end, nothing of it follows."""
    position = loops._begin if loops._iterator is None else loops._iterator.position
    return loops._state(loops._number, position)


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
        steps = reader.options.steps
        # Streams have one epoch by default, so 1 does not limit the epochs here.
        self._reader = reader.with_steps(replace(steps, num_epochs=None)) if steps.num_epochs == 1 else reader
        first = reader.options.start // max(1, steps.records)
        self._loops: Epochwise[T] = Epochwise(reader.with_steps(replace(steps, num_epochs=first + 1)))
        self._is_new = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._reader.records!r}, {self._reader.options})"

    def __identity__(self) -> Any:
        return self._reader.__identity__(), self.get_state()["position"]

    def __iter__(self) -> Epochs[T]:
        return self

    def __next__(self) -> StreamIterator[T]:
        if not self._is_new:
            begin_next_iteration(self._loops)
        self._is_new = False
        steps = self._reader.options.steps
        if steps.records == 0 or (steps.end is not None and self._loops._begin >= steps.end):
            raise StopIteration
        return iter(self._loops)

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
        return self._loops.get_state()

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
        self._loops.set_state(state)
        self._reader = reader
        self._is_new = True
