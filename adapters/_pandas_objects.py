"""Convert columns of Python objects to Arrow arrays: exactly, or with an error that names the record.

pyarrow converts objects too, but turns NaN into null and nanoseconds into microseconds, and takes only flat arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from cachelayer.adapters._arrow_arrays import arrow_array, arrow_type
from cachelayer.adapters._arrow_columns import is_utf8
from cachelayer.errors import ElementError
from cachelayer.records import tree
from cachelayer.records.values import Nullable, Ragged

_HINT = "A column is of one type: convert it with astype(), or split it."
_TIMES = (pd.Timestamp, pd.Timedelta)
_WORDS = (np.dtype(np.int64), np.dtype(np.uint64))


class UntypedError(Exception):
    """Arrow has no type for the objects; the message names the record."""


class _Arrays(NamedTuple):
    dtype: np.dtype[Any]
    rank: int


@dataclass(frozen=True)
class Objects:
    """Some objects of a column.

    Args:
        values: the objects; None if one is missing.
        records: the record that each object belongs to.
        path: the path of the leaf.
        within: whether the objects are inside a list or a dict.
    """

    values: Sequence[Any]
    records: Sequence[int]
    path: str
    within: bool = False

    @property
    def nulls(self) -> NDArray[np.bool_]:
        return np.fromiter((value is None for value in self.values), np.bool_, len(self.values))

    def present(self) -> Iterator[tuple[int, Any]]:
        """Yield the objects that are not missing, each with its record."""
        return ((record, value) for record, value in zip(self.records, self.values, strict=True) if value is not None)

    def error(self, record: int, expected: str, value: Any, hint: str = _HINT) -> ElementError:
        return ElementError(expected, tree.describe(value), path=self.path, record=record, hint=hint)


def arrow_of_objects(name: str, column: pd.Series[Any]) -> pa.Array:
    """Return a column of objects as an Arrow array; objects that ``isna()`` finds become null.

    Raises:
        ElementError: if the type of an object differs from that of the objects before it, or a value does not fit.
        UntypedError: if Arrow does not know the type of the objects.
    """
    values = column.to_numpy().copy()
    values[column.isna().to_numpy()] = None
    return _array(Objects(values.tolist(), range(len(values)), f"[{name!r}]"))


def _array(objects: Objects) -> pa.Array:
    kind = _common(objects)
    if kind is None:
        return pa.nulls(len(objects.values))
    if isinstance(kind, _Arrays):
        return _arrays(objects, kind)
    if isinstance(kind, np.dtype):
        return _scalars(objects, kind)
    if kind is dict:
        return _structs(objects)
    if kind is list:
        return _lists(objects)
    if kind is int:
        return _integers(objects)
    if kind in _TIMES:
        return _times(objects)
    if kind is float:
        _check_integers(objects)
    return _texts(objects) if kind is str else _others(objects, kind)


def _texts(objects: Objects) -> pa.Array:
    """Return text unchanged. Text that is not UTF-8 is refused later, so that only its own row can be left out."""
    try:
        return pa.array(objects.values, pa.string())
    except UnicodeEncodeError:
        raw = [None if value is None else value.encode("utf-8", "surrogatepass") for value in objects.values]
        return pa.array(raw, pa.binary()).view(pa.string())


def _others(objects: Objects, kind: type) -> pa.Array:
    record, first = next(objects.present())
    # pyarrow makes a list of any iterable, even of a set, which has no order.
    if issubclass(kind, Iterable) and not issubclass(kind, (bytes, bytearray, memoryview)):
        raise UntypedError(f"Arrow has no type for record {record}, {tree.describe(first)}")
    try:
        return pa.array(objects.values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise UntypedError(f"Arrow has no type for objects like record {record}, {tree.describe(first)}") from error


def _check_integers(objects: Objects) -> None:
    """Raise if an integer among floats is too large for a float to hold exactly."""
    for record, value in objects.present():
        if isinstance(value, int) and not -(2**53) <= value <= 2**53:
            raise objects.error(record, "float, as others in its place", value)


def _common(objects: Objects) -> Any:
    """Return the kind that all objects have; None if all are missing."""
    first, kinds = None, set()
    for record, value in objects.present():
        kind = _kind(value)
        first = kind if first is None else first
        kinds.add(kind)
        if kind != first and not (objects.within and kinds == {int, float}):
            raise objects.error(record, f"{_name(first)}, as above", value)
    return float if kinds == {int, float} else first


def _kind(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return list if value.dtype.kind in "OSUT" else _Arrays(value.dtype.newbyteorder("="), value.ndim)
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes)):
        return value.dtype
    if isinstance(value, _TIMES):
        # Timestamps with a time zone get a type that is refused later.
        return type(value) if getattr(value, "tzinfo", None) is None else pa.TimestampScalar
    return next((kind for kind in (str, bytes, dict) if isinstance(value, kind)), None) or _list_or_type(value)


def _list_or_type(value: Any) -> Any:
    return list if isinstance(value, (list, tuple)) else type(value)


def _name(kind: Any) -> str:
    if isinstance(kind, _Arrays):
        return str(kind.dtype) if kind.rank == 1 else f"{kind.dtype} of rank {kind.rank}"
    return str(kind) if isinstance(kind, np.dtype) else str(kind.__name__)


def _integers(objects: Objects) -> pa.Array:
    values = [value for _, value in objects.present()]
    for dtype in _WORDS:
        word = np.iinfo(dtype)
        if word.min <= min(values) and max(values) <= word.max:
            return pa.array(objects.values, pa.from_numpy_dtype(dtype))
    word = np.iinfo(np.int64) if min(values) < 0 else np.iinfo(np.uint64)
    record, value = next((r, v) for r, v in objects.present() if not word.min <= v <= word.max)
    hint = "astype(float) rounds it, astype(str) keeps its digits."
    raise ElementError(f"integers of {word.dtype}", str(value), path=objects.path, record=record, hint=hint)


def _times(objects: Objects) -> pa.Array:
    """Return pandas' moments and spans, in the finest of their units."""
    units = {value.unit for _, value in objects.present()}
    unit = next(unit for unit in ("ns", "us", "ms", "s") if unit in units)
    counts = iter([_in_unit(objects, record, value, unit) for record, value in objects.present()])
    values = [None if value is None else next(counts) for value in objects.values]
    return _scalars(Objects(values, objects.records, objects.path), next(v for v in values if v is not None).dtype)


def _in_unit(objects: Objects, record: int, value: Any, unit: str) -> Any:
    try:
        return value.as_unit(unit, round_ok=False).asm8
    except (OverflowError, ValueError) as error:
        raise objects.error(record, f"a time that {unit} can count, as others in its place", value) from error


def _scalars(objects: Objects, dtype: np.dtype[Any]) -> pa.Array:
    nulls = objects.nulls
    values = np.zeros(len(objects.values), dtype.newbyteorder("="))
    values[~nulls] = [value for _, value in objects.present()]
    return arrow_array(arrow_type(values.dtype), Nullable(values, ~nulls), objects.path, keep_nat=True)


def _arrays(objects: Objects, kind: _Arrays) -> pa.Array:
    """Return arrays of one dtype and rank as lists of arrays of one shape."""
    if not kind.rank:
        record, value = next(objects.present())
        hint = "item() makes it a number."
        raise objects.error(record, "numbers, or arrays with at least one dimension", value, hint)
    shapes = {value.shape[1:]: record for record, value in reversed([*objects.present()])}
    if len(shapes) > 1:
        inner, record = min(shapes, key=lambda shape: shapes[shape]), max(shapes.values())
        value = next(value for number, value in objects.present() if number == record)
        expected = f"an array of shape {['any', *inner]}, as above".replace("'", "")
        raise objects.error(record, expected, value, "Only the first dimension may vary: pass dicts, not a frame.")
    (inner,) = shapes
    nulls = objects.nulls
    lengths = [0 if value is None else len(value) for value in objects.values]
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = np.concatenate([value.astype(kind.dtype, copy=False) for _, value in objects.present()])
    typed = arrow_type(kind.dtype)
    for dim in reversed(inner):
        typed = pa.list_(typed, dim)
    return arrow_array(pa.list_(typed), Nullable(Ragged(values, splits), ~nulls), objects.path, keep_nat=True)


def _lists(objects: Objects) -> pa.Array:
    lengths = [0 if value is None else len(value) for value in objects.values]
    inner = [_value(item) for _, value in objects.present() for item in value]
    records = np.repeat(np.asarray(objects.records, np.int64), lengths).tolist()
    made = _array(Objects(inner, records, objects.path, within=True))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, made, mask=pa.array(objects.nulls))


def _structs(objects: Objects) -> pa.Array:
    keys = list(next(objects.present())[1])
    for record, value in objects.present():
        if set(value) != set(keys) or not all(isinstance(key, str) for key in value):
            expected = f"a dict with the keys {keys}, as above, each a str"
            raise ElementError(expected, f"one with {list(value)}", path=objects.path, record=record)
        if not all(map(is_utf8, value)):
            raise ElementError("keys in UTF-8", ascii(list(value)), path=objects.path, record=record)
    parts = []
    for key in keys:
        values = [None if value is None else _value(value[key]) for value in objects.values]
        parts.append(_array(Objects(values, objects.records, f"{objects.path}[{key!r}]", within=True)))
    nulls = objects.nulls
    if not keys:
        valid = pa.array(~nulls).buffers()[1] if nulls.any() else None
        return pa.StructArray.from_buffers(pa.struct([]), len(nulls), [valid])
    return pa.StructArray.from_arrays(parts, keys, mask=pa.array(nulls))


def _value(value: Any) -> Any:
    """Return an object that is inside another; there, unlike in a column, NaN is a number and not null."""
    return None if value is pd.NA or value is pd.NaT else value
