"""Convert batches to columns of pandas frames: no value, null or dtype changes."""

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
"""pandas' dtypes with a null, by the name of numpy's dtype without one."""


def series_of(spec: Tree, kind: pa.DataType, values: Any, rows: int, path: str) -> pd.Series[Any]:
    """Return the column of a frame that holds the values of a leaf, or of a dict of leaves, unchanged.

    Args:
        spec: the spec of the leaf or the dict.
        kind: its Arrow type.
        values: the stacked values, as in a batch.
        rows: the number of rows.
        path: the path of the leaf.

    Raises:
        InvalidTypeError: if pandas cannot hold a value.
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
            warn(f"leaf {path} holds null and NaN, which pandas cannot tell apart in a column of {dtype}")
        return _objects(_cells(spec, values, rows))
    return pd.Series(masked.construct_array_type()(values.values, ~values.valid))


def _times(values: Any, path: str) -> NDArray[Any]:
    """Return moments or spans in a unit that pandas has, with NaT for null."""
    if isinstance(values, Nullable):
        if np.isnat(values.values[values.valid]).any():
            warn(f"leaf {path} holds null and NaT, which pandas cannot tell apart: both become NaT")
        filled = values.values.copy()
        filled[~values.valid] = np.timedelta64("NaT")
        values = filled
    if values.dtype != np.dtype("M8[D]"):
        return np.asarray(values)
    made: NDArray[Any] = values.astype("M8[ms]")
    if not ((made.astype(values.dtype) == values) | np.isnat(values)).all():
        raise InvalidTypeError(f"leaf {path} holds days that do not fit into milliseconds: read it with ref.read()")
    return made


def _objects(cells: list[Any]) -> pd.Series[Any]:
    return pd.Series(np.fromiter(cells, object, len(cells)))


def _cells(spec: Tree, values: Any, rows: int) -> list[Any]:
    """Return the value of each row as in the elements; a Ragged becomes a list of arrays."""
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
    """Return the same memory in numpy's native dtype: one with an explicit byte order would print differently."""
    return values.view(values.dtype.newbyteorder("="))
