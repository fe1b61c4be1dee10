r"""The part that each position of one stage of a mixture belongs to, by two-way splits. Arithmetic only.

Parts are the leaves of a binary tree. Each inner node deals the positions that come to it to two sides: of the first n,
the left side gets n times its fraction, rounded to the nearest integer. The parts 0, 1 and 2 with the shares 1/2, 1/4
and 1/4 make this tree, and these positions::

          4          position   0 1 2 3   4 5 6 7   8 ...
         / \         part       1 0 2 0   1 0 2 0   1 ...
        3   0        its turn   0 0 0 1   1 2 1 3   2 ...
       / \
      1   2

So the turn of a part at any position follows from one rounding for each level, without anything about other positions.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property

# The sum of all shares, and what fractions of a node are counted in.
WHOLE = 1 << 64
_HALF = 1 << 63
# Reciprocals of shares are rounded down to multiples of 2**-128.
_ONE = 1 << 128

Indices = NDArray[np.int64]


def shares_of(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return weights as integers whose sum is :data:`WHOLE`.

    Each is rounded down, but a positive one at least to 1. The first of the largest gets what is left.

    Args:
        weights: none negative, and at least one positive.
    """
    total = sum(weights)
    shares = [max(1, int(weight * WHOLE / total)) if weight else 0 for weight in weights]
    shares[shares.index(max(shares))] += WHOLE - sum(shares)
    return tuple(shares)


@dataclass(frozen=True)
class Node:
    """An inner node of a tree.

    Args:
        left, right: the numbers of the nodes or parts below.
        fraction: what the left side gets, in units of 2**-64: at least 1, and less than :data:`WHOLE`.
    """

    left: int
    right: int
    fraction: int

    def lefts(self, count: int) -> int:
        """Return how many of the first ``count`` positions go left."""
        return (count * self.fraction + _HALF) >> 64

    def go_left(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which of ``count`` positions from ``first`` on go left."""
        # One goes left if it makes the number of those before it grow: then the lower word of the product overflows.
        words = np.arange(first + 1, first + count + 1, dtype=np.uint64)
        words *= np.uint64(self.fraction)
        words += np.uint64(_HALF)
        found: NDArray[np.bool_] = words < np.uint64(self.fraction)
        return found

    def position_of_left(self, turn: int) -> int:
        """Return the position of the left side's turn."""
        return (((2 * turn + 1) << 63) - 1) // self.fraction

    def position_of_right(self, turn: int) -> int:
        """Return the position of the right side's turn."""
        return ((2 * turn + 1) << 63) // (WHOLE - self.fraction)


@dataclass(frozen=True)
class TurnTree:
    """The part that each position of a stage belongs to.

    Rounding makes an error of 1/2 at each node, of which a part has as much below as its share of the node. The tree
    is such that these sum to at most 3/2. Two nodes are joined first if they can bear most: a part with share s bears
    2 / s, and a joined node what the lesser of the two bears, less 1 / (the sum of the shares in it).

    Args:
        shares: the integer of each part, 0 for one that has no positions; they sum to :data:`WHOLE`.
    """

    shares: tuple[int, ...]

    @cached_property
    def nodes(self) -> Sequence[Node]:
        """The inner nodes, numbered from the number of parts on; the last is the root."""
        heap = [(-(2 * _ONE // share), part, share) for part, share in enumerate(self.shares) if share]
        heapq.heapify(heap)
        nodes: list[Node] = []
        while len(heap) > 1:
            (bears, left, share), (other_bears, right, other) = heapq.heappop(heap), heapq.heappop(heap)
            both = share + other
            heapq.heappush(heap, (max(bears, other_bears) + _ONE // both, len(self.shares) + len(nodes), both))
            nodes.append(Node(left, right, ((share << 65) + both) // (2 * both)))
        return nodes

    @property
    def _root(self) -> int:
        return len(self.shares) + len(self.nodes) - 1 if self.nodes else self.shares.index(WHOLE)

    def counts(self, positions: int) -> list[int]:
        """Return how many of the first positions belong to each part."""
        first = len(self.shares)
        found = [0] * (first + len(self.nodes))
        found[self._root] = positions
        for number in range(len(found) - 1, first - 1, -1):
            node = self.nodes[number - first]
            found[node.left] = node.lefts(found[number])
            found[node.right] = found[number] - found[node.left]
        return found[:first]

    def between(self, start: int, stop: int) -> Iterator[tuple[int, Indices, int]]:
        """Yield the parts of the positions ``start`` to ``stop``.

        With each come the offsets of its positions from ``start``, ascending, and its turn at the first of them.
        """
        below = [(self._root, np.arange(stop - start), start)]
        while below:
            number, offsets, first = below.pop()
            if len(offsets) == 0:
                continue
            if number < len(self.shares):
                yield number, offsets, first
                continue
            node = self.nodes[number - len(self.shares)]
            goes_left, lefts = node.go_left(first, len(offsets)), node.lefts(first)
            below.append((node.left, offsets[goes_left], lefts))
            below.append((node.right, offsets[~goes_left], first - lefts))

    @cached_property
    def _paths(self) -> dict[int, list[tuple[Node, bool]]]:
        """For each part, the nodes above it up to the root, and whether it is on their left."""
        above = {}
        for number, node in enumerate(self.nodes, len(self.shares)):
            above[node.left], above[node.right] = (number, node, True), (number, node, False)
        paths = {}
        for part, share in enumerate(self.shares):
            at, path = part, []
            while share and at in above:
                at, node, is_left = above[at]
                path.append((node, is_left))
            paths[part] = path
        return paths

    def position_of(self, part: int, turn: int) -> int:
        """Return the position of a turn of a part that has positions."""
        for node, is_left in self._paths[part]:
            turn = node.position_of_left(turn) if is_left else node.position_of_right(turn)
        return turn
