"""The epochs of a stream, one after another: for ``stream.epochs()``, and for all that frameworks iterate over.

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

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

from cachelayer.errors import InvalidArgumentError, StateError
from cachelayer.protocols import T
from cachelayer.streams.ahead.prefetch import Prefetcher
from cachelayer.streams.continuing import advance_reader, restore_reader
from cachelayer.streams.cursor import Chunks, Cursor
from cachelayer.streams.order.orders import MOST_POSITIONS
from cachelayer.streams.order.weighted import WeightedOrder
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Schedule
from cachelayer.streams.state import epoch_of, state_of_loops
from cachelayer.support.arguments import integer
from cachelayer.support.user_warnings import warn


@dataclass(frozen=True)
class Iterations:
    """The epochs of each iteration over a stream that has an end.

    Iteration k of a stream of one epoch has epoch k. With ``num_epochs=3`` it has epochs 3k to 3k + 2. If the stream
    begins within an epoch, so does its own iteration; those that follow are whole.
    """

    schedule: Schedule
    """The schedule of the stream."""

    @property
    def epochs(self) -> int:
        """The number of epochs of an iteration; 0 if the stream has none: then every iteration is the empty stream."""
        return (self.schedule.num_epochs or 0) - self._epoch if self.schedule.records else 0

    @property
    def first(self) -> int:
        """The number of the iteration that the stream itself is."""
        return self._epoch // self.epochs if self.epochs else 0

    @property
    def _epoch(self) -> int:
        """The epoch that the stream begins in; the last one, if it begins at its end."""
        schedule = self.schedule
        return max(0, min(schedule.start // max(1, schedule.records), (schedule.num_epochs or 0) - 1))

    @property
    def _offset(self) -> int:
        return self._epoch - self.first * self.epochs

    @property
    def steps(self) -> int:
        """The number of items of a whole iteration; iterations with records left out have fewer."""
        return replace(self.schedule, num_epochs=self.epochs, start=0, left_out=()).item_count

    def number_at(self, position: int) -> int:
        """Return the number of the iteration that a position lies in; the end of one lies in the next."""
        if not self.epochs:
            return 0
        return max(0, position // self.schedule.records - self._offset) // self.epochs

    def whole(self, number: int, base: int) -> Schedule:
        """Return the schedule of a whole iteration.

        ``base`` is where a step before it begins, or the iteration before it ends. With "wrap", the last step of an
        iteration reaches into the next one, which therefore begins later.
        """
        if not self.epochs:
            return self.schedule
        if isinstance(self.schedule.order, WeightedOrder):
            raise InvalidArgumentError("a weighted sample has no epochs: iterate over the stream itself")
        first = self._offset + number * self.epochs
        end = first + self.epochs
        if end * self.schedule.records > MOST_POSITIONS:
            raise InvalidArgumentError(
                f"epoch {end - 1} of {self.schedule.records} records ends past 2**62, the largest position"
            )
        schedule = self.schedule
        begin = schedule.first_start(first * schedule.records, base)
        # The iteration before it has ended within this one.
        is_within = begin <= base < begin + schedule.global_batch and schedule.crosses
        return replace(schedule, start=base if is_within else begin, num_epochs=end)

    def contains(self, number: int, position: int) -> bool:
        """Return whether a position lies in an iteration, or at its end."""
        if not self.epochs:
            return True
        first_epoch = self._offset + number * self.epochs
        last = self.whole(number, 0).last_position
        return last is not None and first_epoch * self.schedule.records <= position <= last

    def rest(self, number: int, position: int) -> Schedule:
        """Return the schedule of what is left of an iteration from a position on, which lies in it."""
        return replace(self.whole(number, 0), start=position)


class EpochCursor(Generic[T]):
    """The cursor of the present iteration, and the way to the next one.

    ``prepare`` returns the reader that reads for an iteration, given that of its steps, when it begins.
    """

    def __init__(
        self,
        reader: StepReader,
        chunks_of: Callable[[StepReader], Chunks[T]] = Prefetcher,
        prepare: Callable[[StepReader], StepReader] = lambda reader: reader,
    ) -> None:
        self.stream = reader
        """Reads the steps of the stream."""
        self.cursor: Cursor[T] | None = None
        """The cursor of the present iteration, once a loop over it began."""
        self._chunks_of = chunks_of
        self._prepare = prepare
        self._number = self._iterations.first
        """The number of the present iteration."""
        self._schedule = self._iterations.rest(self._number, reader.schedule.start)
        """The schedule of the present iteration."""
        self._restored: int | None = None
        """The position of the state that the present iteration goes on from; None if there is none."""
        self._left_early = 0
        """The number of loops over the present iteration that were left early."""

    @property
    def _iterations(self) -> Iterations:
        return Iterations(self.stream.schedule)

    @property
    def _is_endless(self) -> bool:
        return self.stream.schedule.is_endless

    @property
    def reader(self) -> StepReader:
        """The reader of the present iteration: of what is left of it, if it began at a state."""
        return replace(self.stream, schedule=self._schedule)

    @property
    def begin(self) -> int:
        """The position at which the first step of the present iteration begins."""
        return self._schedule.next_start(self._schedule.start)

    @property
    def position(self) -> int:
        """The position after the last item of the present iteration."""
        return self.begin if self.cursor is None else self.cursor.position

    @property
    def _has_begun(self) -> bool:
        """True if the present iteration was asked for an item."""
        return self.cursor is not None and (self.cursor.has_ended or self.position != self.begin)

    @property
    def _is_over(self) -> bool:
        """True if the present iteration has handed out its last item."""
        if self.cursor is None or not self._has_begun:
            return False
        return self.cursor.has_ended or replace(self._schedule, start=self.position).item_count == 0

    def __len__(self) -> int:
        """Return the number of items of a whole iteration; raise TypeError if the stream has no end."""
        return self.stream.schedule.item_count if self._is_endless else self._iterations.steps

    def started(self) -> Cursor[T]:
        """Return the cursor of the next epoch, or of the one that was left early; if there is no end, the only one."""
        if self._has_begun and not self._is_endless:
            if self._is_over:
                self.begin_next()
            else:
                self._begin_again()
        if self.cursor is None:
            self.cursor = Cursor(self._prepare(self.reader), self._chunks_of)
        return self.cursor

    def _begin_again(self) -> None:
        """Forget the cursor of the present iteration, which was left early: the next one begins where it began."""
        self.cursor = None
        self._left_early += 1
        order = self._schedule.order
        if self._left_early == 3 and order.shuffle and order.reshuffle:
            warn(
                f"loops over epoch {self._number} end before its last item, and each begins this epoch again: call "
                "set_epoch(e) before each loop for another epoch, or pass num_epochs=None to stream() to go on after "
                "the last item"
            )

    def begin_next(self) -> None:
        """Go to the iteration after the present one, whether or not anything was asked of this one."""
        self._number, self._schedule = self._following()
        self.cursor = self._restored = None
        self._left_early = 0

    def _following(self) -> tuple[int, Schedule]:
        """Return the number and the schedule of the iteration after the present one."""
        iterations = self._iterations
        number = self._number + 1 if iterations.epochs else 0
        return number, iterations.whole(number, self.position)

    def _go_to(self, number: int, schedule: Schedule, stream: StepReader) -> None:
        """Make an iteration of a stream the present one; it was not asked for an item yet."""
        if self.cursor is not None and not self._has_begun:
            # A loop may have begun already: it goes there too.
            self.cursor.go_to(self._prepare(replace(stream, schedule=schedule)), schedule.start)
        else:
            self.cursor = None
        self.stream = stream
        self._number = number
        self._schedule = schedule
        self._left_early = 0

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with an epoch, or with what a restored state leaves of it."""
        number = integer("epoch", epoch, 0)
        expected = self._number + 1 if not self._is_endless and self._is_over else self._number
        if self._is_endless or number == expected:
            return
        if self._has_begun:
            self._restored = None
        position = self._restored
        if position is not None and self._iterations.contains(number, position):
            self._go_to(number, self._iterations.rest(number, position), self.stream)
        else:
            self._go_to(number, self._iterations.whole(number, self.stream.schedule.start), self.stream)

    # States.

    def state(self) -> dict[str, Any]:
        """Return the state after the last item; after a loop, the next iteration follows."""
        if self.cursor is None or not self.cursor.has_ended or self._is_endless:
            return self.state_within()
        number, schedule = self._following()
        return self._state(number, schedule.next_start(schedule.start))

    def state_within(self) -> dict[str, Any]:
        """Return the state within the present iteration: at its end, nothing of it follows."""
        return self._state(self._number, self.position)

    def _state(self, number: int, position: int) -> dict[str, Any]:
        reader = self.stream if self.cursor is None else self.cursor.reader
        epoch = position // self.stream.schedule.records if self._is_endless else number
        return state_of_loops(reader.state(position), epoch)

    def restore(self, state: Any) -> None:
        """Begin the next iteration at a state of any stream of the same records in the same order."""
        num_epochs = self.stream.schedule.num_epochs
        reader, position = restore_reader(self.stream.with_schedule(num_epochs=None), state)
        reader = reader.with_schedule(num_epochs=num_epochs)
        if reader.schedule.earlier and not self._is_endless:
            raise StateError(
                "the state has advanced to more records, which epochs that are iterated over again and again do not: "
                "restore it with iter()"
            )
        iterations = Iterations(reader.schedule)
        epoch = epoch_of(state)
        is_known = epoch is not None and iterations.contains(epoch, position)
        number = epoch if epoch is not None and is_known else iterations.number_at(position)
        self._go_to(number, iterations.rest(number, position), reader)
        self._restored = position

    def advance_to(self, newer: Any) -> None:
        """Have an endless stream go on over a newer version, to which records were appended."""
        if not self._is_endless:
            raise InvalidArgumentError(
                "advance_to(): iterations over a stream that has an end are epochs of its own records. Pass "
                "num_epochs=None to stream(); or between two epochs, use newer.stream(...), and set_epoch() with the "
                "number of the next"
            )
        cursor = self.started()
        reader = advance_reader(self.stream, newer, cursor.position)
        cursor.advance_to(newer)
        self.stream = reader
        self._schedule = replace(reader.schedule, start=cursor.position)
