"""Steps of buckets: which bucket each step of an epoch belongs to, and where the step begins. Arithmetic only.

A bucket of n records has ``n // G`` whole steps of G records, and a short one if G does not divide n. So an epoch has
few short steps, at most one a bucket, and the begin of any step follows from the short ones before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order import permuted, permuted_at, round_keys

# Products of numbers of steps stay within int64 up to this many steps.
_INT64_STEPS = 1 << 30

Indices = NDArray[np.int64]


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

    @property
    def whole(self) -> tuple[int, ...]:
        """Number of whole steps of each bucket."""
        return tuple(size // self.global_batch for size in self.sizes)

    @property
    def short(self) -> dict[int, int]:
        """The number of records in the short step of each bucket that has one."""
        lefts = {bucket: size % self.global_batch for bucket, size in enumerate(self.sizes)}
        return {bucket: left for bucket, left in lefts.items() if left}

    def epoch(self, epoch: int) -> EpochSteps:
        """Return the steps of an epoch."""
        return _epoch_steps(self, epoch if self.reshuffle and self.seed is not None else 0)


@lru_cache(maxsize=256)
def _epoch_steps(plan: BucketPlan, epoch: int) -> EpochSteps:
    keys = None if plan.seed is None else round_keys(plan.seed, epoch)
    buckets = np.array(list(plan.short), np.int64)
    total = sum(plan.whole) + len(buckets)
    # Without shuffle they come at the end, bucket by bucket.
    last = np.arange(total - len(buckets), total)
    numbers = last if keys is None else permuted(total, keys[3], 0, 0, len(buckets))
    order = np.argsort(numbers)
    sizes = np.array(list(plan.short.values()), np.int64)[order]
    numbers, buckets = numbers[order], buckets[order]
    lost = np.cumsum(plan.global_batch - sizes)
    ends = (numbers + 1) * plan.global_batch - lost
    return EpochSteps(plan, keys, total, numbers, buckets, ends - sizes, ends)


@dataclass(frozen=True, eq=False)
class EpochSteps:
    """The steps of one epoch, numbered from 0.

    Args:
        plan: what all epochs share.
        keys: the keys of (seed, epoch); None if nothing is shuffled.
        count: number of steps.
        short: the numbers of the short steps, ascending.
        buckets: the bucket of each short step.
        begins: the place where each short step begins.
        ends: the place after each short step.
    """

    plan: BucketPlan
    keys: tuple[int, ...] | None
    count: int
    short: Indices
    buckets: Indices
    begins: Indices
    ends: Indices

    @property
    def whole(self) -> int:
        """Number of whole steps."""
        return self.count - len(self.short)

    def is_short(self, number: int) -> bool:
        """Return whether a step is a short one."""
        before = int(self.short.searchsorted(number))
        return before < len(self.short) and int(self.short[before]) == number

    def whole_before(self, number: int) -> int:
        """Return how many whole steps come before a step."""
        return number - int(self.short.searchsorted(number))

    def of_whole(self, index: int) -> int:
        """Return the number of the step that is a whole step and has so many whole steps before it."""
        return index + int((self.short - np.arange(len(self.short))).searchsorted(index, side="right"))

    def begin(self, number: int) -> int:
        """Return the place where a step begins; the number of records for that after the last."""
        before = int(self.short.searchsorted(number))
        end, after = (int(self.ends[before - 1]), int(self.short[before - 1]) + 1) if before else (0, 0)
        return end + (number - after) * self.plan.global_batch

    def steps_at(self, places: Indices) -> tuple[Indices, Indices, Indices]:
        """Return for each place the number of its step, its offset in the step, and how many short steps came before.

        The place of a short step counts that step as not yet come.
        """
        before = self.ends.searchsorted(places, side="right")
        ends = np.concatenate([np.zeros(1, np.int64), self.ends])[before]
        firsts = np.concatenate([np.zeros(1, np.int64), self.short + 1])[before]
        steps, offsets = np.divmod(places - ends, self.plan.global_batch)
        return firsts + steps, offsets, before

    def step_at(self, place: int) -> tuple[int, int]:
        """Return the number of the step in which a place lies, and the offset of the place in the step."""
        steps, offsets, _ = self.steps_at(np.array([place], np.int64))
        return int(steps[0]), int(offsets[0])

    def bucket(self, number: int) -> int:
        """Return the bucket of a step."""
        return int(self.ranks_at(np.array([self.begin(number)], np.int64))[0][0])

    def ranks_at(self, places: Indices) -> tuple[Indices, Indices]:
        """Return for each place its bucket, and its place in the order of the records of that bucket."""
        numbers, offsets, before = self.steps_at(places)
        short = np.append(self.short, -1)[before] == numbers
        buckets, turns = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        buckets[short] = self.buckets[before[short]]
        turns[short] = np.array(self.plan.whole, np.int64)[buckets[short]]
        # Many places lie in few steps.
        steps, rows = np.unique((numbers - before)[~short], return_inverse=True)
        of_steps, turns_of_steps = self._whole_steps(steps)
        buckets[~short], turns[~short] = of_steps[rows], turns_of_steps[rows]
        return buckets, turns * self.plan.global_batch + offsets

    def _whole_steps(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the bucket of each whole step, and how many steps of that bucket are before it in the bucket's order.

        Args:
            indices: which of the whole steps.
        """
        if self.keys is None:
            return interleaved(self.plan.whole, indices)
        chosen = permuted_places(self.whole, self.keys[4], 0, indices)
        firsts = np.array([0, *accumulate(self.plan.whole)], np.int64)
        buckets = firsts.searchsorted(chosen, side="right") - 1
        return buckets, chosen - firsts[buckets]

    def members_at(self, bucket: int, ranks: Indices) -> Indices:
        """Return which record of a bucket, counted in ascending order, comes at each place of its order."""
        if self.keys is None:
            return ranks
        return permuted_places(self.plan.sizes[bucket], self.keys[5], bucket, ranks)


def interleaved(counts: tuple[int, ...], indices: Indices) -> tuple[Indices, Indices]:
    """Return the bucket of each step if those of all buckets are spread evenly, and its number among that bucket's.

    The steps of the first bucket are spread over all, those of the second over what is left, and so on.

    Args:
        counts: number of steps of each bucket.
        indices: which of the steps.
    """
    left = sum(counts)
    buckets, turns = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
    rows = np.arange(len(indices))
    places = indices if left < _INT64_STEPS else indices.astype(object)
    for bucket, count in enumerate(counts):
        if len(rows) == 0:
            break
        before = (2 * places * count + left) // (2 * left)
        mine = ((2 * (places + 1) * count + left) // (2 * left) > before).astype(bool)
        buckets[rows[mine]], turns[rows[mine]] = bucket, before[mine]
        rows, places, left = rows[~mine], (places - before)[~mine], left - count
    return buckets, turns


def permuted_places(records: int, seed: int, epoch: int, places: Indices) -> Indices:
    """Return a permutation at any places, which usually lie close together."""
    if len(places) == 0:
        return places
    first, stop = int(places.min()), int(places.max()) + 1
    if stop - first > 2 * len(places):
        return permuted_at(records, seed, epoch, places)
    found: Indices = permuted(records, seed, epoch, first, stop)[places - first]
    return found
