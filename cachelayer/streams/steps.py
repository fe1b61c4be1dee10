"""Steps: the positions that each shard hands out in each step. Arithmetic only, and the only place that knows the names
of remainders: others ask the :class:`Rule` of one.

A global position is ``epoch * n + k``: record k of an epoch's order. Borders cut the positions into stretches: the end
of each epoch, the places where the records of a bucket end, and positions that are left out. The step that begins at a
position has the next G positions, the global batch, up to the end of its stretch. Shard r of R takes its r-th
contiguous share. With n = 10 and G = 4::

                     step 0        step 1        step 2 (2 records)
    global           0 1 2 3       4 5 6 7       8 9
    R = 2, keep      01 | 23       45 | 67       8 | 9
    R = 4, keep      0|1|2|3       4|5|6|7       8|9|-|-         the last two get batches of 0 records
    R = 2, pad       01 | 23       45 | 67       89 | 99         mask 11 | 00
    R = 2, drop      01 | 23       45 | 67                       the next step begins at position 10
    R = 2, wrap      01 | 23       45 | 67       89 | 10 11      positions 10 and 11 are the next epoch's first records
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property

# Positions are added and multiplied as signed 64-bit integers.
MOST_POSITIONS = 1 << 62

Indices = NDArray[np.int64]

Remainder = Literal["drop", "keep", "pad", "wrap"]
# Those with which a batch has no mask.
Unmasked = Literal["drop", "keep", "wrap"]


def _last_again(rows: Indices, size: int) -> Indices:
    return np.minimum(rows, size - 1)


@dataclass(frozen=True)
class Rule:
    """What becomes of a step that a border cuts short.

    Args:
        drops: whether no shard takes it.
        crosses: whether it goes on behind the border.
        fill: if it is filled up to a whole step, given the rows of the step and the number of its records, returns
            which record each row has; None if it is not.
        masks: whether batches come with a mask that is False for the rows that are filled up.
    """

    drops: bool = False
    crosses: bool = False
    fill: Callable[[Indices, int], Indices] | None = None
    masks: bool = False

    @property
    def shortens(self) -> bool:
        """True if the step stays short, so that shards get fewer records of it."""
        return not (self.drops or self.crosses or self.fill)


RULES: dict[Remainder, Rule] = {
    "drop": Rule(drops=True),
    "keep": Rule(),
    "pad": Rule(fill=_last_again, masks=True),
    "wrap": Rule(crosses=True),
}


class Step(NamedTuple):
    """One step of all shards.

    Args:
        begin: the position where it begins.
        end: the position after its last record.
    """

    begin: int
    end: int


@dataclass(frozen=True)
class StepRange:
    """Steps in a row of one stretch; all but the last are whole.

    Args:
        begins: the position where each begins.
        end: the position after the last record of the last.
    """

    begins: range
    end: int

    @classmethod
    def of(cls, step: Step) -> StepRange:
        """Return one step."""
        return cls(range(step.begin, step.begin + 1), step.end)

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.begins)

    def __getitem__(self, number: int) -> Step:
        """Return a step, counted from the first."""
        after = number + 1
        return Step(self.begins[number], self.begins[after] if after < len(self.begins) else self.end)


class Segment(NamedTuple):
    """Epochs over some of the records, one after another.

    Args:
        begin: the position where the first of them begins.
        records: number of records of an epoch.
        epoch: the number of the first of them.
        first: the number of the first record.
        digest: the identity of all records up to its last; empty for those of the stream.
    """

    begin: int
    records: int
    epoch: int = 0
    first: int = 0
    digest: str = ""


class Places(NamedTuple):
    """Positions in a row that lie in one epoch.

    Args:
        segment: the segment.
        epoch: the number of the epoch.
        begin, end: the places in the epoch.
    """

    segment: Segment
    epoch: int
    begin: int
    end: int


@dataclass(frozen=True)
class Steps:
    """The steps of a stream.

    Args:
        records: number of records of an epoch, n.
        global_batch: records of a whole step over all shards, G.
        shard_count: number of shards, R; it divides G.
        remainder: what to do with a step that a border cuts short.
        num_epochs: number of epochs; None for no end.
        cuts: the places within each epoch where a stretch ends, ascending; then only whole steps from the begin of a
            stretch on are steps.
        left_out: begins and ends of positions that no step has, ascending and apart.
        earlier: the segments before the epochs of ``records``, if the stream has advanced to more records.
    """

    records: int
    global_batch: int
    shard_count: int
    remainder: Remainder
    num_epochs: int | None
    cuts: tuple[int, ...] = ()
    left_out: tuple[tuple[int, int], ...] = ()
    earlier: tuple[Segment, ...] = ()

    @property
    def rule(self) -> Rule:
        """What becomes of a step that a border cuts short."""
        return RULES[self.remainder]

    @property
    def are_alike(self) -> bool:
        """True if every epoch has the same number of steps, the first of which begins with it."""
        return not self.rule.crosses and not self.left_out

    # Positions and epochs.

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments; the last goes on to the end."""
        if not self.earlier:
            return (Segment(0, self.records),)
        before = self.earlier[-1]
        return (*self.earlier, Segment(before.begin + before.records, self.records, before.epoch))

    @cached_property
    def end(self) -> int | None:
        """The position after the last epoch. A step that crosses borders reaches past it."""
        last = self.segments[-1]
        return None if self.num_epochs is None else last.begin + max(0, self.num_epochs - last.epoch) * self.records

    @property
    def last_state(self) -> int | None:
        """The greatest position that a state may have; None if there is no end."""
        return self._after(self.end - 1, self.global_batch) if self.end is not None and self.rule.crosses else self.end

    def places(self, begin: int, end: int) -> Iterator[Places]:
        """Yield the places of positions in a row, epoch by epoch."""
        while begin < end:
            segment = self._segment_of(begin)
            epoch, place = divmod(begin - segment.begin, segment.records)
            stop = min(end, begin - place + segment.records)
            yield Places(segment, segment.epoch + epoch, place, place + stop - begin)
            begin = stop

    def epoch_begin(self, epoch: int, base: int = 0) -> int:
        """Return where the first step of an epoch begins, if one begins at ``base``, and no records were appended."""
        begin = epoch * self.records
        if not self.rule.crosses or begin <= base:
            return begin
        visible = self.size(Step(base, begin))
        return max(begin, self._after(base, -(-visible // self.global_batch) * self.global_batch))

    def _segment_of(self, position: int) -> Segment:
        return next(segment for segment in reversed(self.segments) if segment.begin <= position)

    @cached_property
    def _stretches(self) -> tuple[tuple[int, int], ...]:
        """The begin and the end of each stretch of an epoch without left-out positions, as places of the epoch."""
        return tuple(pairwise((0, *self.cuts, self.records)))

    def _stretch(self, position: int) -> tuple[int, int]:
        """Return the begin and the end of the stretch that a position lies in, which may be left out."""
        segment = self._segment_of(position)
        place = (position - segment.begin) % segment.records
        first = position - place
        # Only streams without cuts have segments of other sizes.
        stretches = self._stretches if self.cuts else ((0, segment.records),)
        begin, end = next((first + low, first + high) for low, high in stretches if place < high)
        for low, high in self.left_out:
            if high <= position:
                begin = max(begin, high)
            elif low > position:
                return begin, min(end, low)
        return begin, end

    # Steps from a position on.

    def next_start(self, position: int) -> int:
        """Return where the next step from a position begins."""
        longest = max(high - low for low, high in self._stretches)
        if self.records == 0 or (self.rule.drops and longest < self.global_batch and not self.earlier):
            return position if self.end is None else max(position, self.end)
        while self.end is None or position < self.end:
            hidden = next((high for low, high in self.left_out if low <= position < high), None)
            if hidden is not None:
                position = hidden
                continue
            end = self._stretch(position)[1] if self.rule.drops else position + self.global_batch
            if end - position >= self.global_batch:
                return position
            position = end
        return position

    def plan(self, position: int, most: int | None = None) -> StepRange | None:
        """Return the steps of a stretch from a position on, at most so many; None after the last step of all."""
        begin = self.next_start(position)
        if self.records == 0 or (self.end is not None and begin >= self.end):
            return None
        end = self._stretch(begin)[1]
        if self.rule.crosses and end - begin < self.global_batch:
            return StepRange(range(begin, begin + 1), self._after(begin, self.global_batch))
        if self.rule.drops or self.rule.crosses:
            end -= (end - begin) % self.global_batch
        if most is not None:
            end = min(end, begin + most * self.global_batch)
        return StepRange(range(begin, end, self.global_batch), end)

    def at(self, position: int) -> Step | None:
        """Return the step from a position; None after the last."""
        planned = self.plan(position, 1)
        return None if planned is None else planned[0]

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
        found = np.arange(step.begin, step.end)
        for low, high in self.left_out:
            found = found[(found < low) | (found >= high)] if step.begin <= low < step.end else found
        return found

    def _after(self, position: int, count: int) -> int:
        """Return the position after so many that are not left out."""
        for low, high in self.left_out:
            if low >= position + count:
                break
            if high > position:
                count -= max(0, low - position)
                position = high
        return position + count

    # Steps by number; how many there are only of streams that have not advanced.

    @property
    def short_steps(self) -> tuple[int, ...]:
        """The numbers of records of the steps of a whole epoch that have fewer than others."""
        if self.rule.crosses:
            return ()
        rests = ((high - low) % self.global_batch for low, high in self._stretches)
        return tuple(rest for rest in rests if rest)

    def sizes(self, position: int) -> set[int]:
        """Return the numbers of records that steps from a position on may have."""
        found = {self.global_batch}
        if self.rule.shortens and self.at(position) is not None:
            begins = [position, *(high for _, high in self.left_out if high > position)]
            ends = [low for low, _ in self.left_out if low > position]
            begins += [begin for low in ends if (begin := self._stretch(low - 1)[0]) > position]
            found.update((self._stretch(begin)[1] - begin) % self.global_batch or self.global_batch for begin in begins)
            last = self.segments[-1]
            for segment, after in pairwise(self.segments):
                found.update((segment.records % self.global_batch,) if position < after.begin else ())
            epoch_end = position - (position - last.begin) % self.records + self.records
            found.update(self.short_steps if self.cuts or self.end is None or epoch_end < self.end else ())
        return found - {0}

    def per_epoch(self, place: int = 0, offset: int = 0, stop: int | None = None) -> int:
        """Return the number of steps from a place to the end of an epoch, or to another place, left out or not.

        Only those with more records than ``offset`` count.
        """
        end = self.records if stop is None else stop
        lengths = [min(high, end) - max(low, place) for low, high in self._stretches if place < high and low < end]
        if self.rule.drops:
            return sum(length // self.global_batch for length in lengths)
        return sum(-((offset - length) // self.global_batch) for length in lengths)

    def _between(self, start: int, stop: int, offset: int = 0) -> int:
        """Return the number of steps between two positions that a border is at, without any that are left out."""
        if self.rule.crosses:
            return -(-(stop - start) // self.global_batch)
        (epoch, place), (last, end) = divmod(start, self.records), divmod(stop, self.records)
        if epoch == last:
            return self.per_epoch(place, offset, end)
        whole = (last - epoch - 1) * self.per_epoch(0, offset)
        return self.per_epoch(place, offset) + whole + self.per_epoch(0, offset, end)

    def count(self, start: int, offset: int = 0) -> int | None:
        """Return the number of steps from a position with more than ``offset`` records; None if there is no end."""
        if self.end is None:
            return None
        if self.records == 0 or start >= self.end:
            return 0
        holes = [(max(low, start), min(high, self.end)) for low, high in self.left_out if start < high]
        holes = [(low, high) for low, high in holes if low < high]
        if self.rule.crosses:
            return self._between(start, self.end - sum(high - low for low, high in holes))
        begins, ends = [start, *(high for _, high in holes)], [*(low for low, _ in holes), self.end]
        return sum(self._between(begin, end, offset) for begin, end in zip(begins, ends, strict=True) if begin < end)

    def nth(self, start: int, number: int) -> Step | None:
        """Return step ``number``, counted from a position; None if there is no such step."""
        if self.records == 0:
            return None
        base = self.segments[-1].begin
        while start < base:
            steps = self.plan(start)
            if steps is None:
                return None
            if number < len(steps):
                return steps[number]
            number, start = number - len(steps), self.next_start(steps.end)
        if base:
            found = self._since(base).nth(start - base, number)
            return None if found is None else Step(found.begin + base, found.end + base)
        if self.rule.crosses:
            return self.at(self._after(self.next_start(start), number * self.global_batch))
        for low, high in self.left_out:
            if start >= high:
                continue
            count = self._between(start, low) if start < low else 0
            if number < count:
                break
            number, start = number - count, high
        epoch, place = divmod(start, self.records)
        if number >= (first := self.per_epoch(place)):
            if (whole := self.per_epoch()) == 0:
                return None
            more, number = divmod(number - first, whole)
            epoch, place = epoch + 1 + more, 0
        for low, high in self._stretches:
            if place >= high:
                continue
            begin, count = max(place, low), self.per_epoch(max(place, low), 0, high)
            if number < count:
                return self.at(epoch * self.records + begin + number * self.global_batch)
            number -= count
        return None

    def _since(self, base: int) -> Steps:
        """Return the steps of the last segment, which begins at a position, with positions counted from there."""
        last = self.segments[-1]
        epochs = None if self.num_epochs is None else max(0, self.num_epochs - last.epoch)
        left_out = tuple((max(0, low - base), high - base) for low, high in self.left_out if high > base)
        return replace(self, num_epochs=epochs, left_out=left_out, earlier=())

    def turn_after(self, step: Step, workers: int) -> int:
        """Return the position where the next step of the worker begins that has this step, if workers take turns."""
        found = self.nth(step.begin, workers)
        if found is not None:
            return found.begin
        return MOST_POSITIONS if self.end is None else self.end

    def refusal(self, position: int) -> str | None:
        """Return why no step can begin at a position; None if one can."""
        if self.cuts and self.rule.crosses:
            return f"a step has records of one bucket: pass another remainder than {self.remainder!r}"
        if not self.cuts or self.records == 0 or position % self.records == 0:
            return None
        begin, end = self._stretch(position)
        begin += (position - begin) // self.global_batch * self.global_batch
        if begin == position:
            return None
        end = min(begin + self.global_batch, end)
        return (
            f"position {position} lies within a step: with buckets only the starts of steps are valid, the nearest "
            f"are {begin} and {end}"
        )

    def containing(self, position: int, start: int) -> Step | None:
        """Return the step that a position lies in, if one begins at ``start``; None if it lies in none."""
        if any(low <= position < high for low, high in self.left_out):
            return None
        base = start if self.rule.crosses else max(start if start <= position else 0, self._stretch(position)[0])
        if position < base:
            return None
        step = self.at(self._after(base, self.size(Step(base, position)) // self.global_batch * self.global_batch))
        return step if step is not None and step.begin <= position < step.end else None

    # Shards.

    def rows(self, size: int) -> int:
        """Return the number of rows of the global batch of a step with so many records."""
        return self.global_batch if self.rule.fill else size

    def part(self, size: int, shard_index: int) -> tuple[int, int]:
        """Return the rows that a shard takes of a step with so many records; those after its records fill it up."""
        even, extra = divmod(self.rows(size), self.shard_count)
        first = shard_index * even + min(shard_index, extra)
        return first, first + even + (shard_index < extra)

    # Changes.

    def without(self, ranges: Iterable[Sequence[int]]) -> Steps:
        """Return the steps without some more positions: begins and ends, in any order."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self.left_out, *map(tuple, ranges)]):
            if merged and low <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(high, merged[-1][1])
            elif low < high:
                merged.append((low, high))
        return replace(self, left_out=tuple(merged))

    def advanced(self, position: int, records: int, digest: str, newer: str) -> Steps:
        """Return the steps over more records, from the end of the epoch on that a position lies in.

        The new records come in one epoch of their own, which is none of ``num_epochs``; then all come. At the end of an
        epoch, that epoch is the one that a position lies in. The digests are those of the present records, and of all.
        """
        index = max((number for number, segment in enumerate(self.segments) if segment.begin < position), default=0)
        segment = self.segments[index]
        if not segment.digest:
            segment = segment._replace(digest=digest)
        epochs = max(1, -(-(position - segment.begin) // segment.records))
        first = segment.first + segment.records
        begin = segment.begin + epochs * segment.records
        new = Segment(begin, records - first, segment.epoch + (0 if segment.first else epochs), first, newer)
        return replace(self, records=records, earlier=(*self.segments[:index], segment, new))
