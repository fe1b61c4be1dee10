"""One leaf of some rows, as they are stored, and in which rows it differs from that of other rows: pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.records.column_values import values_of
from cachelayer.records.layout import U8
from cachelayer.records.leaf_columns import Column, FlatRows
from cachelayer.records.leaf_plan import LeafPlan
from cachelayer.records.memory import gather_ranges, splits_of
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.values import NullDict, Ragged, Sparse


@dataclass(frozen=True, eq=False)
class LeafRows:
    """One leaf of some rows, as they are stored.

    Args:
        plan: how its values are made.
        column: its parts.
        count: the number of rows.
    """

    plan: LeafPlan
    column: Column
    count: int

    @property
    def nulls(self) -> NDArray[Any]:
        """In which rows it, or a dict around it, is None: as in the column."""
        return np.zeros(self.count, np.bool_) if self.column.nulls is None else self.column.nulls

    @property
    def null_values(self) -> FlatRows:
        """Which of its values are null."""
        splits = self.plan.value_splits(self.column.parts)
        return self.column.null_values or FlatRows(np.zeros(splits[-1], np.bool_), splits)

    def value(self, row: int) -> Any:
        """Return the value of a row."""
        (value,) = values_of(self.plan, self.column.rows(row, row + 1))
        return None if isinstance(value, NullDict) else value

    def plain_values(self) -> list[Any]:
        """Return the values as lists and Python's own numbers, which Python compares exactly; NaN as a text."""
        first, *more = self.column.parts
        if isinstance(first, np.ndarray) and not more:
            return _plain(first)  # type: ignore[no-any-return]
        return [_plain(value) for value in self.plan.leaf.values(self.column.parts)]


def differing_rows(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    """Return in which rows a leaf differs: bit for bit, or by value if its spec is another one in the other rows.

    None differs from all but None. Where specs differ, numbers are compared exactly, and texts as texts; what is a
    number in one and a text in the other differs in every row.
    """
    absent, gone = one.nulls, other.nulls
    specs = [each.plan.spec.without_nulls() for each in (one, other)]
    if specs[0] == specs[1]:
        differ = _differing_parts(one, other)
    elif _kind(specs[0]) != _kind(specs[1]):
        differ = np.ones(one.count, np.bool_)
    else:
        pairs = zip(one.plain_values(), other.plain_values(), strict=True)
        differ = np.fromiter((before != after for before, after in pairs), np.bool_, one.count)
    if one.column.null_values is not None or other.column.null_values is not None:
        _mark_differing(differ, one.null_values, other.null_values)
    return np.where(absent | gone, absent != gone, differ)


def _differing_parts(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    """Return in which rows the parts of a leaf differ."""
    differ = np.zeros(one.count, np.bool_)
    for mine, theirs in zip(one.column.parts, other.column.parts, strict=True):
        if isinstance(mine, FlatRows):
            _mark_differing(differ, mine, theirs)
        elif mine.size:
            differ |= (_row_bytes(mine) != _row_bytes(theirs)).any(axis=1)
    return differ


def _row_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(U8)


def _mark_differing(differ: NDArray[np.bool_], one: FlatRows, other: FlatRows) -> None:
    """Mark the rows in which varying parts differ."""
    is_as_long = one.lengths == other.lengths
    differ |= ~is_as_long
    chosen, size = np.flatnonzero(is_as_long), one.values.dtype.itemsize
    lengths = one.lengths[chosen] * size
    mine, theirs = (
        gather_ranges(np.ascontiguousarray(flat.values).view(U8), flat.splits[chosen] * size, lengths)
        for flat in (one, other)
    )
    unequal = np.flatnonzero(mine != theirs)
    differ[chosen[splits_of(lengths).searchsorted(unequal, "right") - 1]] = True


def _kind(spec: LeafSpec) -> str:
    """Return what the values of a leaf are: those of different kinds are never equal."""
    kind = "text" if spec.dtype is str else "bytes"
    if isinstance(spec.dtype, np.dtype):
        letter = dtypes.number_kind(spec.dtype)
        kind = {"S": "bytes", "U": "text"}.get(letter, "number" if letter in "iufc" else spec.dtype.name)
    is_array = isinstance(spec, ArraySpec) and not isinstance(spec, EncodedSpec)
    return kind if is_array else f"{type(spec).__name__} of {kind}"


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
