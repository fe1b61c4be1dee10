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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records.layout import U8, LeafPart
from cachelayer.specs import dtypes
from cachelayer.specs.dtypes import DType
from cachelayer.specs.schema import Flags, Node, Nulls, either, rows_in_any
from cachelayer.specs.spec import EncodedSpec, has_values, takes_none
from cachelayer.specs.values import Nullable, Ragged, with_flat_values
from cachelayer.support.memory import Ints, rows_sharing_memory, separate_rows, splits_of

if TYPE_CHECKING:
    from cachelayer.records.media import Files

_NO_NULLS: Nulls = {}
_NONE = type(None)
_DTYPE_KINDS = {bool: "b", int: "iuf", float: "f"}
"""The kinds of dtypes that hold the zero of one of Python's types."""


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


@dataclass(frozen=True, eq=False)
class LeafPlan:
    """The plan of a leaf: its place in records, and how it is written there and read."""

    leaf: Node
    """The leaf, in the records; the number of the leaf is also that of its null bit."""
    codec: LeafCodec
    """Translates between values and parts; its values are arrays if ``files`` decodes images or sounds."""
    parts: tuple[tuple[int, LeafPart], ...]
    """The parts of the leaf, each with its place: of a fixed part the offset, of a varying part the number."""
    files: Files | None = None
    """Decodes the images, sounds or videos of the leaf; None if they are not decoded."""
    value_of: Callable[..., Any] = field(init=False)
    """Makes the value of one row from its parts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_of", self.codec.value if self.files is None else self.files.value)

    def decoding(self) -> LeafPlan:
        """Return the plan of the leaf with its images or sounds decoded; this plan if it has none."""
        from cachelayer.records.media import files_of

        if not isinstance(self.leaf.spec, EncodedSpec):
            return self
        files = files_of(self.leaf.path, self.leaf.spec)
        return replace(self, codec=files.codec, files=files)

    def value_counts(self, nbytes: Ints) -> Ints:
        """Return how many values each row has, from the bytes of the varying parts: of shape ``[rows, parts]``."""
        counting = self._counting_part
        if counting is None:
            return np.full(len(nbytes), self._values_in_fixed_part, np.int64)
        place, part = self.parts[counting]
        return nbytes[:, place] // part.dtype.itemsize

    def value_splits(self, parts: Sequence[PartRows]) -> Ints:
        """Return where the values of each row of a column begin if they follow one another, and the end."""
        counting = self._counting_part
        if counting is None:
            return np.arange(len(parts[0]) + 1, dtype=np.int64) * self._values_in_fixed_part
        splits: Ints = parts[counting].splits
        return splits

    @property
    def _counting_part(self) -> int | None:
        """The index of the part that has an item for each value; None if the number of values is known."""
        if self.parts[-1][1].shape is not None:
            return None
        # Strings have two parts: their lengths, one for each string, and their bytes.
        return len(self.parts) - (2 if dtypes.is_string(self.leaf.spec.dtype) else 1)

    @property
    def _values_in_fixed_part(self) -> int:
        ((_, part),) = self.parts
        return prod(part.shape or ())

    @property
    def has_file(self) -> bool:
        """True if it is a video."""
        return self.parts[-1][1].is_file

    @property
    def first_varying(self) -> tuple[int, np.dtype[Any]]:
        """The number and the dtype of the first varying part."""
        return next((place, part.dtype) for place, part in self.parts if part.shape is None)


def column_of(plan: LeafPlan, values: Any, absent: Flags | None) -> tuple[Column, Flags | None]:
    """Return the column of values in a list or a batch, and in which rows these are None.

    A dict around the leaf is None in the rows that are ``absent``. The record of an ElementError is the row.
    """
    nulls = None
    if isinstance(values, Nullable) and values.valid.ndim == 1:
        nulls = ~values.valid
        values = values.values
    has_null_values = isinstance(values, Nullable) or isinstance(getattr(values, "flat_values", None), Nullable)
    # An array of objects may hold None in the rows that are null.
    may_hold_none = nulls is None and isinstance(values, np.ndarray) and values.dtype == object
    if has_null_values or may_hold_none:
        values = list(values)
    try:
        if not isinstance(values, list):
            return Column(plan.codec.encode_batch(values)), nulls
        kinds = set(map(type, values))
        if not takes_none(plan.leaf.spec) and _NONE in kinds:
            nulls = either(nulls, np.fromiter((value is None for value in values), np.bool_, len(values)))
        empty = either(nulls, absent)
        if empty is not None:
            values = list(values)
            filler = _filler_beside(plan, kinds - {_NONE})
            for row in np.flatnonzero(empty).tolist():
                values[row] = filler
        return _column_of_rows(plan, values), nulls
    except ElementError as error:
        raise error.at(path=plan.leaf.path) from error.__cause__


def _filler_beside(plan: LeafPlan, kinds: set[type]) -> Any:
    """Return the filler beside values of some types: a number of their type, if it fits, because such are quick."""
    spec = plan.leaf.spec
    if len(kinds) == 1 and spec.shape == () and isinstance(spec.dtype, np.dtype) and dtypes.is_numpys(spec.dtype):
        (kind,) = kinds
        if spec.dtype.kind in _DTYPE_KINDS.get(kind, ""):
            return kind()
    return plan.codec.filler()


def _column_of_rows(plan: LeafPlan, values: list[Any]) -> Column:
    """Return the column of values. None of them is None, though values within them may be."""
    null_values = None
    try:
        parts = plan.codec.encode(values)
    except ElementError:
        # Only what does not fit is searched for nulls, so that other elements cost nothing extra.
        from cachelayer.records.conform import separate_nulls

        separated = separate_nulls(plan.leaf.spec, values) if has_values(plan.leaf.spec) else None
        if separated is None:
            raise
        values, null_values = separated
        parts = plan.codec.encode(values)
    if null_values is None and plan.leaf.spec.nullable_values:
        null_values = np.zeros(plan.value_splits(parts)[-1], np.bool_)
    return Column(parts, None if null_values is None else FlatRows(null_values, plan.value_splits(parts)))


def values_of(plan: LeafPlan, column: Column, columns: Columns) -> list[Any]:
    """Return the value of each row of one of some columns: to keep one keeps at most 64 KiB of others alive."""
    is_decoded = len(column.parts) == 1 and isinstance(column.parts[0], list)
    values: list[Any] = column.parts[0] if is_decoded else plan.codec.values(column.parts)
    if column.null_values is not None:
        values = list(_rows_with_null_values(values, column.null_values))
    absent = rows_in_any(columns.nulls, plan.leaf.lineage)
    if absent is not None:
        for row in np.flatnonzero(absent).tolist():
            values[row] = None
    return values


def batch_of(plan: LeafPlan, column: Column, columns: Columns) -> Any:
    """Return the values of all rows of one of some columns, stacked on a leading axis."""
    batch = plan.codec.batch(column.parts)
    if column.null_values is not None:
        batch = _batch_with_null_values(batch, column.null_values)
    leaf = plan.leaf
    nulls = columns.nulls.get(leaf.path)
    if not leaf.spec.nullable and (nulls is None or not nulls.any()):
        return batch
    absent = rows_in_any(columns.nulls, leaf.lineage)
    return Nullable(batch, np.ones(columns.rows, np.bool_) if absent is None else ~absent)


def _rows_with_null_values(rows: Iterable[Any], null_values: FlatRows) -> Iterator[Any]:
    for value, (start, stop) in zip(rows, pairwise(null_values.splits.tolist()), strict=True):
        yield _with_null_values(value, null_values.values[start:stop])


def _with_null_values(value: Any, nulls: NDArray[np.bool_]) -> Any:
    """Return an array, or a ragged one, some of whose values are null."""
    if isinstance(value, Ragged):
        return with_flat_values(value, _with_null_values(value.flat_values, nulls))
    return Nullable(value, ~nulls.reshape(value.shape))


def _batch_with_null_values(batch: Any, null_values: FlatRows) -> Any:
    """Return a batch of a leaf, some of whose values are null."""
    if isinstance(batch, np.ndarray) and batch.dtype == object and batch.size and isinstance(batch.flat[0], Ragged):
        # Ragged arrays whose inner dimensions are unknown are not stacked.
        return np.fromiter(_rows_with_null_values(batch, null_values), object, len(batch))
    return _with_null_values(batch, null_values.values)
