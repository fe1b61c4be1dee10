"""Arithmetic and comparisons of columns: they give for each row what Python gives, or refuse. Pure functions.

Integers never wrap around and are never rounded: what needs more than 64 bits, or more than the 53 of a float, is
refused. A row without a result, such as a quotient by zero, becomes invalid, as one with None is. Kinds that are never
equal, such as text and bytes, are refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.specs.dtypes import DType, is_numpys, number_kind

_INT64, _UINT64 = (-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)
_EXACT_IN_FLOAT = (-(1 << 53), 1 << 53)
"""Float64 holds every integer between these."""
_FUNCTION = "write both sides as integers that fit, or pass a function of columns"
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex", "U": "text", "S": "bytes", "M": "time"}
_OFFSET = re.compile(r"(.*?)(Z|[+-]\d\d:\d\d)?", re.DOTALL)
"""A time, and its offset from UTC."""
_ATTOSECONDS = {
    "W": 604_800 * 10**18,
    "D": 86_400 * 10**18,
    "h": 3_600 * 10**18,
    "m": 60 * 10**18,
    "s": 10**18,
    "ms": 10**15,
    "us": 10**12,
    "ns": 10**9,
    "ps": 10**6,
    "fs": 10**3,
    "as": 1,
}
_ORDERS = (operator.lt, operator.le, operator.gt, operator.ge)


@dataclass(frozen=True)
class Operand:
    """A value for each row, or one value for all rows."""

    kind: str
    """``bool``, ``int``, ``float``, ``complex``, ``text``, ``bytes``, ``time``, ``moment`` (of a time zone) or
    ``duration``; or ``dict``, of which only ``is None`` can be asked."""
    values: Any
    """An array of shape ``[rows]``, or a value of Python."""
    valid: Any = True
    """In which rows there is a value: an array of bools, or one bool."""
    dtype: np.dtype[Any] | None = None
    """The dtype of a field of floats, whose values are computed in float64."""

    @property
    def is_literal(self) -> bool:
        return not isinstance(self.values, np.ndarray)


class NoValueError(ValueError):
    """Operands do not fit together; the text says why, and what to write."""


def column(dtype: DType, values: Any, valid: Any = True, timezone: str | None = None) -> Operand:
    """Return the values of a field as an operand."""
    if timezone is not None:
        return Operand("moment", values, valid)
    if not isinstance(dtype, np.dtype):
        return Operand("text" if dtype is str else "bytes", values, valid)
    kind = number_kind(dtype)
    if kind == "f":
        return Operand("float", values.astype(np.float64, copy=False), valid, dtype)
    if kind in "iu" and not is_numpys(dtype):
        values = values.astype(np.int64)
    return Operand(_KINDS.get(kind, "duration"), values, valid)


def literal(value: Any) -> Operand:
    """Return a constant."""
    kinds = {bool: "bool", int: "int", float: "float", complex: "complex", str: "text", bytes: "bytes"}
    return Operand(kinds[type(value)], value)


def negative(operand: Operand) -> Operand:
    """Return the values with the other sign."""
    if operand.kind == "float":
        return Operand("float", -operand.values, operand.valid)
    return compute(operator.sub, literal(0), operand)


def compute(operation: Callable[[Any, Any], Any], left: Operand, right: Operand) -> Operand:
    """Return the results of an operation on numbers."""
    for operand in (left, right):
        if operand.kind not in ("int", "float"):
            raise NoValueError(f"is no arithmetic of numbers: one side is {_named(operand.kind)}")
    valid = left.valid & right.valid
    if operation in (operator.truediv, operator.floordiv, operator.mod):
        is_zero = right.values == 0
        if right.is_literal and is_zero:
            raise NoValueError("divides by zero")
        if np.any(is_zero):
            # These rows get no result: they divide by 1, so that numpy does not warn.
            valid = valid & ~is_zero
            right = Operand(right.kind, np.where(is_zero, right.values.dtype.type(1), right.values))
    try:
        if not left.kind == right.kind == "int":
            with np.errstate(all="ignore"):
                return Operand("float", operation(_floats(left), _floats(right)), valid)
        if operation is operator.truediv:
            return Operand("float", operation(*_exact_floats("divides", left, right)), valid)
    except OverflowError as error:
        raise NoValueError(f"is too large for a float: {error}") from error
    bounds = [_bounds(left.values), _bounds(right.values), _result_bounds(operation, left.values, right.values)]
    for limits, dtype in ((_INT64, np.int64), (_UINT64, np.uint64)):
        if _fit(bounds, limits):
            return Operand("int", operation(*_cast(left, right, dtype)), valid)
    raise NoValueError(f"may need integers beyond 64 bits: {_FUNCTION}")


def _floats(operand: Operand) -> Any:
    values = operand.values
    return float(values) if operand.is_literal else values.astype(np.float64)


def _bounds(values: Any) -> tuple[int, int]:
    """Return the least and the largest of some integers, or of one."""
    if not isinstance(values, np.ndarray):
        return values, values
    return (int(values.min()), int(values.max())) if len(values) else (0, 0)


def _result_bounds(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> tuple[int, int]:
    """Return bounds of the results of an operation on integers."""
    low, high = _bounds(left)
    right_low, right_high = _bounds(right)
    if operation is operator.add:
        return low + right_low, high + right_high
    if operation is operator.sub:
        return low - right_high, high - right_low
    if operation is operator.mul:
        products = (low * right_low, low * right_high, high * right_low, high * right_high)
        return min(products), max(products)
    # A quotient is no larger than the dividend, a remainder no larger than the divisor.
    ends = (low, high) if operation is operator.floordiv else (right_low, right_high)
    most = max(map(abs, ends))
    return -most, most


def _fit(bounds: Sequence[tuple[int, int]], limits: tuple[int, int]) -> bool:
    return all(limits[0] <= low and high <= limits[1] for low, high in bounds)


def _cast(left: Operand, right: Operand, dtype: Any) -> tuple[Any, Any]:
    """Return the values of both in a dtype. Literals stay as they are: numpy gives them the dtype of the other."""
    first = left.values if left.is_literal else left.values.astype(dtype, copy=False)
    second = right.values if right.is_literal else right.values.astype(dtype, copy=False)
    return first, second


def _exact_floats(does: str, left: Operand, right: Operand) -> tuple[Any, Any]:
    """Return the values of both as float64; raise if an integer is none that float64 has."""
    if not _fit([_bounds(operand.values) for operand in (left, right) if operand.kind == "int"], _EXACT_IN_FLOAT):
        raise NoValueError(f"{does} integers above 2**53, which no float holds exactly: {_FUNCTION}")
    return _cast(left, right, np.float64)


def compare(comparison: Callable[[Any, Any], Any], left: Operand, right: Operand) -> tuple[Any, Any]:
    """Return two masks: for which rows a comparison holds, and for which it can be made.

    The comparison is one of :mod:`operator`. A text may stand for a time, such as ``"2026-01-31"``.
    """
    left_time = _with_times(left, right)
    right = _with_times(right, left)
    left = left_time
    kinds = {left.kind, right.kind}
    if "dict" in kinds:
        raise NoValueError("is a dict, which is None or not: write 'is None', or compare a field of it")
    if len(kinds) > 1 and not kinds <= {"int", "float", "complex"}:
        raise NoValueError(_why_never(left, right))
    if "complex" in kinds and comparison in _ORDERS:
        raise NoValueError("has complex numbers, which have no order: compare with == or !=")
    if kinds <= {"time", "moment", "duration"}:
        holds = _compare_times(comparison, left, right)
    elif kinds == {"float"}:
        holds = comparison(_as_field(left, right), _as_field(right, left))
    elif kinds == {"int", "float"}:
        holds = comparison(*_exact_floats("compares floats with", left, right))
    else:
        # numpy compares integers of any two dtypes exactly.
        holds = comparison(left.values, right.values)
    return np.asarray(holds, np.bool_), left.valid & right.valid


def matches(method: str, operand: Operand, parts: Sequence[str | bytes]) -> Operand:
    """Return for each text whether it begins with, ends with, or has in it, at least one of some parts.

    ``method`` is ``startswith``, ``endswith`` or ``in``.
    """
    if operand.kind not in ("text", "bytes"):
        raise NoValueError(f"has {method} of {_named(operand.kind)}: it is of text and bytes")
    for part in parts:
        if literal(part).kind != operand.kind:
            raise NoValueError(_why_never(operand, literal(part)))
    values = operand.values.tolist()
    if method == "in":
        holds = [any(part in value for part in parts) for value in values]
    else:
        holds = [getattr(value, method)(tuple(parts)) for value in values]
    return Operand("bool", np.array(holds, np.bool_), operand.valid)


def _as_field(operand: Operand, other: Operand) -> Any:
    """Return floats as float64. A literal becomes the value of the other's dtype that is written like it.

    A float32 field with the value that a user writes as 0.1 equals the literal 0.1, although the two float64 differ.
    """
    values = operand.values
    if not operand.is_literal:
        return values.astype(np.float64, copy=False)
    if other.dtype is None:
        return values
    with np.errstate(over="ignore"):
        nearest = other.dtype.type(values)
    # The nearest float32 of 0.1 is written 0.1. The nearest float16 of 2049.0 is written 2048.0: the literal stays.
    return float(nearest) if float(str(nearest)) == values else values


def _with_times(operand: Operand, other: Operand) -> Operand:
    """Return a literal text as a time if the other operand is of times; else the operand."""
    if other.kind not in ("time", "moment") or operand.kind != "text" or not operand.is_literal:
        return operand
    example = "'2026-01-31'" if other.kind == "time" else "'2026-01-31T00:00+01:00', with the offset from UTC"
    text, offset = _OFFSET.fullmatch(operand.values).groups()  # type: ignore[union-attr]
    try:
        if (offset is not None) != (other.kind == "moment"):
            raise ValueError("the field has times " + ("with a time zone" if offset is None else "without a time zone"))
        time = np.datetime64(text)
        if offset not in (None, "Z"):
            time -= np.timedelta64(int(offset[:3]) * 60 + int(offset[0] + offset[4:]), "m")
    except ValueError as error:
        raise NoValueError(f"has {operand.values!r}, which is no time such as {example}: {error}") from error
    if np.isnat(time):
        raise NoValueError(f"has {operand.values!r}, which is no time such as {example}")
    return Operand(other.kind, time.reshape(1))


def _compare_times(comparison: Callable[[Any, Any], Any], left: Operand, right: Operand) -> Any:
    """Compare times, or durations, of any two units as integers of a common unit. NaT equals nothing, as NaN does."""
    left_counts, left_unit = _counts(left.values)
    right_counts, right_unit = _counts(right.values)
    if left_unit != right_unit and None in (left_unit, right_unit):
        raise NoValueError("has times without a unit: compare them with times that have none either")
    common = gcd(left_unit or 1, right_unit or 1)
    left_factor = (left_unit or 1) // common
    right_factor = (right_unit or 1) // common
    bounds = [bound * left_factor for bound in _bounds(left_counts)]
    bounds += [bound * right_factor for bound in _bounds(right_counts)]
    # Nanoseconds of the year 9999 need more than 64 bits: Python's integers hold any.
    dtype: Any = np.int64 if _fit([(min(bounds), max(bounds))], _INT64) else object
    holds = comparison(left_counts.astype(dtype) * left_factor, right_counts.astype(dtype) * right_factor)
    missing = np.isnat(left.values) | np.isnat(right.values)
    return np.where(missing, comparison is operator.ne, holds)


def _counts(times: NDArray[Any]) -> tuple[NDArray[np.int64], int | None]:
    """Return times as counts of a unit, and the unit in attoseconds, or None for times without a unit."""
    unit, count = np.datetime_data(times.dtype)
    if unit == "generic":
        return times.astype(np.int64), None
    if unit in "YM" and times.dtype.kind == "M":
        times, unit, count = times.astype("M8[D]"), "D", 1
    if unit in "YM":
        raise NoValueError("has durations of months or years, which have no fixed length: pass a function of columns")
    return np.where(np.isnat(times), 0, times.astype(np.int64)), _ATTOSECONDS[unit] * count


def _named(kind: str) -> str:
    names = {"text": "text", "bytes": "bytes", "int": "an integer", "complex": "a complex number"}
    names["moment"] = "a time with a time zone"
    return names.get(kind, f"a {kind}")


def _why_never(left: Operand, right: Operand) -> str:
    """Return why two kinds cannot be compared, and what to write instead."""
    kinds = {left.kind, right.kind}
    cure = "compare fields of one kind"
    if kinds == {"text", "bytes"}:
        constant = next((each.values for each in (left, right) if each.is_literal), None)
        if isinstance(constant, str):
            cure = f"write b{constant!r} for bytes" if constant.isascii() else f"write {constant.encode()!r} for bytes"
        elif isinstance(constant, bytes):
            cure = f"write {constant.decode(errors='replace')!r} for a text"
    elif "bool" in kinds:
        cure = "write the field alone, or 'not' and the field"
    elif "time" in kinds or "moment" in kinds:
        cure = "write a time such as '2026-01-31'"
    elif "duration" in kinds:
        cure = "pass a function, such as lambda c: c['d'] > np.timedelta64(5, 's')"
    elif "text" in kinds:
        cure = "write a text in quotes, or a number without"
    return f"compares {_named(left.kind)} with {_named(right.kind)}, which are never equal: {cure}"
