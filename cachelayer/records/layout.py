"""The layout of a record: two primitives, where they lie, and columns of them.

A leaf is stored as one part or several. A part is one of two primitives: an array of the same shape in every record, or
a one-dimensional array whose length varies from record to record::

    | fixed parts, largest alignment first | u32 byte length of each varying part | null bits | pad |
    | varying part 0 | pad | varying part 1 | pad | ... | nulls within values | pad | ...

Every section and every varying part begins at a multiple of 8 and is padded with zeros to the next one. The alignment
of a part is the largest power of two that divides its item size, at most 8. Parts of one alignment keep their order;
the lengths are sorted in with alignment 4, the null bits come last, in little bit order, 1 for null: see
:mod:`cachelayer.records.null_marks`. Of a leaf some of whose values are null, one bit for each value follows the
varying parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Ints, rows_sharing_memory, separate_rows, splits_of

U32 = np.dtype("<u4")
U8 = np.dtype(np.uint8)


@dataclass(frozen=True)
class LeafPart:
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
    def of(cls, leaves: Sequence[Sequence[LeafPart]], null_bits: int) -> Self:
        """Return the layout of records with leaves of these parts, and so many null bits."""
        parts = [part for leaf in leaves for part in leaf]
        varying_count = sum(part.shape is None for part in parts)
        null_nbytes = -(-null_bits // 8)
        parts += [LeafPart(U32, (varying_count,)), LeafPart(U8, (null_nbytes,))]
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


@dataclass(frozen=True, eq=False)
class Flat:
    """Rows of different lengths, one after another.

    Args:
        values: a one-dimensional array.
        splits: int64 of shape ``[rows + 1]``: where each row begins in ``values``, and the end.
    """

    values: NDArray[Any]
    splits: Ints

    @classmethod
    def of_rows(cls, rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> Flat:
        """Return one-dimensional arrays of one dtype as rows."""
        # One row may be long, so it is not copied.
        values = rows[0] if len(rows) == 1 else np.concatenate(rows) if len(rows) else np.empty(0, dtype)
        return cls(values, splits_of(np.fromiter(map(len, rows), np.int64, len(rows))))

    @property
    def lengths(self) -> Ints:
        return np.diff(self.splits)

    def rows(self, start: int, stop: int) -> Flat:
        """Return some of the rows, without a copy."""
        first = self.splits[start]
        return Flat(self.values[first : self.splits[stop]], self.splits[start : stop + 1] - first)

    def row(self, index: int) -> NDArray[Any]:
        return self.values[self.splits[index] : self.splits[index + 1]]

    def separate_rows(self) -> list[NDArray[Any]]:
        """Return each row, such that keeping one keeps little memory of others alive."""
        bounds = pairwise(self.splits.tolist())
        rows = max(1, len(self.splits) - 1)
        if rows <= rows_sharing_memory(self.values.nbytes // rows):
            return [self.values[start:stop] for start, stop in bounds]
        return [self.values[start:stop].copy() for start, stop in bounds]


PartRows = Any
"""A part of many records: of shape ``[rows, ...]`` if it is fixed, Flat if it varies, or a list of its rows."""


@dataclass(frozen=True, eq=False)
class Column:
    """One leaf of many elements.

    Args:
        parts: the parts of the leaf.
        nulls: bool or uint8 of shape ``[rows]``: 0 for a value, 1 for a leaf that is None, and 2 + d where a dict
            around it is None, the outermost of which has d dicts around it; None if there are no nulls.
        null_values: bool for each value of each row, True for those that are null; None if there are none.
    """

    parts: tuple[PartRows, ...]
    nulls: NDArray[Any] | None = None
    null_values: Flat | None = None

    def rows(self, start: int, stop: int) -> Column:
        """Return some of the rows, without a copy."""
        parts = [part.rows(start, stop) if isinstance(part, Flat) else part[start:stop] for part in self.parts]
        null_values = None if self.null_values is None else self.null_values.rows(start, stop)
        return Column(tuple(parts), None if self.nulls is None else self.nulls[start:stop], null_values)


NULL, NULL_DICT = 1, 2
"""The marks in the nulls of a column: of a leaf, and of a dict that no dict is around."""


def listed(part: PartRows) -> list[Any]:
    """Return the rows of a part, such that keeping one keeps little memory of others alive."""
    if isinstance(part, Flat):
        return part.separate_rows()
    return part if isinstance(part, list) else separate_rows(part)
