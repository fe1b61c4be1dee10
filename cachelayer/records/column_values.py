"""Columns from values with nulls among them, and such values from columns.

Three things may be null: a leaf, a dict around it, and a value within it. A column has a filler in place of each, and
says beside its parts what is null; see :class:`cachelayer.records.leaf_columns.Column`. So leaves know no nulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records.conform import separate_nulls
from cachelayer.records.leaf_columns import NULL, NULL_DICT, Column, FlatRows
from cachelayer.records.leaf_plan import LeafPlan
from cachelayer.records.values import Nullable, NullDict, OfNullableDict, Ragged


def column_of(plan: LeafPlan, values: Any) -> Column:
    """Return the column of a leaf from a list of its values, or from its values in a batch.

    Raises:
        ElementError: if a value does not fit; the record of the error is the row.
    """
    nulls = None
    if isinstance(values, Nullable) and values.valid.ndim == 1:
        values, nulls = _without_null_rows(values)
    has_null_values = isinstance(values, Nullable) or isinstance(getattr(values, "flat_values", None), Nullable)
    # An array of objects may hold None in the rows that are null.
    may_hold_none = nulls is None and isinstance(values, np.ndarray) and values.dtype == object
    if has_null_values or may_hold_none:
        values = list(values)
    try:
        if not isinstance(values, list):
            return Column(plan.leaf.encode_batch(values), nulls)
        if nulls is None:
            values, nulls = _with_fillers(plan, values)
        return _column_of_rows(plan, values, nulls)
    except ElementError as error:
        raise error.at(path=plan.path) from error.__cause__


def _without_null_rows(batch: Nullable) -> tuple[Any, NDArray[Any]]:
    """Return the values of a leaf in a batch, which has fillers in null rows, and the nulls of its column.

    The Nullable of the outermost dict is the outermost one, so the first mark of a row is the one that counts.
    """
    nulls = np.zeros(len(batch.valid), np.uint8)
    values: Any = batch
    while isinstance(values, Nullable) and values.valid.ndim == 1:
        mark = NULL_DICT + values.depth if isinstance(values, OfNullableDict) else NULL
        nulls[~values.valid & (nulls == 0)] = mark
        values = values.values
    return values, nulls


def _with_fillers(plan: LeafPlan, values: list[Any]) -> tuple[list[Any], NDArray[Any] | None]:
    """Return values with fillers in place of nulls, and the nulls of their column; None for no nulls."""
    kinds = set(map(type, values))
    takes_none = plan.spec.takes_none
    has_nulls = NullDict in kinds or (type(None) in kinds and not takes_none)
    if not plan.null_mask and not has_nulls:
        return values, None
    nulls = np.zeros(len(values), np.uint8)
    filled = list(values)
    filler = plan.leaf.filler()
    for row, value in enumerate(values):
        if value is None and not takes_none:
            nulls[row] = NULL
            filled[row] = filler
        elif type(value) is NullDict:
            nulls[row] = NULL_DICT + value.depth
            filled[row] = filler
    return filled, nulls


def _column_of_rows(plan: LeafPlan, values: list[Any], nulls: NDArray[Any] | None) -> Column:
    """Return the column of values of which none is None, though values within them may be."""
    null_values = None
    try:
        parts = plan.leaf.encode(values)
    except ElementError:
        # Only what does not fit is searched for nulls, so that other elements cost nothing extra.
        separated = None if plan.values_bit is None else separate_nulls(plan.spec, values)
        if separated is None:
            raise
        values, null_values = separated
        parts = plan.leaf.encode(values)
    if null_values is None and plan.spec.nullable_values:
        null_values = np.zeros(plan.value_splits(parts)[-1], np.bool_)
    return Column(parts, nulls, None if null_values is None else FlatRows(null_values, plan.value_splits(parts)))


def values_of(plan: LeafPlan, column: Column) -> list[Any]:
    """Return the value of each row of a column. Few of them share memory."""
    is_decoded = len(column.parts) == 1 and isinstance(column.parts[0], list)
    values: list[Any] = column.parts[0] if is_decoded else plan.leaf.values(column.parts)
    if column.null_values is not None:
        values = list(_rows_with_null_values(values, column.null_values))
    if column.nulls is not None:
        for row in np.flatnonzero(column.nulls):
            mark = int(column.nulls[row])
            values[row] = None if mark == NULL else NullDict(mark - NULL_DICT)
    return values


def batch_of(plan: LeafPlan, column: Column) -> Any:
    """Return the values of all rows of a column, stacked on a leading axis."""
    batch = plan.leaf.batch(column.parts)
    nulls = column.nulls
    if column.null_values is not None:
        batch = _batch_with_null_values(batch, column.null_values)
    if nulls is None:
        return batch
    if plan.spec.nullable or (nulls == NULL).any():
        batch = Nullable(batch, nulls == 0)
    for inner in reversed(plan.dicts_around):
        if inner.nullable:
            # A dict is None if it, or a dict around it, has the mark: the mark of an outer dict is smaller.
            valid = (nulls < NULL_DICT) | (nulls > NULL_DICT + inner.depth)
            batch = OfNullableDict(batch, valid, inner.depth)
    return batch


def _rows_with_null_values(rows: Iterable[Any], null_values: FlatRows) -> Iterator[Any]:
    for value, (start, stop) in zip(rows, pairwise(null_values.splits.tolist()), strict=True):
        yield _with_null_values(value, null_values.values[start:stop])


def _with_null_values(value: Any, nulls: NDArray[np.bool_]) -> Any:
    """Return an array, or a ragged one, some of whose values are null."""
    if isinstance(value, Ragged):
        return value.with_flat(_with_null_values(value.flat_values, nulls))
    return Nullable(value, ~nulls.reshape(value.shape))


def _batch_with_null_values(batch: Any, null_values: FlatRows) -> Any:
    """Return a batch of a leaf, some of whose values are null."""
    if isinstance(batch, np.ndarray) and batch.dtype == object and batch.size and isinstance(batch.flat[0], Ragged):
        # Ragged arrays whose inner dimensions are unknown are not stacked.
        return np.fromiter(_rows_with_null_values(batch, null_values), object, len(batch))
    return _with_null_values(batch, null_values.values)
