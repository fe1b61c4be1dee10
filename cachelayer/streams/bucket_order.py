"""An order of batches from buckets: the records of a step have similar lengths.

Version 3 of the order, which docs/order.md specifies. It never changes under its number. A bucket of n records has
``n // G`` whole steps of G records, and a short one if G does not divide n. The steps of an epoch are arrays in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from cachelayer.streams.buckets import BucketTable
from cachelayer.streams.order import Order
from cachelayer.streams.permutation import Indices, permuted, permuted_pieces, round_keys
from cachelayer.streams.steps import Step, Steps

BUCKET_ORDER_VERSION = 3


@dataclass(frozen=True)
class BucketPlan:
    """The steps of buckets in every epoch.

    Args:
        sizes: number of records in each bucket.
        global_batch: records of a whole step, G.
        seed: key of the permutations; None if nothing is shuffled.
        reshuffle: whether each epoch has permutations of its own.
    """

    sizes: tuple[int, ...]
    global_batch: int
    seed: int | None
    reshuffle: bool

    def count(self, *, whole: bool) -> int:
        """Return the number of steps of an epoch, or only of the whole ones."""
        return sum(size // self.global_batch if whole else -(-size // self.global_batch) for size in self.sizes)

    def epoch(self, epoch: int) -> EpochSteps:
        """Return the steps of an epoch."""
        return _epoch_steps(self, epoch if self.reshuffle and self.seed is not None else 0)


@dataclass(frozen=True, eq=False)
class EpochSteps:
    """The steps of one epoch, numbered from 0.

    Args:
        plan: the plan.
        keys: the keys of (seed, epoch); None if nothing is shuffled.
        buckets: the bucket of each step.
        turns: how many steps come before each in the order of its bucket.
        begins: the place where each step begins; then the number of records.
        whole: the numbers of the whole steps.
    """

    plan: BucketPlan
    keys: tuple[int, ...] | None
    buckets: Indices
    turns: Indices
    begins: Indices
    whole: Indices

    def step_at(self, place: int) -> int:
        """Return the number of the step in which a place lies."""
        return int(self.begins.searchsorted(place, side="right")) - 1

    def range(self, number: int) -> tuple[int, int]:
        """Return the place where a step begins, and the one after it."""
        return int(self.begins[number]), int(self.begins[number + 1])

    def ranks(self, number: int, start: int, stop: int) -> tuple[int, Indices]:
        """Return the bucket of a step, and the ranks in it of the records at some places of the step."""
        bucket = int(self.buckets[number])
        first = int(self.turns[number]) * self.plan.global_batch - int(self.begins[number])
        if self.keys is None:
            return bucket, np.arange(first + start, first + stop)
        return bucket, permuted(self.plan.sizes[bucket], self.keys[5], bucket, first + start, first + stop)


@lru_cache(maxsize=4)
def _epoch_steps(plan: BucketPlan, epoch: int) -> EpochSteps:
    keys = None if plan.seed is None else round_keys(plan.seed, epoch)
    sizes = np.array(plan.sizes, np.int64)
    counts, rest = np.divmod(sizes, plan.global_batch)
    firsts, short_of = np.append(0, counts.cumsum()), np.flatnonzero(rest)
    whole, total = int(firsts[-1]), int(firsts[-1]) + len(short_of)
    if keys is None:
        # Short steps come at the end, bucket by bucket.
        short, (of_whole, turns) = np.arange(whole, total), interleaved(counts.tolist())
    else:
        short = permuted(total, keys[3], 0, 0, len(short_of))
        chosen = np.concatenate([np.empty(0, np.int64), *permuted_pieces(whole, keys[4], 0, 0, whole)])
        of_whole = firsts.searchsorted(chosen, side="right") - 1
        turns = chosen - firsts[of_whole]
    is_whole = np.ones(total, np.bool_)
    is_whole[short] = False
    buckets, all_turns, lengths = (np.empty(total, np.int64) for _ in range(3))
    buckets[is_whole], all_turns[is_whole], lengths[is_whole] = of_whole, turns, plan.global_batch
    buckets[short], all_turns[short], lengths[short] = short_of, counts[short_of], rest[short_of]
    return EpochSteps(plan, keys, buckets, all_turns, np.append(0, lengths.cumsum()), np.flatnonzero(is_whole))


def interleaved(counts: Sequence[int]) -> tuple[Indices, Indices]:
    """Return the bucket of each step if those of all buckets are spread evenly, and its number among that bucket's.

    The steps of the first bucket are spread over all, those of the second over what is left, and so on.

    Args:
        counts: number of steps of each bucket.
    """
    left = sum(counts)
    buckets, turns = np.full(left, len(counts) - 1), np.arange(left)
    rows = np.arange(left)
    for bucket, count in enumerate(counts[:-1]):
        ends = (2 * np.arange(left + 1) * count + left) // max(1, 2 * left)
        is_mine = ends[1:] > ends[:-1]
        buckets[rows[is_mine]], turns[rows[is_mine]] = bucket, ends[:-1][is_mine]
        rows, left = rows[~is_mine], left - count
    turns[rows] = np.arange(left)
    return buckets, turns


@dataclass(frozen=True, kw_only=True)
class BucketOrder(Order):
    """The order of batches from buckets: an :class:`~cachelayer.streams.order.Ordering`.

    Args:
        plan: the steps.
        table: the records in each bucket.
    """

    plan: BucketPlan
    table: BucketTable = field(compare=False)

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order: the batch size belongs to it, because it decides which records are a step."""
        buckets = self.table.buckets
        return {
            **super().described,
            "version": BUCKET_ORDER_VERSION,
            "buckets": {
                "leaves": list(buckets.names),
                "bounds": list(buckets.lengths),
                "global_batch_size": self.plan.global_batch,
            },
        }

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at places ``start`` to ``stop`` of an epoch: int64 of shape ``[stop - start]``."""
        steps, found = self.plan.epoch(epoch), [np.empty(0, np.int64)]
        while start < stop:
            number = steps.step_at(start)
            end = min(stop, steps.range(number)[1])
            found.append(self.table.take(*steps.ranks(number, start, end)))
            start = end
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class BucketSteps(Steps):
    """The steps of a stream whose batches come each from one bucket.

    Args:
        plan: which steps each epoch has.
    """

    plan: BucketPlan

    @property
    def short_steps(self) -> tuple[int, ...]:
        """The numbers of records of the short steps of an epoch."""
        return tuple(size % self.global_batch for size in self.plan.sizes if size % self.global_batch)

    def _located(self, position: int) -> tuple[int, EpochSteps, int]:
        """Return the epoch of a position, its steps, and the number of the step that the position lies in."""
        epoch, place = divmod(position, self.records)
        steps = self.plan.epoch(epoch)
        return epoch, steps, steps.step_at(place)

    def refusal(self, position: int) -> str | None:
        """Return why no step can begin at a position; None if one can."""
        if self.records == 0:
            return None
        epoch, steps, number = self._located(position)
        begin, end = (epoch * self.records + place for place in steps.range(number))
        if begin == position:
            return None
        return (
            f"position {position} lies within a step: with buckets only the starts of steps are valid, the nearest "
            f"are {begin} and {end}"
        )

    def bucket(self, step: Step) -> int:
        """Return the bucket that the records of a step come from."""
        _, steps, number = self._located(step.begin)
        return int(steps.buckets[number])

    def next_start(self, position: int) -> int:
        """Return where the next step from a position begins: short steps that are dropped are skipped."""
        if self.remainder != "drop" or self.records == 0 or (self.end is not None and position >= self.end):
            return position
        if not self.per_epoch():
            return position if self.end is None else self.end
        epoch, steps, number = self._located(position)
        index = self._index(steps, number)
        if index == len(steps.whole):
            epoch, index = epoch + 1, 0
            if epoch == self.num_epochs:
                return epoch * self.records
            steps = self.plan.epoch(epoch)
        return epoch * self.records + steps.range(int(steps.whole[index]))[0]

    def at(self, position: int) -> Step | None:
        """Return the step from a position; None after the last."""
        begin = self.next_start(position)
        if self.records == 0 or (self.end is not None and begin >= self.end):
            return None
        epoch, steps, number = self._located(begin)
        return Step(begin, epoch * self.records + steps.range(number)[1])

    def per_epoch(self, place: int = 0, offset: int = 0) -> int:  # noqa: ARG002
        """Return the number of steps of an epoch."""
        return self.plan.count(whole=self.remainder == "drop")

    def _index(self, steps: EpochSteps, number: int) -> int:
        """Return how many steps are handed out before a step of an epoch."""
        return int(steps.whole.searchsorted(number)) if self.remainder == "drop" else number

    def nth(self, start: int, number: int) -> Step | None:
        """Return step ``number``, counted from a position; None if there is no such step."""
        if self.records == 0 or self.per_epoch() == 0:
            return None
        epoch, steps, first = self._located(start)
        more, index = divmod(self._index(steps, first) + number, self.per_epoch())
        steps = self.plan.epoch(epoch + more)
        chosen = int(steps.whole[index]) if self.remainder == "drop" else index
        return self.at((epoch + more) * self.records + steps.range(chosen)[0])

    def count(self, start: int, offset: int = 0) -> int | None:  # noqa: ARG002
        """Return the number of steps from a position; None if there is no end."""
        if self.num_epochs is None:
            return None
        if self.records == 0 or start >= self.num_epochs * self.records:
            return 0
        epoch, steps, first = self._located(start)
        return (self.num_epochs - epoch) * self.per_epoch() - self._index(steps, first)

    def sizes(self, position: int) -> set[int]:  # noqa: ARG002
        """Return the numbers of records that steps from a position on may have."""
        return {self.global_batch, *(self.short_steps if self.remainder == "keep" else ())}
