"""Compare Python values with the Arrow array made from them, and raise if the array holds other values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from cachelayer.adapters._arrow_columns import is_bytes, is_text
from cachelayer.adapters._exact_arrow import NotExactError

Dims = tuple[int | None, ...]

_NAT = "NaTType"
_FILE = {"bytes", "path"}
_INFINITE = "a finite number would be infinite"
_SEEN_INTO = (dict, list, datetime, timedelta, np.datetime64, np.ndarray)
_NUMBERS = (np.integer, np.floating, np.bool_)
_UNITS = {"W": 604800 * 10**9, "D": 86400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9}
_UNITS |= {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Comparison:
    """A comparison of values with arrays, and the NaT that it finds.

    Args:
        declared: whether the type was declared. If so, floats may be rounded, numbers may become text or times, and
            keys may be missing.
        nat: the paths of leaves in which NaT became null.
    """

    declared: bool
    nat: set[str] = field(default_factory=set)

    def check(self, values: Sequence[Any], array: pa.Array, path: str, dims: Dims = ()) -> None:
        """Raise if an array does not hold some values.

        Args:
            values: the values, one for each row.
            array: the array.
            path: the path of the leaf.
            dims: the known dimensions of lists, if their type does not have them.

        Raises:
            NotExactError: gives the reason.
        """
        kind = array.type
        if isinstance(kind, pa.JsonType):
            # It holds JSON text that stands for the values.
            return
        if isinstance(array, pa.ExtensionArray):
            self.check(values, array.storage, path, tuple(kind.shape))
        elif kinds.is_struct(kind):
            self._check_structs(values, array, path)
        elif _is_list(kind):
            self._check_lists(values, array, path, dims)
        else:
            self._check_leaves(values, array, path)

    def _check_structs(self, values: Sequence[Any], array: pa.Array, path: str) -> None:
        names = [part.name for part in array.type]
        present = [value for value in values if value is not None]
        if set(names) == _FILE and not all(isinstance(value, dict) for value in present):
            # datasets turns pictures into files.
            return
        for value in present:
            if not isinstance(value, dict):
                raise NotExactError(f"a {type(value).__name__} is not a dict")
            odd = sorted(map(str, value.keys() ^ set(names)))
            if value.keys() - set(names) or (odd and not self.declared):
                raise NotExactError(f"the key {odd[0]!r} is not in every dict")
        for name, part in zip(names, array.flatten(), strict=True):
            below = [None if value is None else value.get(name) for value in values]
            self.check(below, part, f"{path}[{name!r}]")

    def _check_lists(self, values: Sequence[Any], array: pa.Array, path: str, dims: Dims) -> None:
        _check_nulls(values, array)
        present = [_as_list(value) for value in values if value is not None]
        if present and all(isinstance(value, np.ndarray) for value in present):
            self._check_arrays(present, array, path, dims)
            return
        if [len(value) for value in present] != pc.list_value_length(array).drop_null().to_pylist():
            raise NotExactError("the lengths of lists would change")
        self.check(list(chain.from_iterable(present)), array.flatten(), path, dims[1:])

    def _check_arrays(self, arrays: list[NDArray[Any]], array: pa.Array, path: str, dims: Dims) -> None:
        """Compare arrays with nested lists, a whole level at a time."""
        for axis in range(arrays[0].ndim):
            if not _is_list(array.type) or any(each.ndim != arrays[0].ndim for each in arrays):
                raise NotExactError("the numbers of dimensions differ")
            counts = [prod(each.shape[:axis]) for each in arrays]
            lengths = [each.shape[axis] for each in arrays]
            if not np.array_equal(np.repeat(lengths, counts), pc.list_value_length(array).drop_null().to_numpy()):
                raise NotExactError("the lengths of lists would change")
            known = kinds.is_fixed_size_list(array.type) or (axis < len(dims) and dims[axis] is not None)
            for each, count in zip(arrays, counts, strict=True):
                if count == 0 and each.shape[axis] and not known:
                    raise NotExactError(f"lists of unknown lengths do not keep the shape {each.shape}")
            array = array.flatten()
        flat = [each.reshape(-1) for each in arrays]
        if _is_list(array.type) or any(each.dtype.kind not in "biuf" for each in flat) or not _is_number(array.type):
            self.check(list(chain.from_iterable(flat)), array, path)
        else:
            self._check_numbers(flat, array)

    def _check_numbers(self, flat: list[NDArray[Any]], array: pa.Array) -> None:
        stored, begin = array.to_numpy(zero_copy_only=False), 0
        for part in flat:
            held = stored[begin : begin + len(part)]
            begin += len(part)
            if self.declared and held.dtype.kind == "f" and part.dtype.kind != "b":
                if (np.isinf(held) & np.isfinite(part)).any():
                    raise NotExactError(_INFINITE)
            elif not _same_numbers(held, part):
                raise NotExactError(f"{array.type} cannot hold every value of {part.dtype}")

    def _check_leaves(self, values: Sequence[Any], array: pa.Array, path: str) -> None:
        types = set(map(type, values))
        if np.ndarray in types:
            values = [scalar(value) for value in values]
            types = set(map(type, values))
        if any(map(_may_be_nat, types)) and any(map(_is_nat, values)):
            self.nat.add(path)
            values = [None if _is_nat(value) else value for value in values]
        _check_nulls(values, array)
        present = [value for value in values if value is not None]
        if any(issubclass(each, _NUMBERS) for each in types):
            present = [value.item() if isinstance(value, _NUMBERS) else value for value in present]
        kind, stored = array.type, array.drop_null()
        if self.declared and is_text(kind):
            present = [str(value) if type(value) in (int, float) and value == value else value for value in present]
        types = set(map(type, present))
        if not _takes(kind, types):
            raise NotExactError(f"{' and '.join(sorted(each.__name__ for each in types))} are not {kind}")
        if kinds.is_temporal(kind):
            same = _nanoseconds_of_array(stored) == _nanoseconds_of_values(present, kind)
        elif kinds.is_floating(kind):
            same = self._same_floats(stored.to_pylist(), present)
        else:
            same = stored.to_pylist() == present
        if not same:
            raise NotExactError(f"{kind} cannot hold every value")

    def _same_floats(self, stored: list[float], values: list[Any]) -> bool:
        if self.declared:
            if any(math.isinf(held) and not math.isinf(value) for held, value in zip(stored, values, strict=True)):
                raise NotExactError(_INFINITE)
            return True
        return stored == values or all(
            held == value or (held != held and value != value) for held, value in zip(stored, values, strict=True)
        )


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind))


def scalar(value: Any) -> Any:
    """Return a value in the form that Arrow takes: 0-d arrays as scalars, days as dates, nanoseconds as NumPy's."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.datetime64) and value.dtype == np.dtype("M8[D]") and not np.isnat(value):
        day = value.item()
        return day if isinstance(day, date) else value
    if isinstance(value, (datetime, timedelta)):
        return _with_nanoseconds(value)
    if isinstance(value, dict):
        return {name: _inner(child) for name, child in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], _SEEN_INTO):
        return [_inner(child) for child in value]
    return value


def _with_nanoseconds(value: Any) -> Any:
    """Return a pandas time as NumPy's if it has nanoseconds, which datasets would drop, and no time zone."""
    if value != value or getattr(value, "tzinfo", None) is not None:
        return value
    if getattr(value, "nanosecond", 0):
        return value.to_datetime64()
    return value.to_timedelta64() if getattr(value, "nanoseconds", 0) else value


def _inner(value: Any) -> Any:
    # Arrow turns an array of days into dates only at the top level.
    days = isinstance(value, np.ndarray) and value.dtype == np.dtype("M8[D]") and value.ndim
    return [scalar(child) for child in value] if days else scalar(value)


def is_missing(value: Any) -> bool:
    """Return whether a value is a NaT that Arrow would treat as a time: pandas' NaT, or NumPy's NaT of days."""
    days = isinstance(value, np.datetime64) and value.dtype == np.dtype("M8[D]")
    return (days or type(value).__name__ == _NAT) and bool(value != value)


def _as_list(value: Any) -> Any:
    """Return a list, a tuple or an array, so that its items can be compared.

    Raises:
        NotExactError: if the value is none of these, or has more than items, such as field names.
    """
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return value
    if hasattr(value, "__array__") and not hasattr(value, "columns") and not np.ma.isMaskedArray(value):
        # A tensor that requires a gradient must be detached first.
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
        if array.ndim:
            return array
    raise NotExactError(f"a {type(value).__name__} is more than a list")


def _check_nulls(values: Sequence[Any], array: pa.Array) -> None:
    if len(values) != len(array):
        raise NotExactError("the number of values would change")
    if [value is not None for value in values] != array.is_valid().to_pylist():
        raise NotExactError("nulls would change")


def _same_numbers(held: NDArray[Any], values: NDArray[Any]) -> bool:
    if (held.dtype.kind == "b") != (values.dtype.kind == "b"):
        return False
    with np.errstate(all="ignore"):
        cast = held.astype(values.dtype)
    # A cast of an unsigned integer past 2**63 would be negative.
    return np.array_equal(cast, values, equal_nan=values.dtype.kind == "f") and np.array_equal(held < 0, values < 0)


def _may_be_nat(kind: type) -> bool:
    return issubclass(kind, (np.datetime64, np.timedelta64)) or kind.__name__ == _NAT


def _is_nat(value: Any) -> bool:
    # pandas' NaT is a datetime. Like numpy's NaT, it does not equal itself.
    return _may_be_nat(type(value)) and bool(value != value)


def _takes(kind: pa.DataType, types: set[type]) -> bool:
    """Return whether an Arrow type fits values of these Python types."""
    if kinds.is_boolean(kind):
        wanted: tuple[type, ...] = (bool,)
    elif kinds.is_integer(kind):
        wanted = (int,)
    elif kinds.is_floating(kind):
        wanted = (int, float)
    elif is_text(kind):
        wanted = (str,)
    elif is_bytes(kind):
        wanted = (bytes, bytearray)
    elif kinds.is_temporal(kind):
        wanted = (int, date, time, timedelta, np.datetime64, np.timedelta64)
    else:
        return True
    flags = kinds.is_boolean(kind) or bool not in types
    return flags and all(issubclass(each, wanted) for each in types)


def _nanoseconds_of_array(array: pa.Array) -> list[int]:
    """Return the times of an array in nanoseconds."""
    kind = array.type
    unit = "D" if kinds.is_date32(kind) else "ms" if kinds.is_date64(kind) else kind.unit
    counts = array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return [count * _UNITS[unit] for count in counts]


def _nanoseconds_of_values(values: list[Any], kind: pa.DataType) -> list[int]:
    """Return times in nanoseconds: since 1970, since midnight, or the length of a span."""
    zones = {value.tzinfo is None for value in values if isinstance(value, datetime)}
    if len(zones) > 1:
        raise NotExactError("some times have a zone and some do not")
    numbers = _UNITS[getattr(kind, "unit", "D")]
    return [value * numbers if isinstance(value, int) else _nanoseconds(value) for value in values]


def _nanoseconds(value: Any) -> int:
    for name in ("to_datetime64", "to_timedelta64"):
        # pandas' times, which have nanoseconds.
        if hasattr(value, name):
            value = getattr(value, name)()
    if isinstance(value, (np.datetime64, np.timedelta64)):
        unit, many = np.datetime_data(value.dtype)
        if unit not in _UNITS:
            raise NotExactError(f"{value.dtype} has no length in nanoseconds")
        return int(value.astype(np.int64)) * many * _UNITS[unit]
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
    elif isinstance(value, date):
        value = timedelta(days=(value - _EPOCH.date()).days)
    elif isinstance(value, time):
        if value.tzinfo is not None:
            raise NotExactError("a time of day would lose its zone")
        value = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    span: timedelta = value
    return ((span.days * 86400 + span.seconds) * 10**6 + span.microseconds) * 1000
