"""The order of a mixture: which part each position belongs to, and which record of the part comes there.

In a *round* the parts take turns, in proportion to their weights. It repeats from the first position of a *stage* on,
until weights change and the next stage begins. With weights 3 and 1, and from position 8 on 1 and 1::

    stage       0                   1
    position    0 1 2 3   4 5 6 7   8 9   10 11   12 ...
    part        0 1 0 0   0 1 0 0   0 1   0  1    0  ...
    turn        0 0 1 2   3 1 4 5   6 2   7  3    8  ...        of the part

The turns of a part go on from one stage to the next. Turn t of a part with n records is place ``t % n`` of epoch
``t // n`` of the part's own order. Arithmetic only.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import lcm
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.order.orders import MOST_POSITIONS, BlockBounds, ExactOrder, Order, describe
from cachelayer.streams.order.permutation import Indices, round_keys
from cachelayer.support.locks import cached_property

MOST_TURNS = 65_536
"""The most positions of a round."""
ENDLESS = MOST_POSITIONS
"""The positions of a mixture that never ends: all of them lie in one epoch, whose end nobody reaches."""
Stop = Literal["first", "all"]


def turns_of(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return how many positions of a round each part has: at most :data:`MOST_TURNS` together.

    The turns are exactly in proportion to the weights if a round can have as many. Else it has :data:`MOST_TURNS`
    turns: the share of each part is rounded down, and the parts that lose most get one more.

    Args:
        weights: of the parts; none is negative, and one is positive.
    """
    total = sum(weights)
    shares = [weight / total for weight in weights]
    common = lcm(*(share.denominator for share in shares))
    if common <= MOST_TURNS:
        return tuple(int(share * common) for share in shares)
    turns = [int(share * MOST_TURNS) for share in shares]
    lost = [turn - share * MOST_TURNS for turn, share in zip(turns, shares, strict=True)]
    for part in sorted(range(len(turns)), key=lost.__getitem__)[: MOST_TURNS - sum(turns)]:
        turns[part] += 1
    return tuple(turns)


class Round(NamedTuple):
    """The positions of a round."""

    part_of: Indices
    """The part that each position belongs to."""
    turn_of: Indices
    """The number of turns that this part has before the position."""
    places: Sequence[Indices]
    """The positions of each part."""


@lru_cache(maxsize=32)
def round_of(turns: tuple[int, ...]) -> Round:
    """Return the round in which each part has its number of turns, spread evenly.

    The two shortest sequences of turns are merged, until one is left::

        turns 2, 1, 1      b + c -> b c      a a + b c -> a b a c

    Each merge rounds once, and moves a part by half of its share of what is merged. These shares fall at least like the
    inverse numbers of Fibonacci, so a part is never more than 1.7 turns ahead or behind, however many parts there are.
    """
    heap = [(count, part, np.full(count, part)) for part, count in enumerate(turns) if count]
    heapq.heapify(heap)
    for number in range(len(turns), len(turns) + len(heap) - 1):
        (few, _, left), (more, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        both = few + more
        is_left = np.diff((2 * few * np.arange(both + 1) + both) // (2 * both)) > 0
        merged = np.empty(both, np.int64)
        merged[is_left], merged[~is_left] = left, right
        heapq.heappush(heap, (both, number, merged))
    part_of = heap[0][2]
    places = np.split(np.argsort(part_of, kind="stable"), np.cumsum(turns)[:-1])
    turn_of = np.empty_like(part_of)
    for positions in places:
        turn_of[positions] = np.arange(len(positions))
    return Round(part_of, turn_of, places)


@dataclass(frozen=True, eq=False)
class Turns:
    """The part that each position of a mixture belongs to, in one stage or more."""

    starts: tuple[int, ...]
    """The first position of each stage: ascending from 0, and less than 2**62."""
    rounds: tuple[tuple[int, ...], ...]
    """For each stage, how many positions each part has in a round; see :func:`turns_of`."""

    def __reduce__(self) -> tuple[type[Turns], tuple[Any, ...]]:
        return Turns, (self.starts, self.rounds)

    @cached_property
    def _first(self) -> Indices:
        return np.array(self.starts, np.int64)

    @cached_property
    def _before(self) -> Indices:
        """The number of turns of each part before each stage: int64 of shape ``[stages, parts]``."""
        before = np.zeros((len(self.starts), len(self.rounds[0])), np.int64)
        for stage, (start, end) in enumerate(pairwise(self.starts)):
            turns = self.rounds[stage]
            rounds, places = divmod(end - start, sum(turns))
            rest = np.bincount(round_of(turns).part_of[:places], minlength=len(turns)) if places else 0
            before[stage + 1] = before[stage] + rounds * np.array(turns, np.int64) + rest
        return before

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what decided the turns before a position: how many stages, and SHA-256 of them.

        The text of a stage is ``start:turns,turns,...;`` in decimal digits.
        """
        stages = int(self._first.searchsorted(position))
        return {"mixture": {"stages": stages, "sha256": self._digests[stages]}}

    @cached_property
    def _digests(self) -> Sequence[str]:
        """SHA-256 of no stage, of the first stage, of the first two, and so on."""
        state = hashlib.sha256()
        digests = [state.hexdigest()]
        for start, turns in zip(self.starts, self.rounds, strict=True):
            state.update(f"{start}:{','.join(map(str, turns))};".encode())
            digests.append(state.hexdigest())
        return digests

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part that each position belongs to, and the number of turns that the part has before it."""
        parts = np.empty_like(positions)
        turns = np.empty_like(positions)
        for stage, which in _groups(self._first.searchsorted(positions, side="right") - 1):
            counts = self.rounds[stage]
            round_ = round_of(counts)
            rounds, places = _divided(positions[which] - self.starts[stage], sum(counts))
            parts[which] = stage_parts = round_.part_of[places]
            turns[which] = self._before[stage][stage_parts] + rounds * np.array(counts)[stage_parts]
            turns[which] += round_.turn_of[places]
        return parts, turns

    def positions_of(self, part: int, turns: Indices) -> Indices:
        """Return the positions of turns of a part; for a turn that it never has, the position of its last one."""
        positions = np.empty_like(turns)
        if self.rounds[-1][part] == 0:
            turns = np.minimum(turns, self._before[-1, part] - 1)
        for stage, which in _groups(self._before[:, part].searchsorted(turns, side="right") - 1):
            counts = self.rounds[stage]
            rounds, places = _divided(turns[which] - self._before[stage, part], counts[part])
            positions[which] = self.starts[stage] + rounds * sum(counts) + round_of(counts).places[part][places]
        return np.minimum(positions, MOST_POSITIONS)

    def end_of(self, part: int, records: int) -> int | None:
        """Return the position after which all records of a part have been read once; None if that never comes."""
        if self.rounds[-1][part] == 0 and records > self._before[-1, part]:
            return None
        end = int(self.positions_of(part, np.array([records - 1]))[0]) + 1
        return end if end <= ENDLESS else None


def _divided(numbers: Indices, by: int) -> tuple[Indices, Indices]:
    """Return quotients and remainders: numpy divides by one number several times as fast as it finds remainders."""
    quotients = numbers // by
    return quotients, numbers - quotients * by


def _groups(numbers: Indices) -> Iterator[tuple[int, Any]]:
    """Yield every different number, and where it stands; mostly there is one, which stands everywhere."""
    if len(numbers) and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        yield int(numbers[0]), slice(None)
        return
    for number in np.unique(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)


@dataclass(frozen=True, eq=False)
class MixedOrder(Order):
    """The record at each position of a mixture; records are numbered through all parts, one part after another."""

    turns: Turns
    """The part that each position belongs to."""
    orders: tuple[ExactOrder, ...] | tuple[BlockOrder, ...]
    """The order of each part, which has a record at least; all are exact, or all are in blocks."""
    seed: int | None = None
    """The seed that the seeds of the parts come from, by :func:`seed_of_part`; None only if nothing is shuffled."""
    length: int = ENDLESS
    """The number of positions of an epoch of the mixture; further epochs go on with the turns of the parts."""

    @property
    def records(self) -> int:
        """Number of records of all parts."""
        return self._firsts[-1]

    @property
    def shuffle(self) -> bool:
        return self.orders[0].shuffle

    @property
    def reshuffle(self) -> bool:
        return self.orders[0].reshuffle

    @property
    def described(self) -> Mapping[str, Any]:
        """The order in a state; the sizes of blocks are listed part by part."""
        sizes = [order.sizes for order in self.orders if isinstance(order, BlockOrder)]
        listed = {name: [of_part[name] for of_part in sizes] for name in (sizes[0] if sizes else ())}
        return describe("mixture", self, **({"blocks": listed} if sizes else {}))

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what a state says of the order before its position; what comes later may change."""
        return self.turns.past(position)

    def with_sizes_of(self, state: Any) -> MixedOrder:
        """Return the order in which each part has its own sizes of a state, where they follow from its version."""
        try:
            sizes = [dict(zip(state, of_part, strict=True)) for of_part in zip(*state.values(), strict=True)]
            orders: Any = tuple(order.with_sizes_of(own) for order, own in zip(self.orders, sizes, strict=True))
        except (AttributeError, TypeError, ValueError):
            # It has no sizes, or those of other parts.
            return self
        return replace(self, orders=orders)

    @cached_property
    def _firsts(self) -> Sequence[int]:
        """The first record number of each part; then the number of all records."""
        return [0, *accumulate(order.records for order in self.orders)]

    def compute(self, epoch: int, places: Indices) -> Indices:
        records = np.empty(len(places), np.int64)
        for part, which, epoch_of_part, turns in self._parts_at(epoch, places):
            records[which] = self._firsts[part] + self.orders[part].at(epoch_of_part, turns)
        return records

    @property
    def in_blocks(self) -> bool:
        return self.orders[0].in_blocks

    def sort_keys(self, epoch: int, places: Indices) -> Indices:
        keys = np.empty(len(places), np.int64)
        for part, which, epoch_of_part, turns in self._parts_at(epoch, places):
            keys[which] = cast(BlockOrder, self.orders[part]).sort_keys(epoch_of_part, turns)
        return keys

    def blocks(self, epoch: int, places: Indices) -> BlockBounds:
        """Return the block of the record at each place; a later epoch of the part needs another fetch of it."""
        begins, ends, lasts = np.empty((3, len(places)), np.int64)
        for part, which, epoch_of_part, turns in self._parts_at(epoch, places):
            bounds = cast(BlockOrder, self.orders[part]).blocks(epoch_of_part, turns)
            begins[which] = bounds.begin + self._firsts[part]
            ends[which] = bounds.end + self._firsts[part]
            last_turns = bounds.last + epoch_of_part * self.orders[part].records
            lasts[which] = self.turns.positions_of(part, last_turns) - epoch * self.length
        return BlockBounds(begins, ends, lasts)

    def _parts_at(self, epoch: int, places: Indices) -> Iterator[tuple[int, Indices, int, Indices]]:
        """Yield, for each epoch of each part: the part, which of the places it has, the epoch, and the places in it."""
        parts, turns = self.turns.at(places + epoch * self.length)
        for part in np.flatnonzero(np.bincount(parts)).tolist():
            which = np.flatnonzero(parts == part)
            epochs, within = _divided(turns[which], self.orders[part].records)
            if (epochs == epochs[0]).all():
                yield part, which, int(epochs[0]), within
                continue
            for epoch_of_part in np.unique(epochs).tolist():
                is_in_epoch = epochs == epoch_of_part
                yield part, which[is_in_epoch], epoch_of_part, within[is_in_epoch]


def seed_of_part(seed: int, part: int) -> int:
    """Return the seed of the order of a part of a mixture."""
    return round_keys(seed, ENDLESS + part)[0]
