"""Columns of pandas frames from batches: no value, null or dtype changes on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from cachelayer.adapters._arrow_table import column_array, fields_of
from cachelayer.errors import InvalidTypeError
from cachelayer.records.spec import LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable, Ragged
from cachelayer.user_warnings import warn

_MASKED: dict[str, Any] = {
    kind.numpy_dtype.name: kind
    for kind in (
        pd.BooleanDtype(),
        pd.Int8Dtype(),
        pd.Int16Dtype(),
        pd.Int32Dtype(),
        pd.Int64Dtype(),
        pd.UInt8Dtype(),
        pd.UInt16Dtype(),
        pd.UInt32Dtype(),
        pd.UInt64Dtype(),
        pd.Float32Dtype(),
        pd.Float64Dtype(),
    )
}
"""pandas' dtypes that have a null, by numpy's that have none."""


def series_of(spec: Tree, kind: pa.DataType, values: Any, rows: int, path: str) -> pd.Series[Any]:
    """Return the column of a frame that holds the values of a leaf, or of a dict of leaves, as they are.

    Args:
        spec: of the leaf, or the dict.
        kind: its Arrow type.
        values: the values stacked, as a batch has them.
        rows: how many there are.
        path: of the leaf.

    Raises:
        InvalidTypeError: for values that pandas does not hold.
    """
    if not isinstance(spec, LeafSpec) or spec.shape:
        return _objects(_cells(spec, values, rows))
    dtype = spec.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind in "SU":
        return column_array(kind, spec, values, rows, path).to_pandas()
    if dtype.kind in "mM":
        return pd.Series(_native(_times(values, path)))
    if not isinstance(values, Nullable):
        return pd.Series(_native(values))
    masked = _MASKED.get(dtype.name)
    if masked is None:
        if np.isnan(values.values[values.valid]).any():
            warn(f"leaf {path} holds null and NaN, which pandas does not tell apart in a column of {dtype}")
        return _objects(_cells(spec, values, rows))
    return pd.Series(masked.construct_array_type()(values.values, ~values.valid))


def _times(values: Any, path: str) -> NDArray[Any]:
    """Moments or spans in a unit that pandas has, with NaT for null."""
    if isinstance(values, Nullable):
        if np.isnat(values.values[values.valid]).any():
            warn(f"leaf {path} holds null and NaT, which pandas does not tell apart: both become NaT")
        filled = values.values.copy()
        filled[~values.valid] = np.timedelta64("NaT")
        values = filled
    if values.dtype != np.dtype("M8[D]"):
        return np.asarray(values)
    made: NDArray[Any] = values.astype("M8[ms]")
    if not ((made.astype(values.dtype) == values) | np.isnat(values)).all():
        raise InvalidTypeError(f"leaf {path} holds days that no milliseconds reach: read it with ref.read()")
    return made


def _objects(cells: list[Any]) -> pd.Series[Any]:
    return pd.Series(np.fromiter(cells, object, len(cells)))


def _cells(spec: Tree, values: Any, rows: int) -> list[Any]:
    """The value of each row, as elements have it; a list of arrays in place of a Ragged."""
    if spec is None:
        return [None] * rows
    if not isinstance(spec, LeafSpec):
        names, parts = fields_of(spec), fields_of(values).values()
        columns = [_cells(child, part, rows) for child, part in zip(names.values(), parts, strict=True)]
        return [dict(zip(names, row, strict=True)) for row in (zip(*columns, strict=True) if columns else [()] * rows)]
    if isinstance(values, Nullable):
        cells = _cells(spec, values.values, rows)
        return [cell if valid else None for cell, valid in zip(cells, values.valid.tolist(), strict=True)]
    return list(map(_unnested, values))


def _unnested(row: Any) -> Any:
    return list(map(_unnested, row)) if isinstance(row, Ragged) else row


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Return the same memory in the dtype that numpy has for it by itself: an equal one would be shown otherwise."""
    return values.view(values.dtype.newbyteorder("="))
