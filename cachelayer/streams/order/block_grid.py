"""The grid of an order in blocks: lanes, their windows and their blocks, before anything is permuted. Arithmetic only.

Lane l has the places l, l + L, l + 2L, ... of an epoch: S of them. Its places lie on an axis that is cut into blocks of
B, and into windows of W blocks. The axes of the lanes are staggered, so that their windows do not end together. With
L = 4, S = 10, B = 2 and W = 2::

    lane 0   |0 1|2 3||4 5|6 7||8 9|
    lane 1     |0|1 2||3 4|5 6||7 8|9|
    lane 2       |0 1||2 3|4 5||6 7|8 9|
    lane 3         |0||1 2|3 4||5 6|7 8||9|
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property

MOST_LANES_BITS = 16
MOST_LANES = 1 << MOST_LANES_BITS
# The windows of all lanes together are sorted up to this size, and windows of few records always.
_SORTED_TOGETHER = 1 << 21
_SORTED_ALWAYS = 64
_SORTED_AT_MOST = 1 << 16
# Records of the lanes that are permuted at once.
_AT_ONCE = 1 << 16
_LEAST_GROUPS = 64

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """The lanes of an order in blocks.

    Args:
        records: number of records, n.
        block: number of records in a block, B.
        depth: number of blocks in a window of a lane, W.
        lanes: number of lanes, L, a power of two.
    """

    records: int
    block: int
    depth: int
    lanes: int

    def __reduce__(self) -> tuple[type[Grid], tuple[int, ...]]:
        return Grid, (self.records, self.block, self.depth, self.lanes)

    @cached_property
    def lane_records(self) -> int:
        """Number of records of a lane, S; 0 if a block does not fit into the records."""
        return 0 if self.block > self.records else self.records // self.lanes

    @property
    def dealt(self) -> int:
        """Number of records of all lanes. Those after them, fewer than there are lanes, are permuted by themselves."""
        return self.lane_records * self.lanes

    @cached_property
    def columns(self) -> int:
        """Number of blocks in a window of a lane, which is never much longer than the lane."""
        return max(1, min(self.depth, -(-self.lane_records // self.block)))

    @cached_property
    def window(self) -> int:
        """Number of records in a window of a lane, M."""
        return self.columns * self.block

    @cached_property
    def phases(self) -> Indices:
        """Where the places of each lane begin on its axis."""
        if self.window >= self.lane_records:
            return np.zeros(self.lanes, np.int64)
        return np.arange(self.lanes) * self.window // self.lanes

    @cached_property
    def first_whole(self) -> Indices:
        """The first whole block of each lane."""
        return -(-self.phases // self.block)

    @cached_property
    def whole(self) -> int:
        """Number of whole blocks that every lane has."""
        return max(0, int(((self.phases + self.lane_records) // self.block - self.first_whole).min()))

    @property
    def is_sorted(self) -> bool:
        """True if windows are permuted by sorting hashes, and not by a network."""
        return self.window <= min(max(_SORTED_TOGETHER // self.lanes, _SORTED_ALWAYS), _SORTED_AT_MOST)

    @cached_property
    def lane_bits(self) -> int:
        return self.lanes.bit_length() - 1

    @cached_property
    def together(self) -> int:
        """Number of lanes, a power of two, whose windows are computed at once: those with equal last bits."""
        most = power_of_two(_AT_ONCE // (self.window if self.is_sorted else self.columns))
        return min(self.lanes, most, max(_LEAST_GROUPS, self.lanes // _LEAST_GROUPS))

    @property
    def groups(self) -> int:
        """Number of groups of lanes whose windows are computed at once."""
        return self.lanes // self.together

    @cached_property
    def windows_together(self) -> int:
        """Number of windows of each of these lanes that are computed at once."""
        most = min(_AT_ONCE // self.together, _SORTED_TOGETHER // self.lanes)
        return max(1, most // self.window) if self.is_sorted else 1


def power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number, at least 1."""
    return 1 << (max(1, number).bit_length() - 1)


def reversed_bits(words: Indices) -> Indices:
    """Return words of :data:`MOST_LANES_BITS` bits with their bits in reverse."""
    found: Indices = _table()[words]
    return found


@lru_cache(maxsize=1)
def _table() -> Indices:
    table = np.zeros(1, np.int64)
    for bit in reversed(range(MOST_LANES_BITS)):
        table = np.concatenate([table, table + (1 << bit)])
    table.setflags(write=False)
    return table
