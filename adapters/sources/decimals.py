"""Decimals of Arrow as numbers: float64, correctly rounded, or integers that count units of the last digit; and back.

::

    decimal128(5, 2)    1.10    -20.00    null
    float64             1.1     -20.0     0.0    the float64 that is nearest to each
    int64               110     -2000     0      exact
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.support.extras import packages_of

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa
    import pyarrow.compute as pc

_EXACT = 1 << 53
"""Integers up to here are float64 too."""
_EXACT_SCALE = 22
"""Powers of ten up to this one are float64 too."""


def numbers_of(array: pa.Array, dtype: np.dtype[Any]) -> pa.Array:
    """Return decimals as numbers of a dtype; raise an ArrowInvalid if it does not hold one."""
    nulls = pc.is_null(array).to_numpy(zero_copy_only=False)
    words = np.where(nulls[:, None], 0, _words(array))
    units = words[:, 0]
    is_long = (words[:, 1:] != (units >> 63)[:, None]).any(axis=1)
    scale = array.type.scale
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        is_too_large = is_long | (units < limits.min) | (units > min(limits.max, np.iinfo(np.int64).max))
        if is_too_large.any():
            value = array[int(np.argmax(is_too_large))]
            raise pa.ArrowInvalid(f"{value} is more than {dtype} holds in units of 10**-{scale}")
        return pa.array(units.astype(dtype), mask=nulls)
    floats = units.astype(np.float64)
    if abs(scale) > _EXACT_SCALE:
        is_long[:] = ~nulls
    # A quotient of two numbers that are exact is rounded once.
    floats = floats * 10.0**-scale if -_EXACT_SCALE <= scale < 0 else floats / 10.0 ** min(max(scale, 0), _EXACT_SCALE)
    for row in np.flatnonzero(is_long | (np.abs(units) > _EXACT)).tolist():
        whole = int.from_bytes(words[row].tobytes(), "little", signed=True)
        floats[row] = whole / 10**scale if scale > 0 else float(whole * 10**-scale)
    return pa.array(floats.astype(dtype), mask=nulls)


def decimals_of(kind: pa.DataType, values: NDArray[Any], nulls: NDArray[np.bool_] | None) -> pa.Array:
    """Return numbers, as :func:`numbers_of` makes them, as decimals; raise an ArrowInvalid if a number is none."""
    present = np.ones(len(values), np.bool_) if nulls is None else ~nulls
    values = np.where(present, values, 0)
    is_short = np.ones(len(values), np.bool_)
    units = values
    if values.dtype.kind == "f":
        with np.errstate(all="ignore"):
            rounded = np.rint(values * 10.0**kind.scale)
            # Below a quarter of what is exact, the error of the product does not reach the next integer.
            is_short = (np.abs(rounded) < _EXACT / 4) & (rounded / 10.0**kind.scale == values)
        units = np.where(is_short, rounded, 0)
    is_too_large = (np.abs(units.astype(np.float64)) >= 10.0**kind.precision) | (units > np.iinfo(np.int64).max)
    if is_too_large.any():
        raise pa.ArrowInvalid(f"{values[int(np.argmax(is_too_large))]} has more digits than {kind}")
    width = kind.bit_width // 8
    words = np.empty((len(values), max(1, width // 8)), np.int64)
    words[:, 0] = units.astype(np.int64)
    words[:, 1:] = (words[:, 0] >> 63)[:, None]
    for row in np.flatnonzero(~is_short).tolist():
        words[row] = np.frombuffer(
            _units(float(values[row]), kind).to_bytes(max(8, width), "little", signed=True), "<i8"
        )
    data = pa.py_buffer(words.astype(f"<i{min(width, 8)}"))
    return pa.Array.from_buffers(kind, len(values), [pa.array(present).buffers()[1], data])


def _units(value: float, kind: pa.DataType) -> int:
    units = round(Fraction(value) * Fraction(10) ** kind.scale) if np.isfinite(value) else 0
    if not np.isfinite(value) or float(Fraction(units) / Fraction(10) ** kind.scale) != value:
        raise pa.ArrowInvalid(f"{value!r} is no {kind}")
    if abs(units) >= 10**kind.precision:
        raise pa.ArrowInvalid(f"{value!r} has more digits than {kind}")
    return units


def _words(array: pa.Array) -> NDArray[np.int64]:
    """Return the integers of decimals, in 64 bits each, the lowest first."""
    width = array.type.bit_width // 8
    stored = np.frombuffer(array.buffers()[1] or b"", f"<i{min(width, 8)}").astype(np.int64, copy=False)
    size = max(1, width // 8)
    return stored[array.offset * size : (array.offset + len(array)) * size].reshape(-1, size)
