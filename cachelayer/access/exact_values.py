"""Arithmetic and comparisons of columns that give what Python gives for each row, or refuse it: pure functions.

Integers never wrap around and are never rounded: columns that fit are int64 or uint64, others are Python's integers.
What has no value in a row, such as a quotient by zero, makes the row invalid, as None does. Kinds that are never equal,
such as text and bytes, are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.dtypes import DType, is_numpys, number_kind

_INT64, _UINT64 = (-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)
_EXACT_IN_FLOAT = (-(1 << 53), 1 << 53)
"""Float64 holds every integer between these."""
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex", "U": "text", "S": "bytes", "M": "time"}
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
    """A value for each row, or one for all.

    Args:
        kind: ``bool``, ``int``, ``float``, ``complex``, ``text``, ``bytes``, ``time`` or ``duration``; ``dict`` of
            which only ``is None`` can be asked.
        values: an array of shape ``[rows]``, or a value of Python.
        valid: in which rows there is a value: an array of bools, or one.
        dtype: that of a field of floats.
    """

    kind: str
    values: Any
    valid: Any = True
    dtype: np.dtype[Any] | None = None

    @property
    def is_literal(self) -> bool:
        return not isinstance(self.values, np.ndarray)


class NoValueError(ValueError):
    """Operands do not fit together; the text says why, and what to write."""


def column(dtype: DType, values: Any, valid: Any = True) -> Operand:
    """Return a column of a field.

    Args:
        dtype: the dtype of the field.
        values: its values.
        valid: in which rows there is one.
    """
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
    """Return the values with the other sign.

    Raises:
        NoValueError: if they are no numbers.
    """
    if operand.kind == "float":
        return Operand("float", -operand.values, operand.valid)
    return compute(operator.sub, literal(0), operand)


def compute(how: Callable[[Any, Any], Any], left: Operand, right: Operand) -> Operand:
    """Return the results of an operator of numbers.

    Args:
        how: one of ``operator.add``, ``sub``, ``mul``, ``truediv``, ``floordiv`` and ``mod``.
        left, right: integers or floats.

    Raises:
        NoValueError: if one is no number, or a literal divisor is zero.
    """
    for operand in (left, right):
        if operand.kind not in ("int", "float"):
            raise NoValueError(f"is no arithmetic of numbers: one side is {_named(operand.kind)}")
    valid = left.valid & right.valid
    if how in (operator.truediv, operator.floordiv, operator.mod):
        is_zero = right.values == 0
        if right.is_literal and is_zero:
            raise NoValueError("divides by zero")
        if np.any(is_zero):
            valid = valid & ~is_zero
            right = Operand(right.kind, np.where(is_zero, right.values.dtype.type(1), right.values))
    is_int = left.kind == right.kind == "int"
    try:
        if not is_int:
            with np.errstate(all="ignore"):
                return Operand("float", how(_floats(left), _floats(right)), valid)
        if how is operator.truediv:
            pair = _integers(left, right, _EXACT_IN_FLOAT)
            quotients = how(*pair)
            return Operand(
                "float", quotients.astype(np.float64) if isinstance(quotients, np.ndarray) else quotients, valid
            )
        return Operand("int", how(*_integers(left, right, _result_bounds(how, left, right))), valid)
    except OverflowError as error:
        raise NoValueError(f"is too large for a float: {error}") from error


def _floats(operand: Operand) -> Any:
    values = operand.values
    return float(values) if operand.is_literal else values.astype(np.float64)


def _bounds(operand: Operand) -> tuple[int, int]:
    """Return the least and the largest integer."""
    values = operand.values
    if operand.is_literal:
        return values, values
    return (int(values.min()), int(values.max())) if len(values) else (0, 0)


def _result_bounds(how: Callable[[Any, Any], Any], left: Operand, right: Operand) -> tuple[int, int]:
    """Return bounds of what an operator of integers gives."""
    (a, b), (c, d) = _bounds(left), _bounds(right)
    if how is operator.add:
        return a + c, b + d
    if how is operator.sub:
        return a - d, b - c
    if how is operator.mul:
        products = (a * c, a * d, b * c, b * d)
        return min(products), max(products)
    most = max(abs(a), abs(b)) if how is operator.floordiv else max(abs(c), abs(d))
    return -most, most


def _integers(left: Operand, right: Operand, result: tuple[int, int]) -> tuple[Any, Any]:
    """Return integers that an operator takes without loss: in 64 bits if the result fits too, else as Python's.

    With the limits of exact floats as result, integers that these hold are float64.
    """
    bounds = [_bounds(left), _bounds(right)]
    if result == _EXACT_IN_FLOAT:
        return _cast(left, right, np.float64 if _fit(bounds, _EXACT_IN_FLOAT) else object)
    for limits, dtype in ((_INT64, np.int64), (_UINT64, np.uint64)):
        if _fit([*bounds, result], limits):
            return _cast(left, right, dtype)
    return _cast(left, right, object)


def _fit(bounds: Sequence[tuple[int, int]], limits: tuple[int, int]) -> bool:
    return all(limits[0] <= low and high <= limits[1] for low, high in bounds)


def _cast(left: Operand, right: Operand, dtype: Any) -> tuple[Any, Any]:
    """Return both as a dtype; literals stay as they are, for numpy gives them the dtype of the other."""
    first, second = (
        each.values if each.is_literal else each.values.astype(dtype, copy=False) for each in (left, right)
    )
    return first, second


def compare(how: Callable[[Any, Any], Any], left: Operand, right: Operand) -> tuple[Any, Any]:
    """Return for each row whether a comparison holds, and whether it can be made.

    Args:
        how: one of ``operator.eq``, ``ne``, ``lt``, ``le``, ``gt`` and ``ge``.
        left, right: operands of one kind, or two of numbers; a text may stand for a time, such as ``"2026-01-31"``.

    Raises:
        NoValueError: if such kinds are never equal, or have no order.
    """
    left, right = _with_times(left, right), _with_times(right, left)
    kinds = {left.kind, right.kind}
    if "dict" in kinds:
        raise NoValueError("is a dict, which is None or not: write 'is None', or compare a field of it")
    if len(kinds) > 1 and not kinds <= {"int", "float", "complex"}:
        raise NoValueError(_why_never(left, right))
    if "complex" in kinds and how in _ORDERS:
        raise NoValueError("has complex numbers, which have no order: compare with == or !=")
    if kinds <= {"time", "duration"}:
        holds = _compare_times(how, left, right)
    elif kinds == {"float"}:
        holds = how(_as_field(left, right), _as_field(right, left))
    elif kinds == {"int", "float"}:
        holds = how(*_mixed(left, right))
    else:
        # numpy compares integers of any two dtypes exactly.
        holds = how(left.values, right.values)
    return np.asarray(holds, np.bool_), left.valid & right.valid


def matches(how: str, operand: Operand, parts: Sequence[str | bytes]) -> Operand:
    """Return whether texts begin with one of some parts, end with one, or have one in them.

    Args:
        how: ``startswith``, ``endswith`` or ``in``.
        operand: a field of text or bytes.
        parts: of the same type.

    Raises:
        NoValueError: if they are not.
    """
    if operand.kind not in ("text", "bytes"):
        raise NoValueError(f"has {how} of {_named(operand.kind)}: it is of text and bytes")
    for part in parts:
        if literal(part).kind != operand.kind:
            raise NoValueError(_why_never(operand, literal(part)))
    values = operand.values.tolist()
    if how == "in":
        holds = [any(part in value for part in parts) for value in values]
    else:
        holds = [getattr(value, how)(tuple(parts)) for value in values]
    return Operand("bool", np.array(holds, np.bool_), operand.valid)


def _mixed(left: Operand, right: Operand) -> tuple[Any, Any]:
    """Return an integer and a float so that they are compared exactly, as Python does."""
    whole = left if left.kind == "int" else right
    return _cast(left, right, np.float64 if _fit([_bounds(whole)], _EXACT_IN_FLOAT) else object)


def _as_field(operand: Operand, other: Operand) -> Any:
    """Return floats in 64 bits; a literal such as 0.1 as the value of the other, a field, that is written so."""
    values = operand.values
    if not operand.is_literal:
        return values.astype(np.float64, copy=False)
    if other.dtype is None:
        return values
    with np.errstate(over="ignore"):
        nearest = other.dtype.type(values)
    # 0.1 is no float32, but the one that is written so; 2049.0 is no float16, and none is written so.
    return float(nearest) if float(str(nearest)) == values else values


def _with_times(operand: Operand, other: Operand) -> Operand:
    """Return a literal text as a time, if it stands beside times."""
    if other.kind != "time" or operand.kind != "text" or not operand.is_literal:
        return operand
    try:
        time = np.datetime64(operand.values)
    except ValueError as error:
        raise NoValueError(f"has {operand.values!r}, which is no time such as '2026-01-31': {error}") from error
    if np.isnat(time):
        raise NoValueError(f"has {operand.values!r}, which is no time such as '2026-01-31'")
    return Operand("time", time.reshape(1))


def _compare_times(how: Callable[[Any, Any], Any], left: Operand, right: Operand) -> Any:
    """Compare times, or durations, of any two units as integers. What is no time equals nothing, as NaN."""
    counts = [_counts(each.values) for each in (left, right)]
    units = [unit for _, unit in counts]
    if units[0] != units[1] and None in units:
        raise NoValueError("has times without a unit: compare them with times that have none either")
    common = gcd(*(unit or 1 for unit in units))
    scaled = [compute(operator.mul, Operand("int", count), literal((unit or 1) // common)) for count, unit in counts]
    holds = how(scaled[0].values, scaled[1].values)
    missing = np.isnat(left.values) | np.isnat(right.values)
    return np.where(missing, how is operator.ne, holds)


def _counts(times: NDArray[Any]) -> tuple[NDArray[np.int64], int | None]:
    """Return times as counts of a unit, and the unit in attoseconds; None for times without a unit."""
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
    return names.get(kind, f"a {kind}")


def _why_never(left: Operand, right: Operand) -> str:
    """Return why two kinds cannot be compared, and what to write."""
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
    elif "time" in kinds:
        cure = "write a time such as '2026-01-31'"
    elif "duration" in kinds:
        cure = "pass a function, such as lambda c: c['d'] > np.timedelta64(5, 's')"
    elif "text" in kinds:
        cure = "write a text in quotes, or a number without"
    return f"compares {_named(left.kind)} with {_named(right.kind)}, which are never equal: {cure}"
