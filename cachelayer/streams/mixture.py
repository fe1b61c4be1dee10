"""The order of a mixture: the part that each position belongs to, and the record of the part there. Arithmetic only.

With integer weights that never change, the parts take turns in a pattern that repeats for ever. Its length is the sum
of the weights, and each part has exactly as many positions in it as its weight. With weights 3 and 1::

    position    0 1 2 3   4 5 6 7   8 ...
    part        0 0 1 0   0 0 1 0   0 ...
    its turn    0 1 0 2   3 4 1 5   6 ...

All other weights make a :class:`cachelayer.streams.schedule.Schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.block_grid import Grid
from cachelayer.streams.block_order import BlockOrder, near
from cachelayer.streams.order import BlockSpans, Draws, Order, arrangement, out_of_range
from cachelayer.streams.permutation import permuted_at, round_keys
from cachelayer.streams.small_epochs import across_epochs, are_small
from cachelayer.streams.steps import MOST_POSITIONS

MOST_TURNS = 65_536
# A mixture never ends: all its positions lie in one epoch, whose end nobody reaches.
ENDLESS = MOST_POSITIONS
Stop = Literal["first", "all"]
# Positions whose records are computed at once and kept, because the next batch usually lies among them too: a short
# piece from the first of them on, and then whole ones.
_SHORT = 1 << 11
_PIECE = 1 << 14
_KEPT_NBYTES = 32 << 20

Indices = NDArray[np.int64]


class Turns(Protocol):
    """The part that each position of a mixture belongs to."""

    def between(self, start: int, stop: int) -> Iterator[tuple[int, Indices, int]]:
        """Yield the parts of the positions ``start`` to ``stop``, each once or more.

        With each come the offsets of its positions from ``start``, ascending, and its turn at the first of them.
        """

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part that each position belongs to, and the number of turns that the part has before it."""

    def positions_of(self, part: int, turns: Indices) -> Indices:
        """Return the positions of turns of a part."""

    def position_of(self, part: int, turn: int) -> int | None:
        """Return the position of a turn of a part; None if it does not come before 2**62."""

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what a state says of the turns before its position."""


@dataclass(frozen=True)
class Pattern:
    """The part that each position belongs to.

    Args:
        weights: number of positions of each part in a round; at least 1 each, at most :data:`MOST_TURNS` together.
    """

    weights: tuple[int, ...]

    @property
    def turns(self) -> int:
        """Number of positions in a round."""
        return sum(self.weights)

    @cached_property
    def part_of(self) -> Indices:
        """The part that each position of a round belongs to.

        Turn k of a part with weight w has the rank ``(2 * k + 1) / w``, rounded down to a multiple of 2**-32. The turns
        are sorted by rank; if two ranks are equal, the first part comes first.
        """
        weights = np.array(self.weights, np.int64)
        parts = np.repeat(np.arange(len(weights)), weights)
        turns = np.concatenate([np.arange(weight) for weight in self.weights])
        ranks = (2 * turns + 1 << 32) // weights[parts]
        order: Indices = parts[np.argsort(ranks, kind="stable")]
        return order

    @cached_property
    def _places(self) -> Sequence[Indices]:
        """The positions of each part in a round."""
        return np.split(np.argsort(self.part_of, kind="stable"), np.cumsum(self.weights)[:-1])

    @cached_property
    def _turn_of(self) -> Indices:
        """The number of turns that the part of each position of a round has before it in the round."""
        turns = np.empty(self.turns, np.int64)
        for places in self._places:
            turns[places] = np.arange(len(places))
        return turns

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part that each position belongs to, and the number of turns that the part has before it."""
        rounds, places = np.divmod(positions, self.turns)
        parts = self.part_of[places]
        return parts, rounds * np.array(self.weights)[parts] + self._turn_of[places]

    def between(self, start: int, stop: int) -> Iterator[tuple[int, Indices, int]]:
        """Yield the parts of the positions ``start`` to ``stop``; see :meth:`Turns.between`."""
        parts, turns = self.at(np.arange(start, stop))
        for part in np.flatnonzero(np.bincount(parts)).tolist():
            offsets = np.flatnonzero(parts == part)
            yield part, offsets, int(turns[offsets[0]])

    def positions_of(self, part: int, turns: Indices) -> Indices:
        """Return the positions of turns of a part."""
        rounds, turns = np.divmod(turns, self.weights[part])
        positions: Indices = rounds * self.turns + self._places[part][turns]
        return positions

    def position_of(self, part: int, turn: int) -> int | None:
        """Return the position of a turn of a part; None if it does not come before 2**62."""
        rounds, turn = divmod(turn, self.weights[part])
        position = rounds * self.turns + int(self._places[part][turn])
        return position if position < ENDLESS else None

    def past(self, position: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return nothing: the digest of the mixture tells the weights, which never change."""
        return {}


def ends_of(turns: Turns, sizes: Sequence[int]) -> list[int | None]:
    """Return the position after which each part has been read once; None if that does not come up to 2**62.

    Args:
        turns: the part that each position belongs to.
        sizes: number of records of each part.
    """
    lasts = [turns.position_of(part, size - 1) for part, size in enumerate(sizes)]
    return [None if last is None else last + 1 for last in lasts]


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
        """The orders of the parts."""
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
        found: dict[str, Any] = {**self.orders[0].described, "seed": self.seed}
        if self._in_blocks:
            sizes = [order.sizes for order in self._in_blocks]
            found["blocks"] = {name: [each[name] for each in sizes] for name in sizes[0]}
        return found

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what a state says of the order before its position; what comes later may change."""
        return self.turns.past(position)

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at positions ``start`` to ``stop`` of an epoch."""
        position, end = epoch * self.length + start, epoch * self.length + stop
        pieces = []
        while position < end:
            first, piece = self._piece_at(position)
            pieces.append(piece[position - first : end - first])
            position += len(pieces[-1])
        return pieces[0].copy() if len(pieces) == 1 else np.concatenate([np.empty(0, np.int64), *pieces])

    def _piece_at(self, position: int) -> tuple[int, Indices]:
        """Return the records of positions around this one, and the first of these positions."""
        number = position // _PIECE
        known = _known_pieces(self, number)
        for first, piece in known:
            if first <= position < first + len(piece):
                return first, piece
        # A caller that asks for one step waits for a short piece only. One that goes on gets whole pieces, which cost
        # less a position.
        if known or _known_pieces(self, number - 1):
            found = number * _PIECE, self._computed(number * _PIECE, (number + 1) * _PIECE, whole=True)
        else:
            found = position, self._computed(position, position + _SHORT, whole=False)
        known.append(found)
        return found

    def _computed(self, start: int, stop: int, *, whole: bool) -> Indices:
        """Return the record numbers at positions of the mixture; ``whole`` keeps what is computed of its parts."""
        out = np.empty(stop - start, np.int64)
        for part, offsets, first in self.turns.between(start, stop):
            records = self._range(part, first, first + len(offsets), whole=whole)
            out[offsets] = self._firsts[part] + records
        out.setflags(write=False)
        return out

    def _range(self, part: int, start: int, stop: int, *, whole: bool) -> Indices:
        """Return the records at turns ``start`` to ``stop`` of a part; they may lie in several of its epochs."""
        order, size, pieces = self.orders[part], self.sizes[part], []
        if isinstance(order, Order) and are_small(order, stop - start):
            return across_epochs(order, start, stop)
        while start < stop:
            epoch, place = divmod(start, size)
            end = min(size, place + stop - start)
            if whole or isinstance(order, BlockOrder) or not order.shuffle:
                pieces.append(order(epoch, place, end))
            else:
                shuffled = epoch if order.reshuffle else 0
                pieces.append(permuted_at(size, order.seed or 0, shuffled, np.arange(place, end)))
            start += end - place
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def at(self, epoch: int, places: Indices) -> Indices:
        """Return the record numbers at positions."""
        if not self._in_blocks:
            return out_of_range(self, epoch, places)
        out = np.empty(len(places), np.int64)
        for part, which, epoch_of_part, turns in self._turns_at(epoch, places):
            out[which] = self._firsts[part] + self.orders[part].at(epoch_of_part, turns)
        return out

    def ranks(self, epoch: int, start: int, stop: int) -> Indices | None:
        """Return the rank of each position: that of its turn in the order of its part."""
        if not self._in_blocks:
            return None
        places = np.arange(start, stop)
        out = np.empty(len(places), np.int64)
        for part, which, _, turns in self._turns_at(epoch, places):
            out[which] = self._in_blocks[part].ranks_at(turns)
        return out

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

    def expected(self, epoch: int, places: Indices, share: float) -> None:
        """Return None: a part goes through its blocks in more than one epoch of the mixture."""

    def stand_ins(self, epoch: int, places: Indices, draws: Draws) -> Indices:
        """Return for each position another record of its part; of its block, if the parts are in blocks."""
        firsts = np.array(self._firsts)
        part = np.searchsorted(firsts, draws.numbers, side="right") - 1
        begins, ends, blocks = firsts[part], firsts[part + 1], self.blocks_at(epoch, places)
        return draws.among(*((begins, ends) if blocks is None else near(blocks, draws, begins, ends)))

    def _turns_at(self, epoch: int, places: Indices) -> Iterator[tuple[int, Indices, int, Indices]]:
        """Yield each part, which of the positions it has in one of its epochs, that epoch, and the places in it."""
        parts, turns = self.turns.at(places + epoch * self.length)
        for part in np.flatnonzero(np.bincount(parts)).tolist():
            which = np.flatnonzero(parts == part)
            epochs, within = np.divmod(turns[which], self.orders[part].records)
            for epoch in sorted(set(epochs.tolist())):
                at = epochs == epoch
                yield part, which[at], epoch, within[at]


@lru_cache(maxsize=_KEPT_NBYTES // (8 * _PIECE))
def _known_pieces(order: MixedOrder, number: int) -> list[tuple[int, Indices]]:  # noqa: ARG001
    """Return what is computed of a piece, each with its first position, to add to."""
    return []
