"""A buddy allocator: blocks of sizes that are powers of two, split from one large block."""

from __future__ import annotations


class Buddies:
    """Hands out blocks that do not overlap. A block of order k has 2**k units and begins at a multiple of 2**k.

    A block that is given back is merged with its other half as soon as both are free.

    Args:
        order: the order of the large block.
    """

    def __init__(self, order: int) -> None:
        self._free: list[set[int]] = [set() for _ in range(order)] + [{0}]

    @property
    def free_blocks(self) -> int:
        """The number of free blocks."""
        return sum(map(len, self._free))

    def has(self, order: int) -> bool:
        """Return whether a block of this order is free, so that no larger one needs to be split."""
        return order < len(self._free) and bool(self._free[order])

    def take(self, order: int) -> int | None:
        """Hand out a block of this order: return where it begins, in units; None if no block is large enough."""
        smallest = next((larger for larger in range(order, len(self._free)) if self._free[larger]), None)
        if smallest is None:
            return None
        start = self._free[smallest].pop()
        for smaller in range(order, smallest):
            self._free[smaller].add(start + (1 << smaller))
        return start

    def give(self, start: int, order: int) -> None:
        """Take back a block that was handed out."""
        while order < len(self._free) - 1 and (start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)
