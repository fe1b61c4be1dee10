"""The layout of a record: where its leaves lie.

A leaf is stored as one part or several. A *fixed* part is an array of the same shape in every record. A *varying* part
is a one-dimensional array whose length differs from record to record. A record is::

    | fixed parts, largest alignment first | u32 byte length of each varying part | null bits | pad |
    | varying part 0 | pad | varying part 1 | pad | ... | bits of the nulls within values | pad | ...

Each row of this drawing, and each varying part, begins at a multiple of 8 bytes; zeros fill the space before it. The
alignment of a fixed part is the largest power of two that divides the size of its items, at most 8. The lengths count
as a part of alignment 4, and the null bits as one of alignment 1; parts of one alignment keep their order. There is a
null bit for each leaf, and more: see :mod:`cachelayer.specs.schema`. A leaf some of whose values are null in this
record has one bit for each value at the end of the record. Varying parts have the order of their leaves, but files of
videos come last.

An element ``{"text": "héllo", "tokens": [1, 2, 3], "score": 1.0}`` with an int32 array of tokens and a float32 score::

    offset  bytes
     0      0000803f                             fixed part of score: alignment 4
     4      06000000 0c000000                    6 bytes of text, 12 bytes of tokens
    12      00 000000                            null bits: nothing is null; pad
    16      68c3a96c6c6f 0000                    varying part 0: text; pad
    24      01000000 02000000 03000000 00000000  varying part 1: tokens; pad

Its :class:`Layout` has the places ``((0,), (1,), (0,))``: text and tokens are varying parts 0 and 1, score lies at
offset 0. It has ``lengths_offset`` 4, ``nulls_offset`` 12 and ``fixed_nbytes`` 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any, Self

import numpy as np

U32 = np.dtype("<u4")
U8 = np.dtype(np.uint8)


@dataclass(frozen=True)
class LeafPart:
    """One of the arrays that a leaf is stored as."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    """The shape of a fixed part; None for a varying part."""
    is_file: bool = False
    """Whether a varying part is the file of a video: it lies behind the other varying parts, and is read in part."""
    nbytes: int = field(init=False)
    """The bytes of a fixed part; 0 for a varying part."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", 0 if self.shape is None else self.dtype.itemsize * prod(self.shape))


@dataclass(frozen=True)
class Layout:
    """The places of all parts in a record. Offsets count bytes from the first byte of the record."""

    places: tuple[tuple[int, ...], ...]
    """For each leaf the place of each of its parts: of a fixed part its offset, of a varying part its number."""
    varying_count: int
    """The number of varying parts."""
    lengths_offset: int
    nulls_offset: int
    """The offset of the null bits, after which the fixed section has nothing but padding."""
    null_nbytes: int
    fixed_nbytes: int
    """The bytes of the fixed section, with padding: where the first varying part begins."""

    @classmethod
    def of(cls, leaves: Sequence[Sequence[LeafPart]], null_bits: int) -> Self:
        """Return the layout of records with leaves of these parts, and so many null bits."""
        parts = [part for leaf in leaves for part in leaf]
        varying_count = sum(part.shape is None for part in parts)
        null_nbytes = -(-null_bits // 8)
        parts += [LeafPart(U32, (varying_count,)), LeafPart(U8, (null_nbytes,))]
        offsets, end = _offsets(parts)
        places = list(offsets)
        varying = [index for index, part in enumerate(parts) if part.shape is None]
        for place, index in enumerate(sorted(varying, key=lambda index: parts[index].is_file)):
            places[index] = place
        remaining = iter(places)
        return cls(
            places=tuple(tuple(islice(remaining, len(leaf))) for leaf in leaves),
            varying_count=varying_count,
            lengths_offset=offsets[-2],
            nulls_offset=offsets[-1],
            null_nbytes=null_nbytes,
            fixed_nbytes=padded(end),
        )

    @classmethod
    def plain(cls) -> Self:
        """Return the layout of records that are one varying part and nothing else."""
        return cls(((0,),), varying_count=1, lengths_offset=0, nulls_offset=0, null_nbytes=0, fixed_nbytes=0)


def _offsets(parts: Sequence[LeafPart]) -> tuple[list[int], int]:
    """Return the offset of each fixed part if the largest alignments come first, and the end of all."""
    offsets = [0] * len(parts)
    end = 0
    for index in sorted(range(len(parts)), key=lambda index: -_alignment(parts[index].dtype.itemsize)):
        offsets[index] = end
        end += parts[index].nbytes
    return offsets, end


def _alignment(itemsize: int) -> int:
    # The lowest set bit of a number is the largest power of two that divides it.
    return min(8, itemsize & -itemsize) if itemsize else 1


def padded(nbytes: Any) -> Any:
    """Round a number of bytes, or an array of them, up to a multiple of 8."""
    return (nbytes + 7) & ~7
