"""Fit values to leaf specs. A value is never converted if that could lose information.

::

    ArraySpec("int32")            5 and np.int32(5) fit; 5.0, 2**40 and np.int64(5) do not
    ArraySpec("float32")          0.1 fits: a Python number may be rounded
    ArraySpec("int32", (None,))   [1, 2] and np.array([1, 2], "int32") fit
    ImageSpec()                   the bytes of a file, or its path or URL
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

import ml_dtypes
import numpy as np

from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records.value_conversion import as_leaf, as_time
from cachelayer.records.video import Video
from cachelayer.specs import dtypes
from cachelayer.specs.spec import (
    ArraySpec,
    EncodedSpec,
    ImageSpec,
    LeafSpec,
    RaggedSpec,
    Shape,
    VideoSpec,
    describe_leaf,
    without_nulls,
)
from cachelayer.specs.tree import builtin, describe
from cachelayer.specs.values import Nullable, PictureFile, Ragged, with_flat_values
from cachelayer.support.credentials_in_urls import without_credentials, without_credentials_in

_DTYPE, _SHAPE, _NDIM = attrgetter("dtype"), attrgetter("shape"), attrgetter("ndim")
_EXACT: dict[type, str] = {bool: "b", int: "iu"}
"""For each Python type, the kinds of dtypes that hold its values exactly, or raise OverflowError."""
_JSON = "If its structure differs from element to element, declare JsonSpec() in element_spec=."
_VARYING = "Declare this leaf in element_spec=, with None for what varies: the first elements do not show it."


def conform(spec: LeafSpec, value: Any, row: int) -> Any:
    """Return a value as the spec stores it: an array of its dtype and of a shape that it allows, or bytes or str.

    A path or URL stands for the bytes of a file if the spec is of images or sounds. A Python number becomes the dtype
    of the spec if that holds it; an array must have it. Errors have the record ``row``.
    """
    if isinstance(spec, EncodedSpec) and isinstance(value, (str, os.PathLike)):
        return _file_bytes(spec, os.fspath(builtin(value)), row)
    if isinstance(value, Video) and isinstance(spec, VideoSpec):
        return value.file
    if isinstance(value, PictureFile) and isinstance(spec, ImageSpec) and not value.fits(spec.mode):
        hint = f"Declare ImageSpec({value.mode!r}), or the mode that holds all pictures."
        raise ElementError(describe_leaf(spec), f"a picture of mode {value.mode}", record=row, hint=hint)
    if isinstance(value, np.ndarray) and value.dtype == object and spec.shape and not dtypes.is_string(spec.dtype):
        # Data frames hold lists of numbers as arrays of objects, if some of them are None.
        value = value.tolist()
    if isinstance(value, (list, tuple)) and spec.shape and not hasattr(value, "_fields"):
        value = _array_of(spec, value, row)
    elif (
        isinstance(spec.dtype, np.dtype)
        and spec.dtype.kind in "mM"
        and not (spec.timezone and isinstance(value, dt.datetime))
    ):
        value = _time_of(spec.dtype, value)
    try:
        leaf = as_leaf(value)
    except InvalidTypeError as error:
        hint = _JSON if isinstance(value, Mapping) else str(error)
        raise ElementError(describe_leaf(spec), describe(value), record=row, hint=hint) from error
    if isinstance(leaf, (bytes, str)):
        return _conform_string(spec, leaf, row)
    if dtypes.is_string(spec.dtype):
        return _conform_string_array(spec, leaf, row)
    dtype = np.dtype(spec.dtype)
    if dtypes.little_endian(leaf.dtype) != dtype:
        weak = isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)
        if not (weak and _holds(dtype, builtin(value))) and not _widens(leaf.dtype, dtype):
            raise _mismatch(spec, value, leaf, row)
        leaf = leaf.astype(dtype)
    if not fits_shape(spec.shape, leaf.shape):
        raise ElementError(describe_leaf(spec), describe(leaf), record=row, hint=_VARYING)
    return dtypes.canonical_bytes(leaf).reshape(leaf.shape)


def _file_bytes(spec: LeafSpec, name: str, row: int) -> bytes:
    """Return the bytes of the file at a path or URL."""
    # Imported here: it takes long, and few specs are declared for names of files.
    import fsspec

    try:
        with fsspec.open(os.path.expanduser(name), "rb") as file:  # noqa: PTH111 - it may be a URL
            data: bytes = file.read()
    except Exception as error:
        reason = without_credentials_in(f"{type(error).__name__}: {error}")
        got = f"the name {without_credentials(name)!r}, which cannot be read ({reason})"
        raise ElementError(f"{describe_leaf(spec)}, or the name of one", got, record=row) from error
    return data


def _array_of(spec: LeafSpec, items: Sequence[Any], row: int) -> np.ndarray[Any, Any]:
    """Return nested lists as the array that the spec declares: every number is fitted by itself."""
    if len(spec.shape) == 1 and isinstance(spec.dtype, np.dtype):
        array = stacked_rows(items, spec.dtype, ())
        if array is not None:
            return array
    if not items:
        dtype = spec.dtype if isinstance(spec.dtype, np.dtype) else np.dtype(object)
        return np.zeros([0, *(dim or 0 for dim in spec.shape[1:])], dtype)
    if len(spec.shape) > 1 and all(hasattr(item, "__array__") for item in items):
        arrays = [np.asarray(as_leaf(item)) for item in items]
        if len({(array.shape, array.dtype) for array in arrays}) == 1:
            return np.stack(arrays)
    shape: list[int] = []
    level: list[Any] = [items]
    for _ in spec.shape:
        # -1 stands for an item that is no list.
        lengths = {len(node) if isinstance(node, (list, tuple)) else -1 for node in level}
        if len(lengths) > 1 or -1 in lengths:
            got = f"lists of {len(shape)} levels" if lengths == {-1} else "lists of different lengths in one level"
            raise ElementError(describe_leaf(spec), got, record=row)
        shape.append(lengths.pop() if lengths else 0)
        level = [item for node in level for item in node]
    if any(isinstance(item, (list, tuple)) for item in level):
        raise ElementError(describe_leaf(spec), f"lists of {len(shape) + 1} levels or more", record=row)
    if not isinstance(spec.dtype, np.dtype):
        return np.fromiter(level, object, len(level)).reshape(shape)
    array = stacked_rows(level, spec.dtype, ())
    if array is None:
        spec_of_item = replace(without_nulls(spec), shape=())
        array = np.array([conform(spec_of_item, item, row) for item in level], spec.dtype)
    return array.reshape(shape)


def ragged_of(spec: RaggedSpec, flat: ArraySpec, rows: Any, row: int) -> Ragged:
    """Return nested lists, or a list of arrays, as the Ragged that the spec declares, with values of a flat spec."""
    splits = []
    for _ in range(spec.ragged_rank):
        rows = [as_leaf(item) if hasattr(item, "__array__") else item for item in rows]
        if not all(isinstance(item, (list, tuple)) or np.ndim(item) for item in rows):
            hint = f"A list in a list is never None: make it empty. {_JSON}"
            raise ElementError(describe_leaf(spec), "lists that end at different levels", record=row, hint=hint)
        splits.append(np.cumsum([0, *map(len, rows)]).astype(spec.splits_dtype))
        if rows and all(isinstance(item, np.ndarray) and item.dtype == rows[0].dtype for item in rows):
            rows = np.concatenate(rows)
        else:
            rows = [inner for item in rows for inner in item]
    return Ragged.from_nested(conform(flat, rows, row), tuple(splits))


def _time_of(dtype: np.dtype[Any], value: Any) -> Any:
    """Return a date or duration as numpy's, in the dtype if that keeps all of its digits; other values as they are."""
    time = as_time(value)
    if not isinstance(time, (np.datetime64, np.timedelta64)) or time.dtype.kind != dtype.kind or time.dtype == dtype:
        return time
    with np.errstate(all="ignore"):
        exact = time.astype(dtype)
    return exact if exact.astype(time.dtype) == time or np.isnat(time) else value


def stacked_rows(rows: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """Stack rows, if all are of one type that fits the spec; None if :func:`conform` must look at each row."""
    kinds = set(map(type, rows))
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    if kind is np.ndarray:
        if set(map(_DTYPE, rows)) != {dtype} or set(map(_SHAPE, rows)) != {shape}:
            return None
        if not shape:
            return np.stack(rows)
        stacked = np.empty((len(rows), *shape), dtype)
        np.concatenate(rows, out=stacked.reshape(len(rows) * shape[0], *shape[1:]))
        return stacked
    if shape:
        return None
    if kind is float:
        return _floats(rows, dtype)
    # The type of a numpy time span does not tell its unit.
    is_same = dtype.kind != "m" and issubclass(kind, (np.number, np.bool_)) and np.dtype(kind) == dtype
    if is_same or dtype.kind in _EXACT.get(kind, ""):
        with suppress(OverflowError):
            return np.array(rows, dtype)
    return None


def _floats(rows: Sequence[float], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    if dtype == np.float64:
        return np.array(rows)
    if dtypes.number_kind(dtype) != "f":
        return None
    values = np.array(rows)
    if not (np.abs(values) <= float(ml_dtypes.finfo(dtype).max)).all():
        return None
    stored = values.astype(dtype)
    # Some dtypes of floats have no zero, or no sign.
    return stored if np.isfinite(stored).all() else None


def conform_batch(spec: LeafSpec, batch: Any) -> np.ndarray[Any, Any]:
    """Return the rows of a batch, arrays of one known shape, as the spec stores them."""
    stacked = np.asarray(batch)
    if _widens(stacked.dtype, np.dtype(spec.dtype)):
        stacked = stacked.astype(spec.dtype)
    if dtypes.little_endian(stacked.dtype) != spec.dtype or not fits_shape((None, *spec.shape), stacked.shape):
        raise ElementError(describe_leaf(spec), f"{stacked.dtype}{list(stacked.shape[1:])}", record=0)
    return dtypes.canonical_bytes(stacked).reshape(stacked.shape)


def same_arrays(rows: Sequence[Any], dtype: np.dtype[Any], ndim: int) -> bool:
    """Return whether all rows are numpy arrays of this dtype and number of dimensions, so that none is converted."""
    are_arrays = set(map(type, rows)) == {np.ndarray}
    return are_arrays and set(map(_DTYPE, rows)) == {dtype} and set(map(_NDIM, rows)) == {ndim}


def is_plain(batch: Any) -> bool:
    """Return whether the memory of a batch holds its rows; the memory of a masked array does not say what is masked."""
    return type(batch) in (np.ndarray, np.memmap)


def fits_shape(spec: Shape, shape: tuple[int, ...]) -> bool:
    """Return whether the shape of a spec allows this shape: None allows any dimension."""
    return len(spec) == len(shape) and all(want is None or want == dim for want, dim in zip(spec, shape, strict=True))


def _conform_string(spec: LeafSpec, leaf: bytes | str, row: int) -> Any:
    if spec.dtype is type(leaf) and spec.shape == ():
        return leaf
    if isinstance(spec.dtype, np.dtype) and spec.dtype.kind == ("S" if isinstance(leaf, bytes) else "U"):
        array = np.asarray(leaf)
        # Arrays of fixed-width strings lose zeros at the end.
        if array.dtype.itemsize <= spec.dtype.itemsize and spec.shape == () and array.item() == leaf:
            return array.astype(spec.dtype)
    raise ElementError(describe_leaf(spec), describe(leaf), record=row)


def _conform_string_array(spec: LeafSpec, leaf: np.ndarray[Any, Any], row: int) -> Any:
    if leaf.dtype.kind in "SU" and spec.dtype is (bytes if leaf.dtype.kind == "S" else str):
        leaf = leaf.astype(object)
    if leaf.dtype != object or not spec.shape or not fits_shape(spec.shape, leaf.shape):
        raise ElementError(describe_leaf(spec), describe(leaf), record=row, hint=_VARYING if spec.shape else "")
    for item in leaf.reshape(-1):
        if not isinstance(item, spec.dtype):  # type: ignore[arg-type]
            raise ElementError(describe_leaf(spec), f"an array that holds {describe(item)}", record=row)
    return leaf


def _holds(dtype: np.dtype[Any], value: complex) -> bool:
    """Return whether a dtype holds a Python number: an integer exactly, any other number rounded but in range."""
    kind = dtypes.number_kind(dtype)
    if isinstance(value, bool):
        return kind == "b"
    if kind not in {int: "iufc", float: "fc", complex: "c"}[type(value)]:
        return False
    with np.errstate(all="ignore"):
        stored = np.asarray(value).astype(dtype)
    if isinstance(value, int):
        try:
            return int(stored.real) == value
        except (OverflowError, ValueError):
            return False
    limit = float(ml_dtypes.finfo(dtype).max)
    parts = ((value.real, float(stored.real)), (value.imag, float(stored.imag)))
    return all(
        abs(want) <= limit and math.isfinite(got) if math.isfinite(want) else str(got) == str(want)
        for want, got in parts
    )


def _widens(dtype: np.dtype[Any], into: np.dtype[Any]) -> bool:
    """Return whether both dtypes are fixed-width strings of one kind, and ``into`` is wide enough."""
    return dtype.kind in "SU" and dtype.kind == into.kind and dtype.itemsize <= into.itemsize


def _mismatch(spec: LeafSpec, value: Any, leaf: np.ndarray[Any, Any], row: int) -> ElementError:
    hint = "Convert it, or declare element_spec= with a dtype that holds every record."
    got = describe(value) if not hasattr(value, "dtype") else f"{leaf.dtype}{list(leaf.shape)}"
    return ElementError(describe_leaf(spec), got, record=row, hint=hint)


def separate_nulls(spec: LeafSpec, rows: Sequence[Any]) -> tuple[list[Any], np.ndarray[Any, Any]] | None:
    """Return the rows of a leaf with fillers for the nulls within them, and which values are null; None if none is.

    ``[[1, None], [2]]`` gives the rows ``[[1, 0], [2]]`` and the bools ``[False, True, False]``.
    """
    nulls: list[Any] = []
    filler = _filler_of(spec)
    filled = [_without_nulls(row, filler, nulls) for row in rows]
    are_null = np.concatenate([np.empty(0, np.bool_), *nulls])
    if are_null.any() or any(_is_nullable(row) for row in rows):
        return filled, are_null
    return None


def _filler_of(spec: LeafSpec) -> Any:
    if isinstance(spec.dtype, type):
        return spec.dtype()
    python = {"b": False, "i": 0, "u": 0, "f": 0.0, "c": 0j}.get(dtypes.number_kind(spec.dtype))
    return np.zeros((), spec.dtype)[()] if python is None else python


def _is_nullable(row: Any) -> bool:
    return isinstance(row, Nullable) or (isinstance(row, Ragged) and isinstance(row.flat_values, Nullable))


def _without_nulls(row: Any, filler: Any, nulls: list[Any]) -> Any:
    """Return a row with a filler in place of each null within it, and append which of its values are null."""
    if isinstance(row, Nullable):
        nulls.append(~row.valid.reshape(-1))
        return row.filled(filler if row.values.dtype == object else np.zeros((), row.values.dtype))
    if isinstance(row, Ragged):
        return with_flat_values(row, _without_nulls(row.flat_values, filler, nulls))
    if isinstance(row, (list, tuple)) and any(isinstance(item, (list, tuple, np.ndarray, Nullable)) for item in row):
        return [_without_nulls(item, filler, nulls) for item in row]
    if isinstance(row, np.ndarray) and row.dtype == object:
        are_null = np.fromiter((item is None for item in row.flat), np.bool_, row.size).reshape(row.shape)
        nulls.append(are_null.reshape(-1))
        return np.where(are_null, filler, row).tolist() if are_null.any() else row
    if isinstance(row, (list, tuple)):
        nulls.append(np.fromiter((item is None for item in row), np.bool_, len(row)))
        return [filler if item is None else item for item in row]
    try:
        size = np.size(as_leaf(row))
    except InvalidTypeError:
        # It does not fit: the encoder raises an error that says so.
        size = 1
    nulls.append(np.zeros(size, np.bool_))
    return row
