"""Steps: the positions that each shard hands out in each step. Arithmetic only.

A global position is ``epoch * n + k``: record k of an epoch's order. The step that begins there has the records k up to
``min(k + G, n)`` of the epoch, where G is the global batch. Shard r of R takes its r-th contiguous part. With n = 10
and G = 4::

                     step 0        step 1        step 2 (m = 2 records)
    global           0 1 2 3       4 5 6 7       8 9
    R = 2, keep      01 | 23       45 | 67       8 | 9
    R = 4, keep      0|1|2|3       4|5|6|7       8|9|-|-         the last two get batches of 0 records
    R = 2, pad       01 | 23       45 | 67       89 | 99         mask 11 | 00
    R = 2, drop      01 | 23       45 | 67                       the next step begins at position 10
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Remainder = Literal["drop", "keep", "pad"]
REMAINDERS: tuple[Remainder, ...] = ("drop", "keep", "pad")


# Positions are added and multiplied as signed 64-bit integers.
MOST_POSITIONS = 1 << 62


@dataclass(frozen=True)
class Step:
    """One step of all shards.

    Args:
        begin: the position where it begins.
        end: the position after its last record; it lies in the same epoch.
    """

    begin: int
    end: int


@dataclass(frozen=True)
class Steps:
    """The steps of a stream.

    Args:
        records: number of records, n.
        global_batch: records of a whole step over all shards, G.
        shard_count: number of shards, R; it divides G.
        remainder: what to do with a last, shorter step of an epoch.
        num_epochs: number of epochs from position 0 on; None for no end.
    """

    records: int
    global_batch: int
    shard_count: int
    remainder: Remainder
    num_epochs: int | None

    @property
    def end(self) -> int | None:
        """The position after the last epoch."""
        return None if self.num_epochs is None else self.num_epochs * self.records

    @property
    def short_steps(self) -> tuple[int, ...]:
        """The numbers of records of the steps of a whole epoch that have fewer than others."""
        left = self.records % self.global_batch
        return (left,) if left else ()

    def refusal(self, position: int) -> str | None:  # noqa: ARG002
        """Return why no step can begin at a position; None if one can."""
        return None

    def bucket(self, step: Step) -> int:  # noqa: ARG002
        """Return the bucket that the records of a step come from: 0 if there are none."""
        return 0

    def sizes(self, position: int) -> set[int]:
        """Return the numbers of records that steps from a position on may have."""
        found = {self.global_batch}
        if self.remainder == "keep" and self.at(position) is not None:
            epoch_end = position - position % self.records + self.records
            more = self.end is None or epoch_end < self.end
            for left in (epoch_end - position, self.records if more else 0):
                found.add(left % self.global_batch or self.global_batch)
        return found

    def next_start(self, position: int) -> int:
        """Return where the next step from a position begins: at the next epoch if the tail of this one is dropped."""
        if self.remainder != "drop" or self.records == 0:
            return position
        if self.records < self.global_batch:
            return position if self.end is None else self.end
        left = self.records - position % self.records
        return position + left if left < self.global_batch else position

    def at(self, position: int) -> Step | None:
        """Return the step from a position; None after the last."""
        begin = self.next_start(position)
        if self.records == 0 or (self.end is not None and begin >= self.end):
            return None
        place = begin % self.records
        return Step(begin, begin + min(self.global_batch, self.records - place))

    def block(self, position: int, least: int) -> Step | None:
        """Return whole steps from a position on, until they hold ``least`` records a shard or the epoch ends."""
        first = self.at(position)
        if first is None:
            return None
        epoch_end = first.begin - first.begin % self.records + self.records
        if self.remainder == "drop":
            epoch_end -= (epoch_end - first.begin) % self.global_batch
        wanted = first.begin + -(-least * self.shard_count // self.global_batch) * self.global_batch
        return Step(first.begin, min(wanted, epoch_end))

    def after(self, step: Step) -> int:
        """Return the position where the step after this one begins."""
        return self.next_start(step.end)

    def turn_after(self, step: Step, workers: int) -> int:
        """Return the position where the next step of the worker begins that has this step, if workers take turns."""
        found = self.nth(step.begin, workers)
        if found is not None:
            return found.begin
        return MOST_POSITIONS if self.end is None else self.end

    def per_epoch(self, place: int = 0, offset: int = 0) -> int:
        """Return the number of steps from record ``place`` to the end of an epoch with more than ``offset`` records."""
        left = self.records - place
        if self.remainder == "drop":
            return left // self.global_batch
        return -((offset - left) // self.global_batch)

    def nth(self, start: int, number: int) -> Step | None:
        """Return step ``number``, counted from a position; None if there is no such step."""
        if self.records == 0:
            return None
        epoch, place = divmod(start, self.records)
        first = self.per_epoch(place)
        if number >= first:
            whole = self.per_epoch()
            if whole == 0:
                return None
            more, number = divmod(number - first, whole)
            epoch, place = epoch + 1 + more, 0
        return self.at(epoch * self.records + place + number * self.global_batch)

    def count(self, start: int, offset: int = 0) -> int | None:
        """Return the number of steps from a position with more than ``offset`` records; None if there is no end."""
        if self.num_epochs is None:
            return None
        if self.records == 0:
            return 0
        epoch, place = divmod(start, self.records)
        if epoch >= self.num_epochs:
            return 0
        return self.per_epoch(place, offset) + (self.num_epochs - epoch - 1) * self.per_epoch(0, offset)

    def part(self, step: Step, shard_index: int) -> tuple[int, int]:
        """Return the part of a step that a shard takes, as offsets from the begin of the step.

        With remainder "pad" the part may reach past the step's records: those rows are padding.
        """
        size = step.end - step.begin
        share = self.global_batch // self.shard_count
        if size == self.global_batch or self.remainder == "pad":
            return shard_index * share, (shard_index + 1) * share
        even, extra = divmod(size, self.shard_count)
        first = shard_index * even + min(shard_index, extra)
        return first, first + even + (shard_index < extra)
