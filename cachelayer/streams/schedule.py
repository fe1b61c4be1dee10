"""The schedule of a stream: the positions of every step, and the rows of it that a shard takes. Arithmetic only.

A *position* counts records from the first epoch on: place k of epoch e has position ``e * n + k``. The step that begins
at a position has the next G positions, the *global batch*. A shard takes a contiguous part of its rows. With n = 10
records, G = 4 and R = 2 shards::

    epoch       0                                   1
    position    0  1  2  3    4  5  6  7    8  9    10 11 12 13   ...
    step        0             1             2       3
    row         0  1  2  3    0  1  2  3    0  1    0  1  2  3
    shard       0  0  1  1    0  0  1  1    0  1    0  0  1  1

Borders cut the positions into *stretches*; :meth:`Schedule.stretches` is the one place that knows them::

    end of an epoch                   0 . . . . . . . . 9 | 10 . . . . . . . . 19 |
    end of a bucket (``cuts``)        0 . . . . 5 | 6 . 9 | 10 . . . 15 | 16 . 19 |
    left out (``left_out``, #)        0 . . 3 | # # | 6 9 | 10 . . . . . . . . 19 |

A step begins where a stretch does, and after every G positions from there. If G does not divide a stretch, the
remainder says what becomes of its last positions. What the shards get::

                     step 0        step 1        step 2 (2 records)
    R = 2, keep      01 | 23       45 | 67       8 | 9
    R = 4, keep      0|1|2|3       4|5|6|7       8|9|-|-       the last two get batches of 0 records
    R = 2, pad       01 | 23       45 | 67       89 | 99       mask 11 | 00
    R = 2, drop      01 | 23       45 | 67                     the next step begins at position 10
    R = 2, wrap      01 | 23       45 | 67       89 | 10 11    the step goes on in the next stretches

Records that were erased may be excluded: they keep their positions, and a step that had some is a short one, of which
the shards take what is left: ``R = 2, keep`` without the record at position 1 takes ``02 | 3`` of step 0.

A stream that has advanced to more records has :mod:`phases <cachelayer.streams.order.phases>`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

from cachelayer.errors import InvalidTypeError, RecordIndexError
from cachelayer.streams.order.orders import MOST_POSITIONS, Order
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.order.phases import Phase, advanced, with_last
from cachelayer.support.arguments import integer
from cachelayer.support.locks import PickledByFields, cached_property

Remainder = Literal["drop", "keep", "pad", "wrap"]
REMAINDERS: tuple[Remainder, ...] = get_args(Remainder)
_COUNTED_AT_ONCE = 1 << 16
"""Steps of one element a shard that are counted at once."""
_NO_END = 1 << 126
"""The end of a stream that has none."""
_DEFAULTS = {
    "shuffle": False,
    "reshuffle": True,
    "num_epochs": 1,
    "shard": (0, 1),
    "remainder": "keep",
    "start": 0,
    "left_out": (),
}
"""The arguments that the text of a schedule leaves out."""


class Stretch(NamedTuple):
    """Consecutive positions of one epoch and, if there are buckets, of one bucket; none of them is left out."""

    begin: int
    end: int
    origin: int
    """The position of place 0 of the epoch."""
    epoch: int
    order: Order
    """The order of the epoch."""
    first: int
    """The number of the first record of the epoch; the order counts records from there."""

    def numbers(self, positions: Indices) -> Indices:
        """Return the record number at each of some positions of the stretch."""
        numbers = self.order.at(self.epoch, positions - self.origin)
        return numbers + self.first if self.first else numbers

    def all_numbers(self) -> Indices:
        """Return the record numbers of the whole stretch; they may be read-only."""
        numbers = self.order.between(self.epoch, self.begin - self.origin, self.end - self.origin)
        return numbers + self.first if self.first else numbers


@dataclass(frozen=True)
class StepRange:
    """Consecutive steps of one stretch, all but the last of them whole; or one step that goes on behind borders."""

    begins: range
    """The position where every step begins."""
    end: int
    """The position after the last step."""
    following: int
    """Where the step after the last one begins; the end of the stream if there is none."""

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, number: int) -> StepRange:
        """Return the range of one of the steps."""
        begins = self.begins[number : number + 1]
        is_last = number == len(self) - 1
        return StepRange(begins, self.end, self.following) if is_last else StepRange(begins, begins.stop, begins.stop)

    @property
    def begin(self) -> int:
        """The position where the first step begins."""
        return self.begins[0]

    @property
    def after(self) -> list[int]:
        """The position after each step, where the next one begins."""
        return [*self.begins[1:], self.following]


@dataclass(frozen=True)
class Schedule(PickledByFields):
    """The steps of a stream, the order of its records, and what one shard takes of them; all of it checked."""

    order: Order
    """The order of the records; of the last phase, if the stream has advanced."""
    global_batch: int
    """The number of records of a whole step over all shards, G."""
    batched: bool = True
    """Whether the stream hands out batches, or elements."""
    remainder: Remainder = "keep"
    """What becomes of a step that a border cuts short."""
    num_epochs: int | None = 1
    """The number of epochs; None for no end."""
    shard_index: int = 0
    shard_count: int = 1
    """The number of shards, R, which divides G."""
    start: int = 0
    """The position where iterators begin."""
    prefetch: int = 2
    """The number of chunks that are read ahead."""
    left_out: tuple[tuple[int, int], ...] = ()
    """The begins and ends of the positions that no step has, ascending, with other positions between them."""
    earlier: tuple[Phase, ...] = ()
    """The phases before the last one, if the stream has advanced."""
    rows: Callable[[int], Indices] | None = None
    """Given the number of rows of a global batch, returns the rows to read; None for the rows of the shard."""
    arranges: bool = True
    """Whether an order in blocks arranges the rows of a step by lanes; not if steps are groups of elements."""
    excluded: Indices | None = field(default=None, compare=False)
    """The numbers of the erased records, of which no step has a row; None if there are none."""
    # What becomes of a step that a border cuts short. Nobody else asks for the remainder.
    drops: bool = field(init=False, repr=False, compare=False)
    """True if no shard takes it."""
    crosses: bool = field(init=False, repr=False, compare=False)
    """True if it goes on behind the border."""
    pads: bool = field(init=False, repr=False, compare=False)
    """True if rows fill it up that repeat its last record; batches come with a mask, False for these rows."""
    shortens: bool = field(init=False, repr=False, compare=False)
    """True if it stays short, so that shards get fewer records of it."""
    records: int = field(init=False, repr=False, compare=False)
    """The number of places of an epoch, n; of the last phase, if the stream has advanced."""
    phases: tuple[Phase, ...] = field(init=False, repr=False, compare=False)
    """All phases, of which the last one goes on to the end."""
    end: int | None = field(init=False, repr=False, compare=False)
    """The position after the last epoch; None for no end. With remainder "wrap" the last step may end later."""
    has_no_step: bool = field(init=False, repr=False, compare=False)
    """True if no epoch has a step."""
    _stop: int = field(init=False, repr=False, compare=False)
    """The end, or a position that no stream reaches."""
    _ends_of_stretches: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The places where a stretch of an epoch ends, if nothing of it is left out."""
    _ends_of_left_out: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The begins and ends of what is left out, in turn, ascending; then what no stretch reaches."""

    def __post_init__(self) -> None:
        records = self.order.length
        phases = with_last(self.earlier, self.order)
        end = None
        if self.num_epochs is not None:
            end = phases[-1].begin + max(0, self.num_epochs - phases[-1].epoch) * records
        ends_of_stretches = (*self.order.cuts, records)
        longest = max(high - low for low, high in pairwise((0, *ends_of_stretches)))
        drops = self.remainder == "drop"
        all_are_excluded = self.excluded is not None and len(self.excluded) == self.order.records
        vars(self).update(
            drops=drops,
            crosses=self.remainder == "wrap",
            pads=self.remainder == "pad",
            shortens=self.remainder == "keep",
            records=records,
            phases=phases,
            end=end,
            has_no_step=all_are_excluded or longest < (self.global_batch if drops else 1),
            _stop=_NO_END if end is None else end,
            _ends_of_stretches=ends_of_stretches,
            _ends_of_left_out=(*chain.from_iterable(self.left_out), 2 * _NO_END),
        )

    @property
    def epochs_are_alike(self) -> bool:
        """True if all epochs have the same number of steps, and a step begins where an epoch begins."""
        return not self.crosses and not self.left_out

    # Positions and stretches.

    @property
    def is_endless(self) -> bool:
        """True if the stream has no end."""
        return self.num_epochs is None

    @property
    def last_position(self) -> int | None:
        """The greatest position that a state may have; None if there is no end."""
        if self.end is not None and self.crosses:
            return self._position_after(self.end - 1, self.global_batch)
        return self.end

    def stretches(self, position: int) -> Iterator[Stretch]:
        """Yield the stretches from a position on, without an end; the first is what follows there of its stretch."""
        left_out = self._ends_of_left_out
        index = bisect_right(left_out, position)
        while True:
            if index % 2:
                # The position lies between a begin and an end of what is left out.
                position = left_out[index]
                index += 1
            phase = next(phase for phase in reversed(self.phases) if phase.begin <= position)
            records = phase.order.length
            epochs, place = divmod(position - phase.begin, records)
            origin = position - place
            # Buckets do not advance: a stream with cuts has one phase.
            ends = self._ends_of_stretches if phase.order.cuts else (records,)
            end = min(origin + ends[bisect_right(ends, place)], left_out[index])
            yield Stretch(position, end, origin, phase.epoch + epochs, phase.order, phase.first)
            position = end
            if position == left_out[index]:
                index += 1

    def between(self, begin: int, end: int) -> Iterator[Stretch]:
        """Yield the stretches between two positions, which may cut the first and the last of them."""
        for stretch in self.stretches(begin):
            if stretch.begin >= end:
                return
            yield stretch if stretch.end <= end else stretch._replace(end=end)

    def _size(self, begin: int, end: int) -> int:
        """Return how many positions between two are not left out."""
        return end - begin - sum(max(0, min(high, end) - max(low, begin)) for low, high in self.left_out)

    def _position_after(self, position: int, count: int) -> int:
        """Return the position after the next ``count`` positions that are not left out."""
        for low, high in self.left_out:
            if low >= position + count:
                break
            if high > position:
                count -= max(0, low - position)
                position = high
        return position + count

    # Steps from a position on.

    def next_start(self, position: int) -> int:
        """Return where the next step from a position on begins; the end if there is none."""
        stop = self._stop
        if position >= stop or self.has_no_step:
            return position if self.end is None else max(position, stop)
        least = self.global_batch if self.drops else 1
        stretches = self.stretches(position)
        while True:
            stretch = next(stretches)
            if stretch.begin >= stop or stretch.end - stretch.begin >= least:
                return stretch.begin
            if stretch.end >= stop:
                return stretch.end

    def at(self, position: int, most: int | None = None) -> StepRange | None:
        """Return the steps of one stretch from a position on, at most ``most``; None after the last step."""
        begin = self.next_start(position)
        if begin >= self._stop or self.has_no_step:
            return None
        end = next(self.stretches(begin)).end
        batch = self.global_batch
        if self.crosses and end - begin < batch:
            end = self._position_after(begin, batch)
            return StepRange(range(begin, begin + 1), end, self.next_start(end))
        if self.drops or self.crosses:
            end -= (end - begin) % batch
        if most is not None:
            end = min(end, begin + most * batch)
        return StepRange(range(begin, end, batch), end, self.next_start(end))

    def first_start(self, position: int, base: int) -> int:
        """Return where the first step from a position on begins, if one begins at ``base``, and nothing is left out.

        Only a step that crosses borders reaches over the position: then the first step begins behind it.
        """
        if not self.crosses or position <= base:
            return position
        steps = -(-self._size(base, position) // self.global_batch)
        return max(position, self._position_after(base, steps * self.global_batch))

    def why_invalid(self, position: int) -> str | None:
        """Return why no step can begin at a position; None if one can."""
        if not self.order.cuts:
            return None
        if self.crosses:
            return f"a step has records of one bucket: pass another remainder than {self.remainder!r}"
        if self.records == 0 or position % self.records == 0:
            return None
        origin = position - position % self.records
        edges = [origin, *(origin + place for place in self._ends_of_stretches)]
        stretch_begin = max(edge for edge in chain(edges, (high for _, high in self.left_out)) if edge <= position)
        stretch_end = min(edge for edge in chain(edges, (low for low, _ in self.left_out)) if edge > position)
        begin = position - (position - stretch_begin) % self.global_batch
        if begin == position:
            return None
        end = min(begin + self.global_batch, stretch_end)
        return (
            f"position {position} lies within a step: with buckets only the starts of steps are valid, the nearest "
            f"are {begin} and {end}"
        )

    # Steps are counted without visiting them: epochs that are alike have as many.

    @cached_property
    def _borders_of_alike(self) -> list[int]:
        """The positions, ascending, at which something is left out, another phase begins, or the stream ends."""
        return sorted({*(low for low, _ in self.left_out), *(phase.begin for phase in self.phases), self._stop})

    def _alike(self, position: int) -> Iterator[tuple[list[Stretch], int]]:
        """Yield the stretches from a position to the end; of epochs that are alike, those of the first alone.

        With each list comes the number of epochs. With n = 10 and positions 34 to 35 left out, from position 4 on::

            position    4 . 9 | 10 . 19 | 20 . 29 | 30 . 33 | # # | 36 . 39 | 40 . 49 | 50 ...
            list        1       2: two epochs       3               4         5: all that follow
        """
        while self.records and position < self._stop:
            stretch = next(self.stretches(position))
            if stretch.begin >= self._stop:
                return
            records = stretch.order.length
            border = self._borders_of_alike[bisect_right(self._borders_of_alike, stretch.begin)]
            epochs = (border - stretch.begin) // records
            if epochs and stretch.begin == stretch.origin:
                yield [*self.between(stretch.begin, stretch.begin + records)], epochs
                position = stretch.begin + epochs * records
            else:
                yield [stretch], 1
                position = stretch.end

    def _count_in(self, stretch: Stretch, offset: int = 0) -> int:
        """Return the number of steps that begin in a stretch with more than ``offset`` records; they do not cross."""
        length = stretch.end - stretch.begin
        return length // self.global_batch if self.drops else -((offset - length) // self.global_batch)

    def count(self, start: int, offset: int = 0) -> int | None:
        """Return the number of steps from a position on with more than ``offset`` records; None if there is no end."""
        if self.end is None:
            return None
        if self.has_no_step:
            return 0
        if self.crosses:
            return max(0, -(-self._size(start, self.end) // self.global_batch))
        return sum(
            epochs * sum(self._count_in(stretch, offset) for stretch in stretches)
            for stretches, epochs in self._alike(start)
        )

    def nth(self, start: int, number: int) -> StepRange | None:
        """Return step ``number``, counted from a position; None if there is no such step."""
        if self.crosses:
            return self.at(self._position_after(self.next_start(start), number * self.global_batch), 1)
        for stretches, epochs in self._alike(start):
            count = sum(map(self._count_in, stretches))
            if number >= epochs * count:
                number -= epochs * count
                continue
            epoch, number = divmod(number, count)
            position = epoch * stretches[0].order.length
            for stretch in stretches:
                count = self._count_in(stretch)
                if number < count:
                    return self.at(position + stretch.begin + number * self.global_batch, 1)
                number -= count
        return None

    def step_sizes(self, start: int) -> set[int]:
        """Return the numbers of rows that global batches from a position on may have, with that of whole steps."""
        sizes = {self.global_batch}
        if self.shortens and self.excluded is not None:
            return {*range(self.global_batch + 1)}
        if self.shortens:
            for stretches, _ in self._alike(start):
                sizes.update((stretch.end - stretch.begin) % self.global_batch for stretch in stretches)
        return sizes - {0}

    def next_of_worker(self, step: StepRange, workers: int) -> int:
        """Return where the next step of the worker that has this step begins, if workers take turns at the steps."""
        following = self.nth(step.begin, workers)
        if following is not None:
            return following.begin
        return MOST_POSITIONS if self.end is None else self.end

    # What a stream says of its steps, which are counted from ``start``.

    @property
    def item_count(self) -> int:
        """The number of items of this shard, from ``start`` on; raises an InvalidTypeError if there is no end."""
        # Without batches a shard skips the steps that are too short to have an element for it.
        count = self.count(self.start, 0 if self.batched else self.shard_index)
        if count is not None:
            return count if self.batched or self.excluded is None else self._count_elements(self.excluded)
        if self.order.described["kind"] == "weighted":
            raise InvalidTypeError("a weighted sample has no end, and so no length: take as many batches as you need")
        if self.records >= MOST_POSITIONS:
            raise InvalidTypeError("a mixture has no end, and so no length: take as many batches from it as you need")
        raise InvalidTypeError("an endless stream has no length: pass num_epochs=")

    def _count_elements(self, excluded: Indices) -> int:
        """Return how many elements this shard has from ``start`` on, without those of excluded records."""
        count = 0
        at_once = _COUNTED_AT_ONCE * self.global_batch
        for stretch in self.between(self.start, self._stop):
            for begin in range(stretch.begin, stretch.end, at_once):
                piece = stretch._replace(begin=begin, end=min(stretch.end, begin + at_once))
                kept = ~np.isin(piece.all_numbers(), excluded)
                sizes = np.add.reduceat(kept, np.arange(0, len(kept), self.global_batch), dtype=np.int64)
                count += int((sizes > self.shard_index).sum())
        return count

    def step(self, number: int) -> StepRange:
        """Return a step of all shards, counted from ``start``, or from the end if the number is negative."""
        index = integer("step", number)
        total = self.count(self.start)
        if index < 0:
            if total is None:
                raise RecordIndexError(f"step {index}: an endless stream has no last step")
            index += total
        steps = None if index < 0 else self.nth(self.start, index)
        if steps is None:
            raise RecordIndexError(f"step {number}: the stream has {total} steps")
        if steps.end > MOST_POSITIONS:
            raise RecordIndexError(f"step {number} ends past 2**62, the largest position")
        return steps

    # Rows and shards.

    def row_count(self, size: int) -> int:
        """Return the number of rows of the global batch of a step with ``size`` records."""
        return self.global_batch if self.pads else size

    def rows_of(self, size: int) -> Indices:
        """Return the rows that are read of a step with ``size`` records; rows from ``size`` on fill it up.

        If the shards cannot take equally many, the first ones take one more.
        """
        count = self.row_count(size)
        if self.rows is not None:
            return self.rows(count)
        least, extra = divmod(count, self.shard_count)
        begin = self.shard_index * least + min(self.shard_index, extra)
        return np.arange(begin, begin + least + (self.shard_index < extra))

    # Other schedules.

    def without(self, ranges: Iterable[Sequence[int]]) -> Schedule:
        """Return the schedule without more positions: their begins and ends, in any order."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self.left_out, *map(tuple, ranges)]):
            if merged and low <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(high, merged[-1][1])
            elif low < high:
                merged.append((low, high))
        return replace(self, left_out=tuple(merged))

    def advanced(self, position: int, records: int, digest: str, newer: str) -> Schedule:
        """Return the schedule that goes on over more records; see :func:`cachelayer.streams.order.phases.advanced`."""
        earlier = advanced(self.phases, position, records, digest, newer)
        return replace(self, order=self.order.over(records), earlier=earlier)

    def __str__(self) -> str:
        """Return what differs from the defaults, as the arguments of a call."""
        described = self.order.described
        order = {name: value for name, value in described.items() if name not in ("kind", "version")}
        if described["kind"] == "blocks":
            from cachelayer.streams.order.blocks import Blocks

            order["shuffle"] = Blocks(**order.pop("blocks"))
        elif "blocks" in order:
            order["shuffle"] = "blocks"
        arguments = {
            "global_batch_size": self.global_batch if self.batched else None,
            **order,
            "num_epochs": self.num_epochs,
            "shard": (self.shard_index, self.shard_count),
            "remainder": self.remainder,
            "start": self.start,
            "left_out": self.left_out,
        }
        return ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != _DEFAULTS.get(name))
