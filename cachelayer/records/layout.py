"""The layout of a record: two primitives, and where they lie.

A leaf is stored as one part or several. A part is one of two primitives: an array of the same shape in every record, or
a one-dimensional array whose length varies from record to record::

    | fixed parts, largest alignment first | u32 byte length of each varying part | null bits | pad |
    | varying part 0 | pad | varying part 1 | pad | ...

Every section and every varying part begins at a multiple of 8 and is padded with zeros to the next one. The alignment
of a part is the largest power of two that divides its item size, at most 8. Parts of one alignment keep their order;
the lengths are sorted in with alignment 4, the null bits come last. There is one null bit for each leaf, in little bit
order, 1 for null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Self

import numpy as np

U32 = np.dtype("<u4")
U8 = np.dtype(np.uint8)


@dataclass(frozen=True)
class Part:
    """One of the arrays that a leaf is stored as.

    Args:
        dtype: the dtype of its items.
        shape: its shape; None if it has one dimension, of a length that varies.
        nbytes: the bytes that it takes in every record; 0 if its length varies.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", 0 if self.shape is None else self.dtype.itemsize * prod(self.shape))


@dataclass(frozen=True)
class Layout:
    """Offsets, in bytes from the beginning of a record.

    Args:
        places: for each leaf, the place of each of its parts: the offset of a fixed one, the number of a varying one.
        varying_count: the number of varying parts.
        lengths: the offset of the lengths of the varying parts.
        nulls: the offset of the null bits, after which nothing but padding follows.
        null_nbytes: the bytes of the null bits.
        fixed_nbytes: the bytes of the fixed section, with padding.
    """

    places: tuple[tuple[int, ...], ...]
    varying_count: int
    lengths: int
    nulls: int
    null_nbytes: int
    fixed_nbytes: int

    @classmethod
    def of(cls, leaves: Sequence[Sequence[Part]]) -> Self:
        """Return the layout of records with leaves of these parts."""
        parts = [part for leaf in leaves for part in leaf]
        varying_count = sum(part.shape is None for part in parts)
        null_nbytes = -(-len(leaves) // 8)
        parts += [Part(U32, (varying_count,)), Part(U8, (null_nbytes,))]
        places, end, varying = [0] * len(parts), 0, 0
        for index in sorted(range(len(parts)), key=lambda index: -_alignment(parts[index].dtype.itemsize)):
            places[index] = end
            end += parts[index].nbytes
        for index, part in enumerate(parts):
            if part.shape is None:
                places[index] = varying
                varying += 1
        remaining = iter(places)
        return cls(
            places=tuple(tuple(next(remaining) for _ in leaf) for leaf in leaves),
            varying_count=varying_count,
            lengths=next(remaining),
            nulls=next(remaining),
            null_nbytes=null_nbytes,
            fixed_nbytes=padded(end),
        )

    @classmethod
    def plain(cls) -> Self:
        """Return the layout of records that are one varying part and nothing else."""
        return cls(((0,),), varying_count=1, lengths=0, nulls=0, null_nbytes=0, fixed_nbytes=0)


def padded(nbytes: Any) -> Any:
    """Round a number of bytes, or an array of them, up to a multiple of 8."""
    return (nbytes + 7) & ~7


def _alignment(itemsize: int) -> int:
    return min(8, itemsize & -itemsize) if itemsize else 1
