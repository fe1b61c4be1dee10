"""Steps: the positions that each shard hands out in each step. Arithmetic only, and the only place that asks what
becomes of the rest of an epoch.

A global position is ``epoch * n + k``: record k of an epoch's order. Borders cut the positions into runs: the end of
each epoch, the places where the records of a bucket end, and positions that are left out. The step that begins at a
position has the next G positions, the global batch, up to the end of its run. Shard r of R takes its r-th contiguous
part. With n = 10 and G = 4::

                     step 0        step 1        step 2 (2 records)
    global           0 1 2 3       4 5 6 7       8 9
    R = 2, keep      01 | 23       45 | 67       8 | 9
    R = 4, keep      0|1|2|3       4|5|6|7       8|9|-|-         the last two get batches of 0 records
    R = 2, pad       01 | 23       45 | 67       89 | 99         mask 11 | 00
    R = 2, drop      01 | 23       45 | 67                       the next step begins at position 10
    R = 2, wrap      01 | 23       45 | 67       89 | 10 11      positions 10 and 11 are the next epoch's first records
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property

Remainder = Literal["drop", "keep", "pad", "wrap"]
REMAINDERS: tuple[Remainder, ...] = ("drop", "keep", "pad", "wrap")
# Those with which a batch has no mask.
Unmasked = Literal["drop", "keep", "wrap"]

# Positions are added and multiplied as signed 64-bit integers.
MOST_POSITIONS = 1 << 62

Indices = NDArray[np.int64]


class Step(NamedTuple):
    """One step of all shards, or several steps in a row.

    Args:
        begin: the position where it begins.
        end: the position after its last record.
    """

    begin: int
    end: int


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
        cuts: the places within each epoch where a run ends, ascending; then only whole steps from the begin of a run on
            are steps.
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
    def pads(self) -> bool:
        """True if short steps are filled up, and every batch has a mask."""
        return self.remainder == "pad"

    @property
    def are_alike(self) -> bool:
        """True if every epoch has the same number of steps, the first of which begins with it."""
        return self.remainder != "wrap" and not self.left_out

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
        """The position after the last epoch. With "wrap" the last step reaches past it."""
        last = self.segments[-1]
        return None if self.num_epochs is None else last.begin + max(0, self.num_epochs - last.epoch) * self.records

    @property
    def last_state(self) -> int | None:
        """The greatest position that a state may have; None if there is no end."""
        return (
            self.end if self.end is None or self.remainder != "wrap" else self._after(self.end - 1, self.global_batch)
        )

    def places(self, begin: int, end: int) -> Iterator[Places]:
        """Yield the places of positions in a row, epoch by epoch."""
        while begin < end:
            segment = next(segment for segment in reversed(self.segments) if segment.begin <= begin)
            epoch, place = divmod(begin - segment.begin, segment.records)
            stop = min(end, begin - place + segment.records)
            yield Places(segment, segment.epoch + epoch, place, place + stop - begin)
            begin = stop

    def epoch_begin(self, epoch: int, base: int = 0) -> int:
        """Return where the first step of an epoch begins, if one begins at ``base``, and no records were appended."""
        begin = epoch * self.records
        if self.remainder != "wrap" or begin <= base:
            return begin
        visible = self.size(Step(base, begin))
        return max(begin, self._after(base, -(-visible // self.global_batch) * self.global_batch))

    def _run(self, position: int) -> tuple[int, int]:
        """Return the begin and the end of the run that a position lies in, which may be left out."""
        segment = next(segment for segment in reversed(self.segments) if segment.begin <= position)
        place = (position - segment.begin) % segment.records
        first = position - place
        edges = (0, *self.cuts, segment.records)
        begin, end = next((first + low, first + high) for low, high in pairwise(edges) if place < high)
        for low, high in self.left_out:
            if high <= position:
                begin = max(begin, high)
            elif low > position:
                return begin, min(end, low)
        return begin, end

    # Steps from a position on.

    def next_start(self, position: int) -> int:
        """Return where the next step from a position begins."""
        if self.records == 0 or (self.remainder == "drop" and self._longest < self.global_batch and not self.earlier):
            return position if self.end is None else max(position, self.end)
        while self.end is None or position < self.end:
            hidden = next((high for low, high in self.left_out if low <= position < high), None)
            if hidden is not None:
                position = hidden
                continue
            end = self._run(position)[1] if self.remainder == "drop" else position + self.global_batch
            if end - position >= self.global_batch:
                return position
            position = end
        return position

    def at(self, position: int) -> Step | None:
        """Return the step from a position; None after the last."""
        return self.several(position, 1)

    def several(self, position: int, most: int) -> Step | None:
        """Return steps in a row from a position on, at most so many: of one run, and all but the last whole."""
        begin = self.next_start(position)
        if self.records == 0 or (self.end is not None and begin >= self.end):
            return None
        end = self._run(begin)[1]
        if self.remainder == "wrap" and end - begin < self.global_batch:
            return Step(begin, self._after(begin, self.global_batch))
        if self.remainder == "drop" or self.remainder == "wrap":
            end -= (end - begin) % self.global_batch
        return Step(begin, min(begin + most * self.global_batch, end))

    def after(self, step: Step) -> int:
        """Return the position where the step after this one begins."""
        return self.next_start(step.end)

    def borders(self, steps: Step) -> range:
        """Return the positions between steps in a row."""
        end = steps.begin if self.size(steps) <= self.global_batch else steps.end
        return range(steps.begin + self.global_batch, end, self.global_batch)

    def single(self, steps: Step) -> Iterator[Step]:
        """Yield the steps of several in a row."""
        return starmap(Step, pairwise((steps.begin, *self.borders(steps), steps.end)))

    def size(self, step: Step) -> int:
        """Return the number of records of a step: with "wrap" it may reach over positions that are left out."""
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
    def _longest(self) -> int:
        return max(high - low for low, high in pairwise((0, *self.cuts, self.records)))

    @property
    def short_steps(self) -> tuple[int, ...]:
        """The numbers of records of the steps of a whole epoch that have fewer than others."""
        if self.remainder == "wrap":
            return ()
        rests = ((high - low) % self.global_batch for low, high in pairwise((0, *self.cuts, self.records)))
        return tuple(rest for rest in rests if rest)

    def sizes(self, position: int) -> set[int]:
        """Return the numbers of records that steps from a position on may have."""
        found = {self.global_batch}
        if self.remainder == "keep" and self.at(position) is not None:
            begins = [position, *(high for _, high in self.left_out if high > position)]
            ends = [low for low, _ in self.left_out if low > position]
            begins += [begin for low in ends if (begin := self._run(low - 1)[0]) > position]
            found.update((self._run(begin)[1] - begin) % self.global_batch or self.global_batch for begin in begins)
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
        edges, end = (0, *self.cuts, self.records), self.records if stop is None else stop
        lengths = [min(high, end) - max(low, place) for low, high in pairwise(edges) if place < high and low < end]
        if self.remainder == "drop":
            return sum(length // self.global_batch for length in lengths)
        return sum(-((offset - length) // self.global_batch) for length in lengths)

    def _between(self, start: int, stop: int, offset: int = 0) -> int:
        """Return the number of steps between two positions that a border is at, without any that are left out."""
        if self.remainder == "wrap":
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
        if self.remainder == "wrap":
            return self._between(start, self.end - sum(high - low for low, high in holes))
        begins, ends = [start, *(high for _, high in holes)], [*(low for low, _ in holes), self.end]
        return sum(self._between(begin, end, offset) for begin, end in zip(begins, ends, strict=True) if begin < end)

    def nth(self, start: int, number: int) -> Step | None:
        """Return step ``number``, counted from a position; None if there is no such step."""
        if self.records == 0:
            return None
        base = self.segments[-1].begin
        while start < base:
            steps = self.several(start, number + 1)
            if steps is None:
                return None
            count = 1 + len(self.borders(steps))
            if number < count:
                return list(self.single(steps))[number]
            number, start = number - count, self.after(steps)
        if base:
            found = self._since(base).nth(start - base, number)
            return None if found is None else Step(found.begin + base, found.end + base)
        if self.remainder == "wrap":
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
        for low, high in pairwise((0, *self.cuts, self.records)):
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
        if self.cuts and self.remainder == "wrap":
            return "a step has records of one bucket: pass another remainder than 'wrap'"
        if not self.cuts or self.records == 0 or position % self.records == 0:
            return None
        begin, end = self._run(position)
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
        base = start if self.remainder == "wrap" else max(start if start <= position else 0, self._run(position)[0])
        if position < base:
            return None
        step = self.at(self._after(base, self.size(Step(base, position)) // self.global_batch * self.global_batch))
        return step if step is not None and step.begin <= position < step.end else None

    # Shards.

    def rows(self, size: int) -> int:
        """Return the number of rows of the global batch of a step with so many records."""
        return self.global_batch if self.pads else size

    def part(self, size: int, shard_index: int) -> tuple[int, int]:
        """Return the rows that a shard takes of a step with so many records; those after them are padding."""
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
