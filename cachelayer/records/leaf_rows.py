"""Compare one leaf of the rows of two versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.layout import U8
from cachelayer.records.leaf_columns import Column, Columns, FlatRows, LeafPlan, values_of
from cachelayer.records.spans import Spans
from cachelayer.specs.schema import rows_in_any
from cachelayer.specs.spec import LeafSpec, without_nulls
from cachelayer.specs.values import Ragged, Sparse
from cachelayer.support.memory import bytes_of, splits_of


@dataclass(frozen=True, eq=False)
class LeafRows:
    """One leaf of some rows of a version, as it is stored."""

    plan: LeafPlan
    column: Column
    columns: Columns
    """All columns, of which this is one."""

    def absent(self, depth: int) -> NDArray[np.bool_]:
        """Return in which rows one of the first nodes of the leaf's lineage is None."""
        absent = rows_in_any(self.columns.nulls, self.plan.leaf.lineage[:depth])
        return np.zeros(self.columns.rows, np.bool_) if absent is None else absent

    @property
    def null_values(self) -> FlatRows:
        """True for each null value, within each row."""
        splits = self.plan.value_splits(self.column.parts)
        return self.column.null_values or FlatRows(np.zeros(splits[-1], np.bool_), splits)

    def values(self) -> list[Any]:
        """Return the values of the rows; any where the leaf is None."""
        return self.plan.codec.values(self.column.parts)

    def value(self, row: int) -> Any:
        """Return the value of a row, None if a dict around it is None."""
        return values_of(self.plan, self.column, self.columns)[row]


def differing_rows(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    """Return in which rows a leaf differs between two versions.

    Values are compared bit for bit, also where only the shapes of their specs differ. A leaf of another kind or dtype,
    such as int32 and int64, differs in every row. None differs from everything but None.
    """
    spec = without_nulls(one.plan.leaf.spec)
    other_spec = without_nulls(other.plan.leaf.spec)
    if spec == other_spec:
        differ = _differing_parts(one, other)
    elif _kind(spec) != _kind(other_spec):
        differ = np.ones(one.columns.rows, np.bool_)
    else:
        contents, other_contents = ([_content(value) for value in rows.values()] for rows in (one, other))
        differ = np.array([before != after for before, after in zip(contents, other_contents, strict=True)], np.bool_)
    if one.column.null_values is not None or other.column.null_values is not None:
        _mark_differing(differ, one.null_values, other.null_values)
    depth = len(one.plan.leaf.lineage)
    differ &= ~(one.absent(depth) | other.absent(depth))
    for nodes in range(1, depth + 1):
        differ |= one.absent(nodes) != other.absent(nodes)
    return differ


def _differing_parts(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    differ = np.zeros(one.columns.rows, np.bool_)
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


def _kind(spec: LeafSpec) -> tuple[Any, ...]:
    """Return what two leaves share if their values can be equal: all but shapes and the widths of texts."""
    dtype = spec.dtype
    return type(spec), spec.timezone, dtype.kind if isinstance(dtype, np.dtype) and dtype.kind in "SU" else dtype


def _content(value: Any) -> Any:
    """Return what can be compared with the content of another value: the bytes of numbers, and their shape."""
    if isinstance(value, Ragged):
        return [_content(row) for row in value]
    if isinstance(value, Sparse):
        return value.dense_shape.tolist(), value.indices.tolist(), _content(value.values)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    return value.shape, value.tolist() if value.dtype.kind in "OSU" else value.tobytes()
