"""Python values beside the Arrow array that was made of them: an array that holds other values is an error."""

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
    """What a comparison allows, and what it finds besides.

    Args:
        declared: the type was declared. Floats may then be rounded, numbers be texts, or
            count times, and keys be missing.
        nat: the paths of leaves in which NaT became null.
    """

    declared: bool
    nat: set[str] = field(default_factory=set)

    def check(self, values: Sequence[Any], array: pa.Array, path: str, dims: Dims = ()) -> None:
        """Raise if an array does not hold some values.

        Args:
            values: the values, one a row.
            array: the array.
            path: of the leaf.
            dims: the known dimensions of lists whose type does not tell them.

        Raises:
            NotExactError: with the reason.
        """
        kind = array.type
        if isinstance(kind, pa.JsonType):
            # What it holds are texts that stand for the values.
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
        given = [value for value in values if value is not None]
        if set(names) == _FILE and not all(isinstance(value, dict) for value in given):
            # datasets makes files of pictures.
            return
        for value in given:
            if not isinstance(value, dict):
                raise NotExactError(f"a {type(value).__name__} is no dict")
            odd = sorted(map(str, value.keys() ^ set(names)))
            if value.keys() - set(names) or (odd and not self.declared):
                raise NotExactError(f"the key {odd[0]!r} is not in every dict")
        for name, part in zip(names, array.flatten(), strict=True):
            below = [None if value is None else value.get(name) for value in values]
            self.check(below, part, f"{path}[{name!r}]")

    def _check_lists(self, values: Sequence[Any], array: pa.Array, path: str, dims: Dims) -> None:
        _check_nulls(values, array)
        given = [_listed(value) for value in values if value is not None]
        if given and all(isinstance(value, np.ndarray) for value in given):
            self._check_arrays(given, array, path, dims)
            return
        if [len(value) for value in given] != pc.list_value_length(array).drop_null().to_pylist():
            raise NotExactError("the lengths of lists would change")
        self.check(list(chain.from_iterable(given)), array.flatten(), path, dims[1:])

    def _check_arrays(self, arrays: list[NDArray[Any]], array: pa.Array, path: str, dims: Dims) -> None:
        """Compare arrays with lists within lists: whole levels at once."""
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
        found, begin = array.to_numpy(zero_copy_only=False), 0
        for part in flat:
            held = found[begin : begin + len(part)]
            begin += len(part)
            if self.declared and held.dtype.kind == "f" and part.dtype.kind != "b":
                if (np.isinf(held) & np.isfinite(part)).any():
                    raise NotExactError(_INFINITE)
            elif not _same_numbers(held, part):
                raise NotExactError(f"{array.type} does not hold each {part.dtype}")

    def _check_leaves(self, values: Sequence[Any], array: pa.Array, path: str) -> None:
        types = set(map(type, values))
        if np.ndarray in types:
            values = [scalar(value) for value in values]
            types = set(map(type, values))
        if any(map(_may_be_nat, types)) and any(map(_is_nat, values)):
            self.nat.add(path)
            values = [None if _is_nat(value) else value for value in values]
        _check_nulls(values, array)
        given = [value for value in values if value is not None]
        if any(issubclass(each, _NUMBERS) for each in types):
            given = [value.item() if isinstance(value, _NUMBERS) else value for value in given]
        kind, found = array.type, array.drop_null()
        if self.declared and is_text(kind):
            given = [str(value) if type(value) in (int, float) and value == value else value for value in given]
        types = set(map(type, given))
        if not _takes(kind, types):
            raise NotExactError(f"{' and '.join(sorted(each.__name__ for each in types))} are not {kind}")
        if kinds.is_temporal(kind):
            same = _counts_of(found) == _counts(given, kind)
        elif kinds.is_floating(kind):
            same = self._same_floats(found.to_pylist(), given)
        else:
            same = found.to_pylist() == given
        if not same:
            raise NotExactError(f"{kind} does not hold each value")

    def _same_floats(self, found: list[float], given: list[Any]) -> bool:
        if self.declared:
            if any(math.isinf(held) and not math.isinf(value) for held, value in zip(found, given, strict=True)):
                raise NotExactError(_INFINITE)
            return True
        return found == given or all(
            held == value or (held != held and value != value) for held, value in zip(found, given, strict=True)
        )


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind))


def scalar(value: Any) -> Any:
    """Return a value as Arrow takes it: no array without dimensions, days as dates, nanoseconds as NumPy's."""
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
    """Return a time of pandas as that of NumPy if it has nanoseconds, which datasets drops, and no zone."""
    if value != value or getattr(value, "tzinfo", None) is not None:
        return value
    if getattr(value, "nanosecond", 0):
        return value.to_datetime64()
    return value.to_timedelta64() if getattr(value, "nanoseconds", 0) else value


def _inner(value: Any) -> Any:
    # Of days in an array Arrow makes dates on its own only if nothing is around it.
    days = isinstance(value, np.ndarray) and value.dtype == np.dtype("M8[D]") and value.ndim
    return [scalar(child) for child in value] if days else scalar(value)


def is_missing(value: Any) -> bool:
    """Return if a value is a NaT that Arrow takes for a time: that of pandas, and that of days among dates."""
    days = isinstance(value, np.datetime64) and value.dtype == np.dtype("M8[D]")
    return (days or type(value).__name__ == _NAT) and bool(value != value)


def _listed(value: Any) -> Any:
    """Return what is given as a list: a list, a tuple or an array.

    Raises:
        NotExactError: for what is more than a list.
    """
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return value
    if hasattr(value, "__array__") and not hasattr(value, "columns") and not np.ma.isMaskedArray(value):
        # That of a tensor whose gradient is wanted.
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
        if array.ndim:
            return array
    raise NotExactError(f"a {type(value).__name__} is more than a list")


def _check_nulls(values: Sequence[Any], array: pa.Array) -> None:
    if len(values) != len(array):
        raise NotExactError("the number of values would change")
    if [value is not None for value in values] != array.is_valid().to_pylist():
        raise NotExactError("nulls would change")


def _same_numbers(held: NDArray[Any], given: NDArray[Any]) -> bool:
    if (held.dtype.kind == "b") != (given.dtype.kind == "b"):
        return False
    with np.errstate(all="ignore"):
        cast = held.astype(given.dtype)
    # An integer past 2**63 is a negative one of other signs.
    return np.array_equal(cast, given, equal_nan=given.dtype.kind == "f") and np.array_equal(held < 0, given < 0)


def _may_be_nat(kind: type) -> bool:
    return issubclass(kind, (np.datetime64, np.timedelta64)) or kind.__name__ == _NAT


def _is_nat(value: Any) -> bool:
    # That of pandas is a datetime; like that of numpy it does not equal itself.
    return _may_be_nat(type(value)) and bool(value != value)


def _takes(kind: pa.DataType, given: set[type]) -> bool:
    """Return if an Arrow type is that of values of these types."""
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
    flags = kinds.is_boolean(kind) or bool not in given
    return flags and all(issubclass(each, wanted) for each in given)


def _counts_of(array: pa.Array) -> list[int]:
    """Return times of an array in nanoseconds."""
    kind = array.type
    unit = "D" if kinds.is_date32(kind) else "ms" if kinds.is_date64(kind) else kind.unit
    counts = array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return [count * _UNITS[unit] for count in counts]


def _counts(values: list[Any], kind: pa.DataType) -> list[int]:
    """Return times in nanoseconds: since 1970, midnight or the begin of a span."""
    zones = {value.tzinfo is None for value in values if isinstance(value, datetime)}
    if len(zones) > 1:
        raise NotExactError("there are times with and without a zone")
    numbers = _UNITS[getattr(kind, "unit", "D")]
    return [value * numbers if isinstance(value, int) else _count(value) for value in values]


def _count(value: Any) -> int:
    for name in ("to_datetime64", "to_timedelta64"):
        # Those of pandas, which have nanoseconds.
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
            raise NotExactError("a time of day loses its zone")
        value = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    span: timedelta = value
    return ((span.days * 86400 + span.seconds) * 10**6 + span.microseconds) * 1000
