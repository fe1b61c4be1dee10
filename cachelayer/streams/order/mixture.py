"""The order of a mixture: the part that each position belongs to, and the record of the part there. Arithmetic only.

In each stage the parts take turns in a round that repeats from the stage's first position on. With weights 3 and 1::

    position    0 1 2 3   4 5 6 7   8 ...
    part        0 1 0 0   0 1 0 0   0 ...
    its turn    0 0 1 2   3 1 4 5   6 ...

The turns of a part go on from one stage to the next, and through the epochs of the part.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import lcm
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from cachelayer.locks import cached_property
from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.order.orders import BlockBounds, ExactOrder, Order, describe
from cachelayer.streams.order.permutation import Indices, round_keys
from cachelayer.streams.steps import MOST_POSITIONS

MOST_TURNS = 65_536
# A mixture never ends: all its positions lie in one epoch, whose end nobody reaches.
ENDLESS = MOST_POSITIONS
Stop = Literal["first", "all"]
MIXTURE_VERSION = 1


def turns_of(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return how many positions of a round each part has: at most :data:`MOST_TURNS` together.

    They are exactly in proportion to the weights if so many are enough. Else a round has :data:`MOST_TURNS`: each
    share of them is rounded down, and those that lose most get one more.

    Args:
        weights: none negative, and at least one positive.
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
    """The positions of a round.

    Args:
        part_of: the part that each position belongs to.
        turn_of: the number of turns that this part has before it in the round.
        places: the positions of each part.
    """

    part_of: Indices
    turn_of: Indices
    places: Sequence[Indices]


@lru_cache(maxsize=32)
def round_of(turns: tuple[int, ...]) -> Round:
    """Return the round in which each part has so many turns, spread evenly.

    The two shortest sequences of parts are merged, until one is left. Each merge rounds once, and moves a part by half
    of its share of what is merged. These shares fall at least like the inverse numbers of Fibonacci, so a part is never
    more than 1.7 turns ahead or behind, however many there are.
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
    """The part that each position of a mixture belongs to, in one stage or more.

    Args:
        starts: the first position of each stage, ascending from 0, each less than 2**62.
        rounds: how many positions each part has in a round of each stage; see :func:`turns_of`.
    """

    starts: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]

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
        """SHA-256 of the first stages, for each number of them from 0 on."""
        state = hashlib.sha256()
        digests = [state.hexdigest()]
        for start, turns in zip(self.starts, self.rounds, strict=True):
            state.update(f"{start}:{','.join(map(str, turns))};".encode())
            digests.append(state.hexdigest())
        return digests

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part that each position belongs to, and the number of turns that the part has before it."""
        parts, turns = np.empty_like(positions), np.empty_like(positions)
        for stage, which in _groups(self._first.searchsorted(positions, side="right") - 1):
            counts = self.rounds[stage]
            round_ = round_of(counts)
            rounds, places = np.divmod(positions[which] - self.starts[stage], sum(counts))
            parts[which] = stage_parts = round_.part_of[places]
            turns[which] = self._before[stage][stage_parts] + rounds * np.array(counts)[stage_parts]
            turns[which] += round_.turn_of[places]
        return parts, turns

    def positions_of(self, part: int, turns: Indices) -> Indices:
        """Return the positions of turns of a part; if it has no such turn, that of its last."""
        positions = np.empty_like(turns)
        if self.rounds[-1][part] == 0:
            turns = np.minimum(turns, self._before[-1, part] - 1)
        for stage, which in _groups(self._before[:, part].searchsorted(turns, side="right") - 1):
            counts = self.rounds[stage]
            rounds, places = np.divmod(turns[which] - self._before[stage, part], counts[part])
            positions[which] = self.starts[stage] + rounds * sum(counts) + round_of(counts).places[part][places]
        return np.minimum(positions, MOST_POSITIONS)

    def end_of(self, part: int, records: int) -> int | None:
        """Return the position after which a part of so many records has been read once; None if that never comes."""
        if self.rounds[-1][part] == 0 and records > self._before[-1, part]:
            return None
        end = int(self.positions_of(part, np.array([records - 1]))[0]) + 1
        return end if end <= ENDLESS else None


def _groups(numbers: Indices) -> Iterator[tuple[int, Any]]:
    """Yield each number, and where it stands: often everywhere."""
    if len(numbers) and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        yield int(numbers[0]), slice(None)
        return
    for number in np.unique(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)


@dataclass(frozen=True, eq=False)
class MixedOrder(Order):
    """The record at each position of a mixture; records are numbered through all parts, one part after another.

    The turns of a part go through its own order, epoch after epoch.

    Args:
        turns: the part that each position belongs to.
        orders: the order of each part, of at least one record; all exact, or all in blocks.
        seed: the seed that those of the parts come from, by :func:`seed_of_part`; None only if nothing is shuffled.
        length: number of positions of an epoch of the mixture; further epochs go on with the turns of the parts.
    """

    turns: Turns
    orders: tuple[ExactOrder, ...] | tuple[BlockOrder, ...]
    seed: int | None = None
    length: int = ENDLESS

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
        """What a state says of the order; the sizes of blocks are listed part by part."""
        sizes = [order.sizes for order in self.orders if isinstance(order, BlockOrder)]
        listed = {name: [of_part[name] for of_part in sizes] for name in (sizes[0] if sizes else ())}
        return describe("mixture", MIXTURE_VERSION, self, **({"blocks": listed} if sizes else {}))

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what a state says of the order before its position; what comes later may change."""
        return self.turns.past(position)

    @cached_property
    def _firsts(self) -> Sequence[int]:
        """The first record number of each part; then the number of all."""
        return [0, *accumulate(order.records for order in self.orders)]

    def compute(self, epoch: int, places: Indices) -> Indices:
        records = np.empty(len(places), np.int64)
        for part, which, epoch_of_part, turns in self._parts_at(epoch, places):
            # Mostly all turns in a row, which costs less.
            first, last = int(turns[0]), int(turns[-1])
            row = range(first, last + 1)
            is_row = len(row) == len(turns) and np.array_equal(turns, np.arange(first, last + 1))
            records[which] = self._firsts[part] + self.orders[part].at(epoch_of_part, row if is_row else turns)
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
        """Return the blocks that records belong to; one that a later epoch of its part needs is another use."""
        begins, ends, lasts = np.empty((3, len(places)), np.int64)
        for part, which, epoch_of_part, turns in self._parts_at(epoch, places):
            begin, end, last = cast(BlockOrder, self.orders[part]).blocks(epoch_of_part, turns)
            begins[which], ends[which] = begin + self._firsts[part], end + self._firsts[part]
            last_turns = last + epoch_of_part * self.orders[part].records
            lasts[which] = self.turns.positions_of(part, last_turns) - epoch * self.length
        return BlockBounds(begins, ends, lasts)

    def _parts_at(self, epoch: int, places: Indices) -> Iterator[tuple[int, Indices, int, Indices]]:
        """Yield each part, which of the positions it has in one of its epochs, that epoch, and the places in it."""
        parts, turns = self.turns.at(places + epoch * self.length)
        for part in np.flatnonzero(np.bincount(parts)).tolist():
            which = np.flatnonzero(parts == part)
            epochs, within = np.divmod(turns[which], self.orders[part].records)
            if (epochs == epochs[0]).all():
                yield part, which, int(epochs[0]), within
                continue
            for epoch_of_part in np.unique(epochs).tolist():
                mine = epochs == epoch_of_part
                yield part, which[mine], epoch_of_part, within[mine]


def seed_of_part(seed: int, part: int) -> int:
    """Return the seed of the order of a part of a mixture."""
    return round_keys(seed, ENDLESS + part)[0]
