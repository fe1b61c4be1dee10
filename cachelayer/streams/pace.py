"""Choose how many items to read at once, although their time and size are not known in advance."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# The most that the items of a block should take in memory; a single item may take more.
BLOCK_NBYTES = 4 << 20
# If the user's functions take no longer than this for a block, the next one may have twice as many items.
_QUICK_SECONDS = 0.01
_SMALL_NBYTES = 64


@dataclass(frozen=True)
class Pace:
    """The number of items in the next block: few at first, then twice as many while they are quick and small.

    Args:
        size: items of the next block.
        least: fewest items of a block: as many as threads work on together.
        most: most items of a block, if that is more than ``least``.
    """

    size: int
    least: int
    most: int

    def learnt(self, items: int, seconds: float, nbytes: float) -> Pace:
        """Return the pace after a block.

        Args:
            items: number of items in it, at least 1.
            seconds: how long the user's functions took for all of them.
            nbytes: bytes of each item.
        """
        size = self.size
        if items >= size and seconds <= _QUICK_SECONDS:
            size *= 2
        elif seconds > 2 * _QUICK_SECONDS:
            size = int(items * _QUICK_SECONDS / seconds)
        fitting = BLOCK_NBYTES / max(1.0, nbytes)
        return replace(self, size=max(self.least, int(min(size, self.most, fitting))))


def nbytes_of(item: Any) -> float:
    """Return approximately the bytes of an element or a batch in memory; infinity if that is not known."""
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
