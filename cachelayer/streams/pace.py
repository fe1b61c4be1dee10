"""How much is read at once, where it is not known before how long that takes and how large it becomes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# Of what comes out of one block, if that is more than one item.
BLOCK_NBYTES = 4 << 20
# A block in which the user's functions take no longer may have twice as many items the next time.
_QUICK_SECONDS = 0.01
_SMALL_NBYTES = 64


@dataclass(frozen=True)
class Pace:
    """The number of items that the next block has: few at first, then twice as many while they are quick and small.

    Args:
        size: items of the next block.
        least: items of any block: those that threads work at together.
        most: items of any block, if it is more than ``least``.
    """

    size: int
    least: int
    most: int

    def learnt(self, items: int, seconds: float, nbytes: float) -> Pace:
        """The pace after a block.

        Args:
            items: how many there were, 1 at least.
            seconds: how long the user's functions took for all of them.
            nbytes: how large each is.
        """
        size = self.size
        if items >= size and seconds <= _QUICK_SECONDS:
            size *= 2
        elif seconds > 2 * _QUICK_SECONDS:
            size = int(items * _QUICK_SECONDS / seconds)
        fitting = BLOCK_NBYTES / max(1.0, nbytes)
        return replace(self, size=max(self.least, int(min(size, self.most, fitting))))


def nbytes_of(item: Any) -> float:
    """Return about the bytes that an element or a batch takes in memory; infinity if that cannot be seen."""
    if isinstance(item, dict):
        return sum(map(nbytes_of, item.values()))
    if isinstance(item, (list, tuple)):
        return len(item) * nbytes_of(item[0]) if len(item) > _SMALL_NBYTES else sum(map(nbytes_of, item))
    if isinstance(item, np.ndarray) and item.dtype.hasobject:
        return sum(map(nbytes_of, item.ravel().tolist()))
    if isinstance(item, (str, bytes, bytearray)):
        return len(item) + _SMALL_NBYTES
    if item is None or isinstance(item, (bool, int, float, complex, np.generic)):
        return _SMALL_NBYTES
    if isinstance(nbytes := getattr(item, "nbytes", None), (int, np.integer)):
        return int(nbytes)
    if dataclasses.is_dataclass(item):
        return sum(nbytes_of(getattr(item, field.name)) for field in dataclasses.fields(item))
    return math.inf
