"""The dtypes that a leaf may have, and their names in a manifest.

The dtype of a leaf is a ``numpy.dtype``, or the Python type ``bytes`` or ``str`` for strings of any length.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import FormatError, InvalidTypeError

DType = np.dtype[Any] | type[bytes] | type[str]

# The bytes of these dtypes depend on the machine.
_LONG_DOUBLES = (np.dtype(np.longdouble), np.dtype(np.clongdouble))
_NAMED_KINDS = frozenset("biufc")
# Only these names are passed to numpy: it accepts many others, such as "i4,f8" and names that warn.
_KNOWN = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)|[|<][SU][0-9]{1,10}|<[Mm]8(\[[0-9]*[A-Za-z]+\])?",
    re.ASCII,
)
_ML_DTYPES = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "int2",
    "int4",
    "uint2",
    "uint4",
    "int1",
    "uint1",
    "complex32",
    "bcomplex32",
]


def is_string(dtype: DType) -> bool:
    """Return whether values of this dtype are strings of any length."""
    return dtype is bytes or dtype is str


def check(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype as it is stored, little-endian; raise if arrays of it cannot be stored."""
    dtype = dtype.newbyteorder("<")
    if dtype.name in _ML_DTYPES and dtype.kind in "VWfiu":
        return dtype
    if dtype.kind == "O":
        raise InvalidTypeError(
            "arrays of dtype object are not stored: they could only be pickled. For strings, declare "
            "ArraySpec(bytes, shape) or ArraySpec(str, shape) as element_spec; else convert to a numeric dtype"
        )
    if dtype.kind not in "biufcSUMm" or dtype.hasobject:
        raise InvalidTypeError(
            f"dtype {dtype} is not stored: use a numeric, boolean, datetime or fixed-width string dtype, and a dict "
            "instead of a structured dtype"
        )
    if dtype.itemsize == 0:
        raise InvalidTypeError(f"dtype {dtype} has a size of 0 bytes: use one with a size")
    if dtype in _LONG_DOUBLES and dtype.itemsize > 8 * (1 + (dtype.kind == "c")):
        raise InvalidTypeError(f"dtype {dtype} differs from machine to machine: convert to float64 or complex128")
    return dtype


def is_numpys(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype belongs to numpy, not to ml_dtypes."""
    return dtype.name not in _ML_DTYPES


def number_kind(dtype: np.dtype[Any]) -> str:
    """Return the letter of the kind of a dtype, such as ``i`` or ``f``: numpy's own, also for dtypes of ml_dtypes."""
    if dtype.name not in _ML_DTYPES:
        return dtype.kind
    return next(kind for kind in ("float", "complex", "uint", "int") if kind in dtype.name)[0]


def to_name(dtype: DType) -> str:
    """Return the name of a dtype in a manifest, such as ``uint8``, ``bfloat16``, ``<M8[ns]`` or ``bytes``."""
    if dtype is bytes:
        return "bytes"
    if dtype is str:
        return "str"
    stored = np.dtype(dtype).newbyteorder("<")
    if stored.kind in _NAMED_KINDS or stored.name in _ML_DTYPES:
        return stored.name
    return stored.str


def from_name(name: str) -> DType:
    """Return the dtype of a name in a manifest: the inverse of :func:`to_name`."""
    if name == "bytes":
        return bytes
    if name == "str":
        return str
    try:
        if name in _ML_DTYPES:
            import ml_dtypes

            known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return known
        if not _KNOWN.fullmatch(name):
            raise TypeError("no such name")
        return np.dtype(name)
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise FormatError(
            f"unknown dtype {name!r}: if a newer release wrote it, update cachelayer, or numpy and ml_dtypes"
        ) from error


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in little-endian byte order; numpy's StringDType, which has no byte order, as it is."""
    return dtype if dtype.kind == "T" else dtype.newbyteorder("<")


def canonical_bytes(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an array as contiguous and little-endian memory, without a copy if it is so already."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def plain_scalar(scalar: NDArray[Any]) -> bool | int | float | complex | str:
    """Return a scalar as a value of Python's own types, dates and durations as text."""
    kind = number_kind(scalar.dtype)
    if kind in "Mm":
        # A date without a unit has no text.
        has_unit = np.datetime_data(scalar.dtype)[0] != "generic" or np.isnat(scalar)
        return str(scalar[()]) if has_unit else str(scalar.view(np.int64)[()])
    types: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
    value: bool | int | float | complex = types[kind](scalar[()])
    return value
