"""The order of a mixture: the part that each position belongs to, and the record of the part there. Arithmetic only.

The parts take turns in a pattern that repeats for ever. Its length is the sum of the weights, and each part has exactly
as many positions in it as its weight. With weights 3 and 1::

    position    0 1 2 3   4 5 6 7   8 ...
    part        0 0 1 0   0 0 1 0   0 ...
    its turn    0 1 0 2   3 4 1 5   6 ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.order import BlockSpans, Order, round_keys
from cachelayer.streams.steps import MOST_POSITIONS

MOST_TURNS = 65_536
# A mixture never ends: all its positions lie in one epoch, whose end nobody reaches.
ENDLESS = MOST_POSITIONS

Indices = NDArray[np.int64]


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

    def turns_of(self, part: int, position: int) -> int:
        """Return the number of turns that a part has before a position."""
        rounds, place = divmod(position, self.turns)
        return rounds * self.weights[part] + int(self._places[part].searchsorted(place))


@dataclass(frozen=True)
class MixedOrder:
    """The record at each position of a mixture; records are numbered through all parts, one part after another.

    The turns of a part go through its own order, epoch after epoch. The seed of part i is the first key of
    (seed, 2**62 + i).

    Args:
        pattern: the part that each position belongs to.
        sizes: number of records of each part, at least 1.
        shuffle: whether the parts are shuffled.
        seed: key of their orders; None only if nothing is shuffled.
        reshuffle: whether each epoch of a part has an order of its own.
    """

    pattern: Pattern
    sizes: tuple[int, ...]
    shuffle: bool = False
    seed: int | None = None
    reshuffle: bool = True

    @property
    def records(self) -> int:
        """Number of records of all parts."""
        return sum(self.sizes)

    @cached_property
    def _firsts(self) -> Sequence[int]:
        return [0, *accumulate(self.sizes)]

    @cached_property
    def _orders(self) -> Sequence[Order]:
        seeds = [round_keys(self.seed or 0, ENDLESS + part)[0] for part in range(len(self.sizes))]
        return [
            Order(size, self.shuffle, seed if self.shuffle else None, self.reshuffle)
            for size, seed in zip(self.sizes, seeds, strict=True)
        ]

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:  # noqa: ARG002
        """Return the record numbers at positions ``start`` to ``stop`` of the only epoch, 0."""
        part_of = self.pattern.part_of[np.arange(start, stop) % self.pattern.turns]
        out = np.empty(stop - start, np.int64)
        for part in np.unique(part_of).tolist():
            turns = self.pattern.turns_of(part, start), self.pattern.turns_of(part, stop)
            out[part_of == part] = self._firsts[part] + self._turns(part, *turns)
        return out

    def arranged(self, epoch: int, start: int, stop: int) -> Indices | None:  # noqa: ARG002
        """Return None: rows are in order of their places."""
        return None

    def blocks(self, epoch: int, start: int, stop: int) -> BlockSpans | None:  # noqa: ARG002
        """Return None: records are read one by one."""
        return None

    def _turns(self, part: int, start: int, stop: int) -> Indices:
        """Return the records at turns ``start`` to ``stop`` of a part; they may lie in several of its epochs."""
        order, size = self._orders[part], self.sizes[part]
        pieces = [np.empty(0, np.int64)]
        while start < stop:
            epoch, place = divmod(start, size)
            end = min(size, place + stop - start)
            pieces.append(order(epoch, place, end))
            start += end - place
        return np.concatenate(pieces)
