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
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.order.block_grid import Grid
from cachelayer.streams.order.block_order import BlockOrder
from cachelayer.streams.order.exact import BlockSpans, Order, arrangement, out_of_range
from cachelayer.streams.order.permutation import round_keys
from cachelayer.streams.steps import MOST_POSITIONS

MOST_TURNS = 65_536
# A mixture never ends: all its positions lie in one epoch, whose end nobody reaches.
ENDLESS = MOST_POSITIONS
Stop = Literal["first", "all"]
# Positions whose records are computed at once and kept, because the next batch usually lies among them too.
_PIECE = 1 << 13
_KEPT_PIECES = 64

Indices = NDArray[np.int64]


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


@dataclass(frozen=True)
class MixedOrder:
    """The record at each position of a mixture; records are numbered through all parts, one part after another.

    The turns of a part go through its own order, epoch after epoch. The seed of part i is the first key of
    (seed, 2**62 + i).

    Args:
        turns: the part that each position belongs to.
        sizes: number of records of each part, at least 1.
        shuffle: whether the parts are shuffled.
        seed: key of their orders; None only if nothing is shuffled.
        reshuffle: whether each epoch of a part has an order of its own.
        grids: the sizes of a shuffle in blocks, for each part; none if it is exact.
        length: number of positions of an epoch of the mixture; further epochs go on with the turns of the parts.
    """

    turns: Turns
    sizes: tuple[int, ...]
    shuffle: bool = False
    seed: int | None = None
    reshuffle: bool = True
    grids: tuple[Grid, ...] = ()
    length: int = ENDLESS

    @property
    def records(self) -> int:
        """Number of records of all parts."""
        return sum(self.sizes)

    @cached_property
    def _firsts(self) -> Sequence[int]:
        return [0, *accumulate(self.sizes)]

    @cached_property
    def _seeds(self) -> Sequence[int]:
        return [round_keys(self.seed or 0, ENDLESS + part)[0] for part in range(len(self.sizes))]

    @cached_property
    def orders(self) -> Sequence[Order] | Sequence[BlockOrder]:
        return self._in_blocks or [
            Order(size, self.shuffle, seed if self.shuffle else None, self.reshuffle)
            for size, seed in zip(self.sizes, self._seeds, strict=True)
        ]

    @cached_property
    def _in_blocks(self) -> Sequence[BlockOrder]:
        """The orders of the parts, if they are in blocks."""
        return [BlockOrder(grid, seed, self.reshuffle) for grid, seed in zip(self.grids, self._seeds, strict=False)]

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order; the sizes of blocks are listed part by part."""
        described: dict[str, Any] = {**self.orders[0].described, "seed": self.seed}
        if self._in_blocks:
            sizes = [order.sizes for order in self._in_blocks]
            described["blocks"] = {name: [of_part[name] for of_part in sizes] for name in sizes[0]}
        return described

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what a state says of the order before its position; what comes later may change."""
        return self.turns.past(position)

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at positions ``start`` to ``stop`` of an epoch."""
        begin, end = epoch * self.length + start, epoch * self.length + stop
        numbers = range(begin // _PIECE, -(-end // _PIECE))
        pieces = [_piece(self, number)[max(0, begin - number * _PIECE) : end - number * _PIECE] for number in numbers]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def between(self, start: int, stop: int) -> Indices:
        """Return the record numbers at positions of the endless mixture, each computed anew."""
        records = np.empty(stop - start, np.int64)
        parts, turns = self.turns.at(np.arange(start, stop))
        for part in np.flatnonzero(np.bincount(parts)).tolist():
            which, order, size = np.flatnonzero(parts == part), self.orders[part], self.sizes[part]
            begin, first = 0, int(turns[which[0]])
            while begin < len(which):
                epoch, place = divmod(first + begin, size)
                end = min(len(which), begin + size - place)
                records[which[begin:end]] = self._firsts[part] + order(epoch, place, place + end - begin)
                begin = end
        return records

    def at(self, epoch: int, places: Indices) -> Indices:
        """Return the record numbers at positions."""
        if not self._in_blocks:
            return out_of_range(self, epoch, places)
        records = np.empty(len(places), np.int64)
        for part, which, epoch_of_part, turns in self._turns_at(epoch, places):
            records[which] = self._firsts[part] + self.orders[part].at(epoch_of_part, turns)
        return records

    def ranks(self, epoch: int, start: int, stop: int) -> Indices | None:
        """Return the rank of each position: that of its turn in the order of its part."""
        if not self._in_blocks:
            return None
        ranks = np.empty(stop - start, np.int64)
        for part, which, _, turns in self._turns_at(epoch, np.arange(start, stop)):
            ranks[which] = self._in_blocks[part].ranks_at(turns)
        return ranks

    def arranged(self, epoch: int, start: int, stop: int) -> Indices | None:
        """Return the rows of a step: for each row the offset of its position from ``start``."""
        ranks = self.ranks(epoch, start, stop)
        return None if ranks is None else arrangement(ranks)

    def blocks(self, epoch: int, start: int, stop: int) -> BlockSpans | None:
        """Return the block of the record at each position."""
        return self.blocks_at(epoch, np.arange(start, stop))

    def blocks_at(self, epoch: int, places: Indices) -> BlockSpans | None:
        """Return the blocks of the records at positions; one that a later epoch of its part needs is another use."""
        if not self._in_blocks:
            return None
        out = np.empty((3, len(places)), np.int64)
        for part, which, epoch_of_part, turns in self._turns_at(epoch, places):
            spans, first = self._in_blocks[part].blocks_at(epoch_of_part, turns), self._firsts[part]
            last = self.turns.positions_of(part, spans.last + epoch_of_part * self.orders[part].records)
            out[:, which] = spans.begin + first, spans.end + first, last - epoch * self.length
        return BlockSpans(*out)

    def _turns_at(self, epoch: int, places: Indices) -> Iterator[tuple[int, Indices, int, Indices]]:
        """Yield each part, which of the positions it has in one of its epochs, that epoch, and the places in it."""
        parts, turns = self.turns.at(places + epoch * self.length)
        for part in np.flatnonzero(np.bincount(parts)).tolist():
            which = np.flatnonzero(parts == part)
            epochs, within = np.divmod(turns[which], self.sizes[part])
            cuts = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(which)]
            for begin, end in pairwise(cuts):
                yield part, which[begin:end], int(epochs[begin]), within[begin:end]


@lru_cache(maxsize=_KEPT_PIECES)
def _piece(order: MixedOrder, number: int) -> Indices:
    return order.between(number * _PIECE, (number + 1) * _PIECE)
