"""Compare one leaf of the rows of two versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.records.dtypes import DType
from cachelayer.records.layout import U8
from cachelayer.records.leaf_columns import Column, FlatRows
from cachelayer.records.leaf_plan import LeafPlan, values_of
from cachelayer.records.memory import bytes_of, splits_of
from cachelayer.records.spans import Spans
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec, without_nulls
from cachelayer.records.values import NullDict, Ragged, Sparse


@dataclass(frozen=True, eq=False)
class LeafRows:
    """One leaf of some rows of a version, as it is stored."""

    plan: LeafPlan
    column: Column
    count: int
    """The number of rows."""

    @property
    def nulls(self) -> NDArray[Any]:
        """The nulls of the column: in which rows the leaf, or a dict around it, is None."""
        return np.zeros(self.count, np.bool_) if self.column.nulls is None else self.column.nulls

    @property
    def null_values(self) -> FlatRows:
        """True for each null value, within each row."""
        splits = self.plan.value_splits(self.column.parts)
        return self.column.null_values or FlatRows(np.zeros(splits[-1], np.bool_), splits)

    def value(self, row: int) -> Any:
        """Return the value of a row, None if a dict around it is None."""
        (value,) = values_of(self.plan, self.column.rows(row, row + 1))
        return None if isinstance(value, NullDict) else value

    def plain_values(self) -> list[Any]:
        """Return the rows as lists of Python's own numbers, which Python compares exactly; NaN as a text."""
        first, *more = self.column.parts
        if isinstance(first, np.ndarray) and not more:
            return _plain(first)  # type: ignore[no-any-return]
        return [_plain(value) for value in self.plan.codec.values(self.column.parts)]


def differing_rows(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    """Return in which rows a leaf differs between two versions.

    Leaves of equal specs are compared bit for bit. Where specs differ, such as int32 and int64, numbers are compared
    exactly, and texts as texts. A leaf of numbers in one version and of texts in the other differs in every row. None
    differs from everything but None.
    """
    spec = without_nulls(one.plan.spec)
    other_spec = without_nulls(other.plan.spec)
    if spec == other_spec:
        differ = _differing_parts(one, other)
    elif _kind(spec) != _kind(other_spec):
        differ = np.ones(one.count, np.bool_)
    else:
        pairs = zip(one.plain_values(), other.plain_values(), strict=True)
        differ = np.fromiter((before != after for before, after in pairs), np.bool_, one.count)
    if one.column.null_values is not None or other.column.null_values is not None:
        _mark_differing(differ, one.null_values, other.null_values)
    nulls = one.nulls
    other_nulls = other.nulls
    return np.where(nulls | other_nulls, nulls != other_nulls, differ)


def _differing_parts(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    differ = np.zeros(one.count, np.bool_)
    for part, other_part in zip(one.column.parts, other.column.parts, strict=True):
        if isinstance(part, FlatRows):
            _mark_differing(differ, part, other_part)
        elif part.size:
            differ |= (_row_bytes(part) != _row_bytes(other_part)).any(axis=1)
    return differ


def _row_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(U8)


def _mark_differing(differ: NDArray[np.bool_], one: FlatRows, other: FlatRows) -> None:
    """Mark the rows in which varying parts differ."""
    has_equal_length = one.lengths == other.lengths
    differ |= ~has_equal_length
    rows = np.flatnonzero(has_equal_length)
    itemsize = one.values.dtype.itemsize
    nbytes = one.lengths[rows] * itemsize
    raw = _bytes_of_rows(one, rows)
    other_raw = _bytes_of_rows(other, rows)
    unequal_bytes = np.flatnonzero(raw != other_raw)
    differ[rows[splits_of(nbytes).searchsorted(unequal_bytes, "right") - 1]] = True


def _bytes_of_rows(flat: FlatRows, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    itemsize = flat.values.dtype.itemsize
    buffer = bytes_of(flat.values)
    return Spans.in_buffer(buffer, flat.splits[rows] * itemsize, flat.lengths[rows] * itemsize).packed_copy().buffer


def _kind(spec: LeafSpec) -> str:
    """Return the kind of the values of a leaf, such that values of different kinds are never equal."""
    kind = _kind_of_dtype(spec.dtype) if spec.timezone is None else f"times of {spec.timezone}"
    is_array = isinstance(spec, ArraySpec) and not isinstance(spec, EncodedSpec)
    return kind if is_array else f"{type(spec).__name__} of {kind}"


def _kind_of_dtype(dtype: DType) -> str:
    if not isinstance(dtype, np.dtype):
        return "text" if dtype is str else "bytes"
    letter = dtypes.number_kind(dtype)
    if letter in "iufc":
        return "number"
    return {"S": "bytes", "U": "text"}.get(letter, dtype.name)


def _plain(value: Any) -> Any:
    if isinstance(value, Ragged):
        return [_plain(row) for row in value]
    if isinstance(value, Sparse):
        return value.dense_shape.tolist(), value.indices.tolist(), _plain(value.values)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    kind = dtypes.number_kind(array.dtype)
    if kind not in "fc":
        return array.tolist()
    wide = array.astype(np.complex128 if kind == "c" else np.float64)
    numbers = wide.astype(object)
    numbers[np.isnan(wide)] = "NaN"
    return numbers.tolist()
