"""Steps of buckets: which bucket each step of an epoch belongs to, and where the step begins. Arithmetic only.

A bucket of n records has ``n // G`` whole steps of G records, and a short one if G does not divide n. So an epoch has
few short steps, at most one a bucket, and the begin of any step follows from the short ones before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.permutation import permuted, round_keys

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
    whole, short = plan.whole, plan.short
    total = sum(whole) + len(short)
    # Without shuffle they come at the end, bucket by bucket.
    last = range(total - len(short), total)
    numbers = last if keys is None else permuted(total, keys[3], 0, 0, len(short)).tolist()
    in_order = sorted(zip(numbers, short.items(), strict=True))
    lost = accumulate(plan.global_batch - size for _, (_, size) in in_order)
    ends = [(number + 1) * plan.global_batch - less for (number, _), less in zip(in_order, lost, strict=True)]
    return EpochSteps(
        global_batch=plan.global_batch,
        sizes=plan.sizes,
        whole=whole,
        firsts=tuple(accumulate(whole, initial=0)),
        keys=keys,
        short=tuple(number for number, _ in in_order),
        buckets=tuple(bucket for _, (bucket, _) in in_order),
        ends=tuple(ends),
    )


@dataclass(frozen=True, eq=False)
class EpochSteps:
    """The steps of one epoch, numbered from 0.

    Args:
        global_batch: records of a whole step.
        sizes: number of records in each bucket.
        whole: number of whole steps of each bucket.
        firsts: number of whole steps of the buckets before each, and of all.
        keys: the keys of (seed, epoch); None if nothing is shuffled.
        short: the numbers of the short steps, ascending.
        buckets: the bucket of each short step.
        ends: the place after each short step.
    """

    global_batch: int
    sizes: tuple[int, ...]
    whole: tuple[int, ...]
    firsts: tuple[int, ...]
    keys: tuple[int, ...] | None
    short: tuple[int, ...]
    buckets: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of steps."""
        return self.firsts[-1] + len(self.short)

    def is_short(self, number: int) -> bool:
        """Return whether a step is a short one."""
        before = bisect_left(self.short, number)
        return before < len(self.short) and self.short[before] == number

    def whole_before(self, number: int) -> int:
        """Return how many whole steps come before a step."""
        return number - bisect_left(self.short, number)

    def of_whole(self, index: int) -> int:
        """Return the number of the whole step that has so many whole steps before it."""
        return index + sum(number - before <= index for before, number in enumerate(self.short))

    def begin(self, number: int) -> int:
        """Return the place where a step begins; the number of records for that after the last."""
        before = bisect_left(self.short, number)
        end, after = (self.ends[before - 1], self.short[before - 1] + 1) if before else (0, 0)
        return end + (number - after) * self.global_batch

    def step_at(self, place: int) -> tuple[int, int]:
        """Return the number of the step in which a place lies, and the offset of the place in the step."""
        before = bisect_right(self.ends, place)
        end, after = (self.ends[before - 1], self.short[before - 1] + 1) if before else (0, 0)
        steps, offset = divmod(place - end, self.global_batch)
        return after + steps, offset

    def of_bucket(self, number: int) -> tuple[int, int]:
        """Return the bucket of a step, and how many steps come before it in the order of the bucket."""
        before = bisect_left(self.short, number)
        if before < len(self.short) and self.short[before] == number:
            bucket = self.buckets[before]
            return bucket, self.whole[bucket]
        index = number - before
        if self.keys is None:
            return interleaved(self.whole, index)
        chosen = int(permuted(self.firsts[-1], self.keys[4], 0, index, index + 1)[0])
        bucket = bisect_right(self.firsts, chosen) - 1
        return bucket, chosen - self.firsts[bucket]

    def ranks(self, bucket: int, start: int, stop: int) -> Indices:
        """Return the ranks of the records of a bucket, in ascending order, at some places of the bucket's own order."""
        if self.keys is None:
            return np.arange(start, stop)
        return permuted(self.sizes[bucket], self.keys[5], bucket, start, stop)


def interleaved(counts: Sequence[int], index: int) -> tuple[int, int]:
    """Return the bucket of a step if those of all buckets are spread evenly, and its number among that bucket's.

    The steps of the first bucket are spread over all, those of the second over what is left, and so on.

    Args:
        counts: number of steps of each bucket.
        index: which of all steps.
    """
    left = sum(counts)
    for bucket, count in enumerate(counts[:-1]):
        before = (2 * index * count + left) // (2 * left)
        if (2 * (index + 1) * count + left) // (2 * left) > before:
            return bucket, before
        index, left = index - before, left - count
    return len(counts) - 1, index
