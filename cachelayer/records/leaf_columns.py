"""One leaf of many elements: a column, between the values of users and the bytes of records.

A column has the parts of the leaf, each for all rows at once: a fixed part as an array with a leading axis, a varying
part as :class:`FlatRows`. Three things may be null: a leaf, a dict around it, and a value within it. In place of each
there is a filler, and what is null stands beside, so that no codec of a leaf knows nulls::

    four values of a leaf "lengths" of shape [None]        [5, 6]  []  None  [7]
    its column      parts        FlatRows(values=[5, 6, 7], splits=[0, 2, 2, 2, 3])
                    null_values  None: no value within a row is null
    Columns.nulls                {"['lengths']": [False, False, True, False]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.layout import U8, LeafPart
from cachelayer.specs.dtypes import DType
from cachelayer.specs.schema import Nulls
from cachelayer.support.memory import Ints, rows_sharing_memory, separate_rows, splits_of

_NO_NULLS: Nulls = {}


@dataclass(frozen=True, eq=False)
class FlatRows:
    """Rows of different lengths, one after another in one array."""

    values: NDArray[Any]
    """The items of all rows: one-dimensional."""
    splits: Ints
    """Where each row begins in ``values``, and the end: int64 of shape ``[rows + 1]``."""

    @classmethod
    def of_rows(cls, rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> FlatRows:
        """Return one-dimensional arrays of one dtype as rows."""
        splits = splits_of(np.fromiter(map(len, rows), np.int64, len(rows)))
        if len(rows) == 0:
            return cls(np.empty(0, dtype), splits)
        # A single row may be long, so it is not copied.
        return cls(rows[0] if len(rows) == 1 else np.concatenate(rows), splits)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.splits)

    def row(self, index: int) -> NDArray[Any]:
        return self.values[self.splits[index] : self.splits[index + 1]]

    def separate_rows(self) -> list[NDArray[Any]]:
        """Return the rows as separate arrays: to keep one keeps at most 64 KiB of other rows alive."""
        bounds = pairwise(self.splits.tolist())
        rows = max(1, len(self.splits) - 1)
        if rows <= rows_sharing_memory(self.values.nbytes // rows):
            return [self.values[start:stop] for start, stop in bounds]
        return [self.values[start:stop].copy() for start, stop in bounds]


PartRows = Any
"""A part of many rows: an array of shape ``[rows, ...]`` if it is fixed, FlatRows if it varies; or a list of rows."""


def separate_rows_of(part: PartRows) -> list[Any]:
    """Return the rows of a part as separate arrays: to keep one keeps at most 64 KiB of other rows alive."""
    if isinstance(part, FlatRows):
        return part.separate_rows()
    return part if isinstance(part, list) else separate_rows(part)


@dataclass(frozen=True, eq=False)
class Column:
    """One leaf of many elements."""

    parts: tuple[PartRows, ...]
    """The parts of the leaf, as :mod:`cachelayer.records.leaf_codecs` lists them."""
    null_values: FlatRows | None = None
    """Whether each value within each row is null, as bools; None if the leaf has no nulls within rows."""


class Columns(NamedTuple):
    """All leaves of many elements, and where they, and dicts around them, are None."""

    leaves: Sequence[Column]
    rows: int
    """The number of elements."""
    nulls: Nulls = _NO_NULLS
    """In which rows leaves and dicts are None, by their paths; anything in rows in which a dict around them is None."""

    @classmethod
    def merged(cls, several: Sequence[Columns]) -> Columns:
        """Return the columns of dicts that have the keys of several, given the columns of these."""
        nulls = {path: null for columns in several for path, null in columns.nulls.items()}
        return cls([leaf for columns in several for leaf in columns.leaves], several[0].rows, nulls)


class LeafCodec(Protocol):
    """Translates one leaf between values and parts.

    Values are never None here: the caller puts the filler in place of None.
    """

    parts: tuple[LeafPart, ...]

    def filler(self) -> Any:
        """Return the value that is stored in place of None."""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        """Return the parts of the values of some rows; the record of an ElementError is the index of the value."""

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        """Return the parts of the rows of a batch: values stacked on a leading axis."""
        return self.encode(list(batch))

    def value(self, *parts: NDArray[Any]) -> Any:
        """Return the value of one row from its parts, whose memory it may share."""

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        """Return the value of each row. A caller that keeps one value keeps at most 64 KiB of others in memory."""

    def batch(self, parts: tuple[Any, ...]) -> Any:
        """Return the values of all rows stacked on a leading axis: as objects, if they are no arrays."""
        rows = self.values(parts)
        return np.fromiter(rows, object, len(rows))


def bytes_of_strings(strings: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the byte length of each string, and the bytes of all; ``str`` is UTF-8 that may have lone surrogates."""
    raw = [str.encode(item, "utf-8", "surrogatepass") if isinstance(item, str) else item for item in strings]
    return np.fromiter(map(len, raw), np.int64, len(raw)), np.frombuffer(b"".join(raw), U8)


def strings_of_bytes(rows: FlatRows, dtype: DType) -> list[Any]:
    """Return the string of each row of bytes: ``bytes`` or ``str``."""
    splits = rows.splits.tolist()
    memory = np.ascontiguousarray(rows.values).data
    if dtype is str:
        return [str(memory[start:stop], "utf-8", "surrogatepass") for start, stop in pairwise(splits)]
    return [bytes(memory[start:stop]) for start, stop in pairwise(splits)]


def rows_with_nulls(null_values: FlatRows) -> NDArray[np.bool_]:
    """Return which rows have values that are null."""
    totals = splits_of(null_values.values)
    return np.diff(totals[null_values.splits]) > 0


def packed_bits(null_values: FlatRows) -> FlatRows:
    """Return the bits that a record stores of the null values of each row, from a bool for each value.

    Only a row that has nulls has bits: one for each of its values, lowest bit first, in whole bytes::

        rows    [7, None, 9]    [1, 2]          [None]
        bits    010 -> 02       (no byte)       1 -> 01
    """
    nbytes = np.where(rows_with_nulls(null_values), (null_values.lengths + 7) // 8, 0)
    splits = splits_of(nbytes)
    bits = np.zeros(8 * splits[-1], np.bool_)
    have_bits, places = _places_of_bits(null_values.splits, nbytes)
    bits[places] = null_values.values[have_bits]
    return FlatRows(np.packbits(bits, bitorder="little"), splits)


def unpacked_bits(raw: NDArray[np.uint8], splits: Ints, nbytes: Ints) -> FlatRows:
    """Return a bool for each value from what :func:`packed_bits` returned; a row without nulls has 0 bytes."""
    bits = np.unpackbits(raw, bitorder="little").view(np.bool_)
    null_values = np.zeros(splits[-1], np.bool_)
    have_bits, places = _places_of_bits(splits, nbytes)
    null_values[have_bits] = bits[places]
    return FlatRows(null_values, splits)


def _places_of_bits(splits: Ints, nbytes: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Return which values have bits, and the place of each such bit in the bytes of all rows."""
    counts = np.diff(splits)
    have_bits = np.repeat(nbytes > 0, counts)
    first_bits = splits_of(nbytes)[:-1] * 8
    places = np.arange(splits[-1]) + np.repeat(first_bits - splits[:-1], counts)
    return have_bits, places[have_bits]
