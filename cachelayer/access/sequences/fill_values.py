"""Values that stand between or after others: separators and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError
from cachelayer.records import dtypes


def checked_fill(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a value that a user passed, as an array without dimensions.

    Raises:
        InvalidArgumentError: if the dtype cannot hold it.
        InvalidTypeError: if it is of another kind.
    """
    kind = dtypes.number_kind(dtype)
    made: NDArray[Any] | None = None
    if kind == "b" and isinstance(value, (bool, np.bool_)):
        made = np.array(bool(value))
    elif kind == "f" and isinstance(value, (float, np.floating)):
        made = _rounded(float(value), dtype)
    elif kind in "iuf":
        number = integer(name, value)
        made = _rounded(number, dtype) if kind == "f" else _cast(number, dtype)
    elif isinstance(value, int) and value == 0:
        made = np.zeros((), dtype)
    if made is None:
        raise InvalidArgumentError(f"{name} {value!r}: it is not a value of dtype {dtype}")
    return made


def _rounded(number: float, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return a number as an array of a float dtype; None if it is too large."""
    try:
        with np.errstate(over="ignore"):
            made = np.array(float(number)).astype(dtype)
    except OverflowError:
        return None
    return made if np.isfinite(made.astype(np.float64)) or not np.isfinite(float(number)) else None


def _cast(number: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an integer as an array of an integer dtype; None if it does not fit."""
    for wide in (np.int64, np.uint64):
        if np.iinfo(wide).min <= number <= np.iinfo(wide).max:
            made = np.array(number, wide).astype(dtype)
            return made if int(made) == number else None
    return None


def fill_hex(value: NDArray[Any] | None) -> str | None:
    """Return the bytes of a value, little-endian, in hexadecimal."""
    return None if value is None else dtypes.canonical_bytes(value).tobytes().hex()
