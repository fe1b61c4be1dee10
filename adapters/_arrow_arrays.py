"""Convert batches to Arrow arrays: whole columns, never value by value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters._arrow_columns import Nulls
from cachelayer.errors import InvalidTypeError, MissingDependencyError
from cachelayer.records.memory import Ints
from cachelayer.records.values import Nullable, Ragged
from cachelayer.user_warnings import warn

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error


def arrow_type(dtype: Any) -> pa.DataType:
    """Return the Arrow type of the values of a dtype.

    Raises:
        pyarrow.ArrowException: if Arrow has no such type.
    """
    if not isinstance(dtype, np.dtype):
        return pa.string() if dtype is str else pa.binary()
    if dtype.kind in "SU":
        return pa.string() if dtype.kind == "U" else pa.binary()
    if dtype.kind in "mM" and np.datetime_data(dtype)[1] != 1:
        # pyarrow would read a unit of 10 seconds as one second.
        raise pa.ArrowNotImplementedError(f"Arrow has no unit of time like that of {dtype}")
    return pa.date32() if dtype == np.dtype("M8[D]") else pa.from_numpy_dtype(dtype)


def arrow_array(kind: pa.DataType, values: Any, path: str = "", *, keep_nat: bool = False) -> pa.Array:
    """Return leaves stacked on a leading axis as an Arrow array.

    Args:
        kind: the type of the values, or of nested lists of them.
        values: an array, a :class:`cachelayer.Ragged`, or a :class:`cachelayer.Nullable` of either.
        path: the path of the leaf.
        keep_nat: keep NaT as the number that numpy has for it, which only ``column`` of ``_arrow_columns``
            understands. By default NaT becomes null, with a warning.

    Raises:
        InvalidTypeError: if Arrow cannot hold a value, such as text that is not UTF-8.
    """
    nulls = None
    if isinstance(values, Nullable):
        values, nulls = values.values, ~values.valid
    flat, splits = _levels(values)
    if flat.dtype.kind in "mM" and not keep_nat:
        _warn_of_nat(flat, nulls if not splits else None, path)
    if isinstance(values, Ragged) and values.row_shapes is not None:
        _warn_of_lost_shapes(values.row_shapes, path)
    leaf = _Leaf(path, keep_nat)
    try:
        return _nested(kind, flat, splits, nulls, leaf)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidTypeError(
            f"leaf {path} holds values that Arrow's {kind} does not: read it with ref.read(), or store another dtype"
        ) from error


@dataclass(frozen=True)
class _Leaf:
    path: str
    keep_nat: bool


def _warn_of_nat(values: NDArray[Any], nulls: Nulls, path: str) -> None:
    missing = np.isnat(values)
    if nulls is not None:
        missing &= ~nulls
    if missing.any():
        warn(f"leaf {path} holds NaT, which Arrow does not have: it becomes null")


def _warn_of_lost_shapes(shapes: NDArray[Any], path: str) -> None:
    empty = np.cumsum(shapes == 0, axis=1) > 0
    lost = (empty[:, :-1] & (shapes[:, 1:] > 0)).any(axis=1)
    if lost.any():
        shape = shapes[int(np.argmax(lost))].tolist()
        warn(f"leaf {path} holds an array of shape {shape}: lists keep no dimension after one of length 0")


def _levels(values: Any) -> tuple[NDArray[Any], list[Ints]]:
    """Return the innermost values, one-dimensional, and the splits of each level of lists, outermost first."""
    splits: list[Any] = []
    if isinstance(values, Ragged):
        splits, values = list(values.nested_row_splits), values.flat_values
    count = len(values)
    for dim in values.shape[1:]:
        splits.append(np.arange(count + 1, dtype=np.int64) * dim)
        count *= dim
    return values.reshape(-1), splits


def _nested(kind: pa.DataType, values: NDArray[Any], splits: list[Ints], nulls: Nulls, leaf: _Leaf) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _nested(kind.storage_type, values, splits, nulls, leaf))
    if not splits:
        return _flat_array(kind, values, nulls, leaf)
    inner = _nested(kind.value_type, values, splits[1:], None, leaf)
    mask = None if nulls is None else pa.array(nulls)
    if kinds.is_fixed_size_list(kind):
        if kind.list_size == 0:
            # pyarrow's from_arrays() divides by the size, which ends the process.
            valid = None if nulls is None else pa.array(~nulls).buffers()[1]
            return pa.Array.from_buffers(kind, len(splits[0]) - 1, [valid], children=[inner])
        if nulls is not None:
            # A list of fixed size takes up its places even if it is null.
            places = splits[0][:-1, None] + np.arange(kind.list_size)
            inner = inner.take(pa.array(places.reshape(-1), mask=nulls.repeat(kind.list_size)))
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=mask)
    cls = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
    offsets = pa.array(splits[0], pa.int64() if kinds.is_large_list(kind) else pa.int32())
    return cls.from_arrays(offsets, inner, type=kind, mask=mask)


def _flat_array(kind: pa.DataType, values: NDArray[Any], nulls: Nulls, leaf: _Leaf) -> pa.Array:
    if values.dtype.kind in "mM":
        return _times(kind, values, nulls, leaf)
    try:
        return pa.array(values, kind, mask=nulls)
    except UnicodeEncodeError as error:
        text = ascii(error.object)[:60]
        raise InvalidTypeError(
            f"leaf {leaf.path} holds text that is not UTF-8, as Arrow's strings are: {text}. Read it with ref.read()"
        ) from error


def _times(kind: pa.DataType, values: NDArray[Any], nulls: Nulls, leaf: _Leaf) -> pa.Array:
    if not leaf.keep_nat:
        nulls = np.isnat(values) if nulls is None else nulls | np.isnat(values)
    counts = pa.array(values.view(np.int64), pa.int64(), mask=nulls)
    own = arrow_type(values.dtype)
    if type(own) is type(kind) and own.bit_width == 64 and own.unit != kind.unit:
        # A cast raises if a time does not fit; a multiplication would overflow.
        unit = pa.timestamp(kind.unit) if kinds.is_timestamp(kind) else pa.duration(kind.unit)
        counts = pc.cast(counts.view(own), unit).view(pa.int64())
    return (pc.cast(counts, pa.int32()) if kind.bit_width == 32 else counts).view(kind)
