"""Steps: the positions of every step, and the rows of it that every shard takes. Arithmetic only.

A *position* counts records from the first epoch on: place k of epoch e has position ``e * n + k``. The step that begins
at a position has the next G positions, the *global batch*. A shard takes a contiguous part of its rows. With n = 10
records, G = 4 and R = 2 shards::

    epoch       0                                   1
    position    0  1  2  3    4  5  6  7    8  9    10 11 12 13   ...
    step        0             1             2       3
    row         0  1  2  3    0  1  2  3    0  1    0  1  2  3
    shard       0  0  1  1    0  0  1  1    0  1    0  0  1  1

A *border* ends a step early, as the end of epoch 0 ends step 2. The remainder says what becomes of such a step: its
:class:`Rule`, in this module, says what that means. The positions that the shards get::

                     step 0        step 1        step 2 (2 records)
    R = 2, keep      01 | 23       45 | 67       8 | 9
    R = 4, keep      0|1|2|3       4|5|6|7       8|9|-|-       the last two get batches of 0 records
    R = 2, pad       01 | 23       45 | 67       89 | 99       mask 11 | 00
    R = 2, drop      01 | 23       45 | 67                     the next step begins at position 10
    R = 2, wrap      01 | 23       45 | 67       89 | 10 11    positions 10 and 11 are the first of epoch 1

There are three kinds of borders. The positions between two of them are a *stretch*::

    end of an epoch                   0 . . . . . . . . 9 | 10 . . . . . . . . 19 |
    end of a bucket (``cuts``)        0 . . . . 5 | 6 . 9 | 10 . . . 15 | 16 . 19 |
    left out (``left_out``, #)        0 . . 3 | # # | 6 9 | 10 . . . . . . . . 19 |

A stream that has advanced to more records has *phases*: all epochs of a phase run over the same records. Here four
records were appended to ten while epoch 1 was under way. They come once by themselves, then epoch 2 has all 14::

    position    0 ..... 9 | 10 .... 19 | 20 .... 23 | 24 .... 37 | 38 ...
    epoch       0         | 1          | (no epoch) | 2          | 3
    phase       records 0 to 9         | 10 to 13   | records 0 to 13
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from cachelayer.locks import cached_property
from cachelayer.streams.order.permutation import Indices

MOST_POSITIONS = 1 << 62
"""Positions are added and multiplied as signed 64-bit integers."""

Remainder = Literal["drop", "keep", "pad", "wrap"]


@dataclass(frozen=True)
class Rule:
    """A rule for a step that a border cuts short."""

    drops: bool = False
    """Whether no shard takes the step."""
    crosses: bool = False
    """Whether the step goes on behind the border."""
    fill: Callable[[Indices, int], Indices] | None = None
    """If the step is filled up: given rows of it and its number of records, returns which record each row has."""
    masks: bool = False
    """Whether batches come with a mask, which is False for the rows that fill up the step."""

    @property
    def shortens(self) -> bool:
        """True if the step stays short, so that shards get fewer records of it."""
        return not (self.drops or self.crosses or self.fill)


def _repeat_last(rows: Indices, size: int) -> Indices:
    return np.minimum(rows, size - 1)


RULES: dict[Remainder, Rule] = {
    "drop": Rule(drops=True),
    "keep": Rule(),
    "pad": Rule(fill=_repeat_last, masks=True),
    "wrap": Rule(crosses=True),
}


class Step(NamedTuple):
    """One step of all shards: the positions from ``begin`` to ``end``, without those that are left out."""

    begin: int
    end: int


@dataclass(frozen=True)
class StepRange:
    """Consecutive steps of one stretch. All but the last are whole."""

    begins: range
    """The position where every step begins."""
    end: int
    """The position after the last step."""

    @classmethod
    def of(cls, step: Step) -> StepRange:
        """Return the range of one step."""
        return cls(range(step.begin, step.begin + 1), step.end)

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, number: int) -> Step:
        following = number + 1
        end = self.begins[following] if following < len(self.begins) else self.end
        return Step(self.begins[number], end)


class Phase(NamedTuple):
    """Epochs over the same records, one after another. States call it a segment."""

    begin: int
    """The position where its first epoch begins."""
    records: int
    """The number of records of an epoch."""
    epoch: int = 0
    """The number of its first epoch."""
    first: int = 0
    """The number of its first record."""
    digest: str = ""
    """The digest of all records up to its last one; empty for the last phase: it has the records of the stream."""


class EpochSlice(NamedTuple):
    """Consecutive places of one epoch."""

    phase: Phase
    epoch: int
    begin: int
    """The first place."""
    end: int
    """The place after the last one."""


@dataclass(frozen=True)
class Steps:
    """The steps of a stream. :mod:`cachelayer.streams.step_numbers` counts and numbers them."""

    records: int
    """The number of records of an epoch, n; of the last phase, if the stream has advanced."""
    global_batch: int
    """The number of records of a whole step over all shards, G."""
    shard_count: int
    """The number of shards, R, which divides G."""
    remainder: Remainder
    """The name of the rule for a step that a border cuts short."""
    num_epochs: int | None
    """The number of epochs; None for no end."""
    cuts: tuple[int, ...] = ()
    """The borders of buckets: ascending places of an epoch. A step begins at each border, and after every G places from
    there."""
    left_out: tuple[tuple[int, int], ...] = ()
    """The begins and ends of the positions that no step has, ascending, with other positions between them."""
    earlier: tuple[Phase, ...] = ()
    """The phases before the last one, if the stream has advanced."""

    @property
    def rule(self) -> Rule:
        """The rule for a step that a border cuts short."""
        return RULES[self.remainder]

    @property
    def epochs_are_alike(self) -> bool:
        """True if all epochs have the same number of steps, and a step begins where an epoch begins."""
        return not self.rule.crosses and not self.left_out

    # Positions, epochs and stretches.

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """All phases, of which the last one goes on to the end."""
        if not self.earlier:
            return (Phase(0, self.records),)
        before = self.earlier[-1]
        return (*self.earlier, Phase(before.begin + before.records, self.records, before.epoch))

    @cached_property
    def end(self) -> int | None:
        """The position after the last epoch; None for no end. With remainder "wrap" the last step may end later."""
        if self.num_epochs is None:
            return None
        last = self.phases[-1]
        return last.begin + max(0, self.num_epochs - last.epoch) * self.records

    @property
    def last_position(self) -> int | None:
        """The greatest position that a state may have; None if there is no end."""
        if self.end is not None and self.rule.crosses:
            return self.position_after(self.end - 1, self.global_batch)
        return self.end

    def by_epoch(self, begin: int, end: int) -> Iterator[EpochSlice]:
        """Yield the places of consecutive positions, epoch by epoch."""
        while begin < end:
            phase = self._phase_at(begin)
            epochs_before, place = divmod(begin - phase.begin, phase.records)
            stop = min(end, begin - place + phase.records)
            yield EpochSlice(phase, phase.epoch + epochs_before, place, place + stop - begin)
            begin = stop

    def _phase_at(self, position: int) -> Phase:
        return next(phase for phase in reversed(self.phases) if phase.begin <= position)

    @cached_property
    def stretches_of_epoch(self) -> tuple[tuple[int, int], ...]:
        """The begins and ends of the stretches of an epoch of which nothing is left out, as places."""
        return tuple(pairwise((0, *self.cuts, self.records)))

    def stretch_at(self, position: int) -> tuple[int, int]:
        """Return the begin and the end of the stretch that has a position, as positions; it is not left out."""
        phase = self._phase_at(position)
        place = (position - phase.begin) % phase.records
        epoch_begin = position - place
        # Buckets do not advance: a stream with cuts has one phase.
        stretches = self.stretches_of_epoch if self.cuts else ((0, phase.records),)
        begin, end = next((epoch_begin + low, epoch_begin + high) for low, high in stretches if place < high)
        for low, high in self.left_out:
            if high <= position:
                begin = max(begin, high)
            elif low > position:
                return begin, min(end, low)
        return begin, end

    def position_after(self, position: int, count: int) -> int:
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
        longest = max(high - low for low, high in self.stretches_of_epoch)
        has_no_step = self.records == 0 or (self.rule.drops and longest < self.global_batch and not self.earlier)
        if has_no_step:
            # The loop below would not end.
            return position if self.end is None else max(position, self.end)
        while self.end is None or position < self.end:
            end_of_left_out = next((high for low, high in self.left_out if low <= position < high), None)
            if end_of_left_out is not None:
                position = end_of_left_out
                continue
            if not self.rule.drops:
                return position
            stretch_end = self.stretch_at(position)[1]
            if stretch_end - position >= self.global_batch:
                return position
            position = stretch_end
        return position

    def range_at(self, position: int, most: int | None = None) -> StepRange | None:
        """Return the steps of one stretch from a position on, at most ``most``; None after the last step."""
        begin = self.next_start(position)
        if self.records == 0 or (self.end is not None and begin >= self.end):
            return None
        end = self.stretch_at(begin)[1]
        if self.rule.crosses and end - begin < self.global_batch:
            # A step that crosses a border is a range of its own.
            return StepRange(range(begin, begin + 1), self.position_after(begin, self.global_batch))
        if self.rule.drops or self.rule.crosses:
            end -= (end - begin) % self.global_batch
        if most is not None:
            end = min(end, begin + most * self.global_batch)
        return StepRange(range(begin, end, self.global_batch), end)

    def at(self, position: int) -> Step | None:
        """Return the next step from a position on; None after the last step."""
        steps = self.range_at(position, 1)
        return None if steps is None else steps[0]

    def size(self, step: Step) -> int:
        """Return the number of records of a step, which may reach over positions that are left out."""
        overlaps = (
            min(high, step.end) - max(low, step.begin)
            for low, high in self.left_out
            if low < step.end and step.begin < high
        )
        return step.end - step.begin - sum(overlaps)

    def positions(self, step: Step) -> Indices:
        """Return the positions of a step."""
        positions = np.arange(step.begin, step.end)
        for low, high in self.left_out:
            if step.begin <= low < step.end:
                positions = positions[(positions < low) | (positions >= high)]
        return positions

    def why_invalid(self, position: int) -> str | None:
        """Return why no step can begin at a position; None if one can."""
        if self.cuts and self.rule.crosses:
            return f"a step has records of one bucket: pass another remainder than {self.remainder!r}"
        if not self.cuts or self.records == 0 or position % self.records == 0:
            return None
        stretch_begin, stretch_end = self.stretch_at(position)
        begin = position - (position - stretch_begin) % self.global_batch
        if begin == position:
            return None
        end = min(begin + self.global_batch, stretch_end)
        return (
            f"position {position} lies within a step: with buckets only the starts of steps are valid, the nearest "
            f"are {begin} and {end}"
        )

    # Rows and shards.

    def row_count(self, size: int) -> int:
        """Return the number of rows of the global batch of a step with ``size`` records."""
        return self.global_batch if self.rule.fill else size

    def rows_of_shard(self, size: int, shard_index: int) -> tuple[int, int]:
        """Return the first row that a shard takes of a step with ``size`` records, and the row after its last one.

        Rows from ``size`` on fill up the step. If the shards cannot take equally many, the first ones take one more.
        """
        least, extra = divmod(self.row_count(size), self.shard_count)
        begin = shard_index * least + min(shard_index, extra)
        count = least + 1 if shard_index < extra else least
        return begin, begin + count

    # Other steps.

    def without(self, ranges: Iterable[Sequence[int]]) -> Steps:
        """Return the steps without more positions: their begins and ends, in any order."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self.left_out, *map(tuple, ranges)]):
            if merged and low <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(high, merged[-1][1])
            elif low < high:
                merged.append((low, high))
        return replace(self, left_out=tuple(merged))

    def advanced(self, position: int, records: int, digest: str, newer: str) -> Steps:
        """Return the steps that go on over more records, of which ``newer`` is the digest.

        The change comes at the end of the epoch under way at ``position``; between two epochs, that is the epoch that
        has just ended. Then the new records come once, in a phase of their own, which counts as none of ``num_epochs``.
        Then all records come.
        """
        index = max((number for number, phase in enumerate(self.phases) if phase.begin < position), default=0)
        phase = self.phases[index]
        if not phase.digest:
            phase = phase._replace(digest=digest)
        places = position - phase.begin
        # The epoch under way counts.
        epochs = max(1, (places + phase.records - 1) // phase.records)
        begin = phase.begin + epochs * phase.records
        first = phase.first + phase.records
        # A phase of new records, which begins behind record 0, is no epoch.
        epoch = phase.epoch if phase.first else phase.epoch + epochs
        new = Phase(begin, records - first, epoch, first, newer)
        return replace(self, records=records, earlier=(*self.phases[:index], phase, new))
