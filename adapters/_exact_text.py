"""Check floats that are read from text: a fraction or exponent may be rounded, an integer never."""

from __future__ import annotations

from decimal import Decimal
from math import isinf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_INTEGER = r"^[-+]?[0-9]+$"
_NOT_ZERO = r"^[-+]?[0.]*[1-9]"


def fits_float(number: int | Decimal, kind: pa.DataType) -> bool:
    """Return whether a float type can hold a number: an integer exactly, a fraction neither as 0 nor as infinity."""
    with np.errstate(over="ignore", under="ignore"):
        try:
            stored = float(np.dtype(kind.to_pandas_dtype()).type(float(number)))
        except OverflowError:
            return False
    if isinf(stored):
        return isinstance(number, Decimal) and number.is_infinite()
    return stored == number if isinstance(number, int) else bool(stored) or not number


def wrong_float(texts: pa.Array, numbers: pa.Array) -> int:
    """Return the place of the first text that its float does not stand for; -1 if there is none.

    Args:
        texts: the numbers as written, null for null.
        numbers: the floats that Arrow read from them.
    """
    wide = numbers.cast(pa.float64())
    whole = 2.0 ** (np.finfo(numbers.type.to_pandas_dtype()).nmant + 1)
    lost = pc.or_(
        pc.and_(pc.is_inf(wide), pc.match_substring_regex(texts, "[0-9]")),
        pc.and_(pc.equal(wide, 0.0), pc.match_substring_regex(texts, _NOT_ZERO)),
    )
    large = pc.and_(pc.greater_equal(pc.abs(wide), whole), pc.match_substring_regex(texts, _INTEGER))
    for place in np.flatnonzero(_mask(lost) | _mask(large)):
        text, number = texts[int(place)].as_py(), wide[int(place)].as_py()
        if isinf(number) or not number or Decimal(text) != Decimal(number):
            return int(place)
    return -1


def _mask(flags: pa.Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = pc.fill_null(flags, fill_value=False).to_numpy(
        zero_copy_only=False
    )
    return mask
