"""An order of batches from buckets: the records of a step have similar lengths.

Version 3 of the order, which docs/order.md specifies. It never changes under its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.bucket_plan import BucketPlan, EpochSteps
from cachelayer.streams.buckets import BucketTable
from cachelayer.streams.order import Draws, Order
from cachelayer.streams.steps import Step, Steps

BUCKET_ORDER_VERSION = 3

Indices = NDArray[np.int64]


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
        steps, found = self.plan.epoch(epoch), []
        while start < stop:
            number, offset = steps.step_at(start)
            bucket, turn = steps.of_bucket(number)
            end = min(stop, steps.begin(number + 1))
            first = turn * self.plan.global_batch + offset
            found.append(self.table.take(bucket, steps.ranks(bucket, first, first + end - start)))
            start = end
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found])

    def stand_ins(self, epoch: int, places: Indices, draws: Draws) -> Indices:
        """Return for each place another record of its bucket."""
        steps, found = self.plan.epoch(epoch), np.empty_like(places)
        for row, place in enumerate(places.tolist()):
            number, offset = steps.step_at(place)
            bucket, turn = steps.of_bucket(number)
            first = turn * self.plan.global_batch + offset
            rank = Draws(steps.ranks(bucket, first, first + 1), [draws.words[row]], draws.attempt)
            found[row] = self.table.take(bucket, rank.among(np.array([0]), np.array([self.plan.sizes[bucket]])))[0]
        return found


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
        return tuple(self.plan.short.values())

    def _located(self, position: int) -> tuple[int, EpochSteps, int]:
        """Return the epoch of a position, its steps, and the number of the step that the position lies in."""
        epoch, place = divmod(position, self.records)
        steps = self.plan.epoch(epoch)
        return epoch, steps, steps.step_at(place)[0]

    def refusal(self, position: int) -> str | None:
        """Return why no step can begin at a position; None if one can."""
        if self.records == 0:
            return None
        epoch, steps, number = self._located(position)
        begin = epoch * self.records + steps.begin(number)
        if begin == position:
            return None
        end = epoch * self.records + steps.begin(number + 1)
        return (
            f"position {position} lies within a step: with buckets only the starts of steps are valid, the nearest "
            f"are {begin} and {end}"
        )

    def bucket(self, step: Step) -> int:
        """Return the bucket that the records of a step come from."""
        _, steps, number = self._located(step.begin)
        return steps.of_bucket(number)[0]

    def next_start(self, position: int) -> int:
        """Return where the next step from a position begins: short steps that are dropped are skipped."""
        if self.remainder != "drop" or self.records == 0 or (self.end is not None and position >= self.end):
            return position
        if not any(self.plan.whole):
            return position if self.end is None else self.end
        epoch, steps, number = self._located(position)
        while steps.is_short(number):
            number += 1
            if number == steps.count:
                epoch, number = epoch + 1, 0
                if epoch == self.num_epochs:
                    break
                steps = self.plan.epoch(epoch)
        return epoch * self.records + (steps.begin(number) if number else 0)

    def at(self, position: int) -> Step | None:
        """Return the step from a position; None after the last."""
        begin = self.next_start(position)
        if self.records == 0 or (self.end is not None and begin >= self.end):
            return None
        epoch, steps, number = self._located(begin)
        return Step(begin, epoch * self.records + steps.begin(number + 1))

    def per_epoch(self, place: int = 0, offset: int = 0) -> int:  # noqa: ARG002
        """Return the number of steps of an epoch."""
        whole = sum(self.plan.whole)
        return whole if self.remainder == "drop" else whole + len(self.plan.short)

    def _index(self, steps: EpochSteps, number: int) -> int:
        """Return how many steps are handed out before a step of an epoch."""
        return steps.whole_before(number) if self.remainder == "drop" else number

    def nth(self, start: int, number: int) -> Step | None:
        """Return step ``number``, counted from a position; None if there is no such step."""
        if self.records == 0 or self.per_epoch() == 0:
            return None
        epoch, steps, first = self._located(start)
        more, index = divmod(self._index(steps, first) + number, self.per_epoch())
        steps = self.plan.epoch(epoch + more)
        chosen = steps.of_whole(index) if self.remainder == "drop" else index
        return self.at((epoch + more) * self.records + steps.begin(chosen))

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
