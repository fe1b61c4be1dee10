"""An order of batches from buckets: the records of a step have similar lengths.

Version 3 of the order, which docs/order.md specifies. It never changes under its number. A bucket of n records has
``n // G`` whole steps of G records, and a short one if G does not divide n. In each epoch the whole steps come first,
shuffled, and then the short ones, bucket by bucket: steps begin at the same places in all epochs, and any step is
computed alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from cachelayer.locks import cached_property
from cachelayer.streams.order.buckets import BucketTable
from cachelayer.streams.order.exact import Order
from cachelayer.streams.order.permutation import Indices, permuted, round_keys

BUCKET_ORDER_VERSION = 3


@dataclass(frozen=True)
class BucketPlan:
    """The steps of an epoch, numbered from 0.

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

    @cached_property
    def whole_before(self) -> tuple[int, ...]:
        """The number of whole steps of the buckets before each, and of all."""
        return tuple(accumulate((size // self.global_batch for size in self.sizes), initial=0))

    @property
    def whole(self) -> int:
        """The number of whole steps."""
        return self.whole_before[-1]

    @cached_property
    def short(self) -> Mapping[int, int]:
        """The number of records of the short step of each bucket that has one."""
        rests = (size % self.global_batch for size in self.sizes)
        return {bucket: rest for bucket, rest in enumerate(rests) if rest}

    @cached_property
    def short_begins(self) -> tuple[int, ...]:
        """The places where short steps begin; then the number of records."""
        return tuple(accumulate(self.short.values(), initial=self.whole * self.global_batch))

    def step_at(self, place: int) -> int:
        """Return the number of the step in which a place lies."""
        number = place // self.global_batch
        return number if number < self.whole else self.whole + bisect_right(self.short_begins, place) - 1

    def begin(self, number: int) -> int:
        """Return the place where a step begins; after the last, the number of records."""
        return number * self.global_batch if number < self.whole else self.short_begins[number - self.whole]

    def bucket(self, epoch: int, number: int) -> tuple[int, int]:
        """Return the bucket of a step, and how many steps come before it in the order of its bucket."""
        if number >= self.whole:
            bucket = list(self.short)[number - self.whole]
            return bucket, self.sizes[bucket] // self.global_batch
        if self.seed is not None:
            number = int(permuted(self.whole, self._key(epoch, 4), 0, number, number + 1)[0])
        bucket = bisect_right(self.whole_before, number) - 1
        return bucket, number - self.whole_before[bucket]

    def ranks(self, epoch: int, bucket: int, start: int, stop: int) -> Indices:
        """Return the ranks in a bucket of the records at some places of the order of the bucket."""
        if self.seed is None:
            return np.arange(start, stop)
        return permuted(self.sizes[bucket], self._key(epoch, 5), bucket, start, stop)

    def _key(self, epoch: int, number: int) -> int:
        return round_keys(self.seed or 0, epoch if self.reshuffle else 0)[number]


@dataclass(frozen=True, kw_only=True)
class BucketOrder(Order):
    """The order of batches from buckets: an :class:`~cachelayer.streams.order.exact.Ordering`.

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
                "leaves": list(buckets.leaves),
                "bounds": list(buckets.bounds),
                "global_batch_size": self.plan.global_batch,
            },
        }

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at places ``start`` to ``stop`` of an epoch: int64 of shape ``[stop - start]``."""
        numbers = [np.empty(0, np.int64)]
        while start < stop:
            step = self.plan.step_at(start)
            end = min(stop, self.plan.begin(step + 1))
            bucket, turn = self.plan.bucket(epoch, step)
            first = turn * self.plan.global_batch + start - self.plan.begin(step)
            numbers.append(self.table.take(bucket, self.plan.ranks(epoch, bucket, first, first + end - start)))
            start = end
        return np.concatenate(numbers)

    def bucket(self, epoch: int, place: int) -> int:
        """Return the bucket that the records of a step come from, of which one is at a place of an epoch."""
        return self.plan.bucket(epoch, self.plan.step_at(place))[0]
