"""Blocks of powers of two, cut out of one that is as large as all of them."""

from __future__ import annotations


class Buddies:
    """Hands out blocks that do not overlap; a block of order k has 2**k units and begins at a multiple of that.

    Blocks that are given back are handed out again as they are, or join their other half.

    Args:
        order: the order of all there is.
    """

    def __init__(self, order: int) -> None:
        self._free: list[set[int]] = [set() for _ in range(order)] + [{0}]

    @property
    def free_blocks(self) -> int:
        """How many blocks nobody has."""
        return sum(map(len, self._free))

    def has(self, order: int) -> bool:
        """Return whether a block of this order can be had without cutting a larger one."""
        return order < len(self._free) and bool(self._free[order])

    def take(self, order: int) -> int | None:
        """Return where a block of this order begins, in units; None if there is none."""
        found = next((larger for larger in range(order, len(self._free)) if self._free[larger]), None)
        if found is None:
            return None
        start = self._free[found].pop()
        for smaller in range(order, found):
            self._free[smaller].add(start + (1 << smaller))
        return start

    def give(self, start: int, order: int) -> None:
        """Take back a block that was handed out."""
        while order < len(self._free) - 1 and (start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(start ^ (1 << order))
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)
