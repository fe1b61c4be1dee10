"""Encode and decode the flat values of a leaf: numbers unchanged, strings as lengths and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cachelayer.records import dtypes
from cachelayer.records.column import Flat
from cachelayer.records.dtypes import DType
from cachelayer.records.memory import splits_of

_U8 = np.dtype(np.uint8)
_U32 = np.dtype("<u4")
_LONG_STRING = 512


def encode_strings(strings: Sequence[Any]) -> Flat:
    """Return ``bytes`` or ``str`` as rows of bytes; str as UTF-8, with lone surrogates kept."""
    raw = [item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item for item in strings]
    values = np.frombuffer(b"".join(raw), np.uint8)
    return Flat(values, splits_of(np.fromiter(map(len, raw), np.int64, len(raw))))


def decode_strings(flat: Flat, dtype: DType) -> list[Any]:
    """Return the strings of rows of bytes; the inverse of ``encode_strings``."""
    splits = flat.splits.tolist()
    # For short strings, slicing bytes is quicker; for long ones, saving a copy is.
    if flat.values.size > _LONG_STRING * len(splits):
        memory = memoryview(np.ascontiguousarray(flat.values).data)
        pieces = [bytes(memory[start:stop]) for start, stop in pairwise(splits)]
    else:
        raw = flat.values.tobytes()
        pieces = [raw[start:stop] for start, stop in pairwise(splits)]
    return [piece.decode("utf-8", "surrogatepass") for piece in pieces] if dtype is str else pieces


class Values:
    """Translates values of one dtype, any number in a record, to and from the variable parts that store them."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._is_string = dtypes.is_string(dtype)
        self.array_dtype: np.dtype[Any] = np.dtype(object) if self._is_string else np.dtype(dtype)
        self.parts: tuple[np.dtype[Any], ...] = (_U32, _U8) if self._is_string else (self.array_dtype,)

    def zeros(self, shape: Sequence[int]) -> np.ndarray[Any, np.dtype[Any]]:
        """Return an array of zeros, or of empty strings."""
        if self._is_string:
            return np.full(shape, b"" if self._dtype is bytes else "", object)
        return np.zeros(shape, self.array_dtype)

    def encode(self, flat: Flat) -> tuple[Flat, ...]:
        if not self._is_string:
            return (flat,)
        data = encode_strings(flat.values.tolist())
        lengths = Flat(data.lengths.astype(_U32), flat.splits)
        return lengths, Flat(data.values, data.splits[flat.splits])

    def decode(self, parts: tuple[Flat, ...]) -> Flat:
        if not self._is_string:
            return parts[0]
        lengths, data = parts
        strings = decode_strings(Flat(data.values, splits_of(lengths.values)), self._dtype)
        return Flat(np.fromiter(strings, dtype=object, count=len(strings)), lengths.splits)
