"""Leaves of one part: numbers of known shape, numbers of one varying dimension, a string, a value of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records import dtypes, json_text
from cachelayer.records.conform import conform, conform_batch, is_plain, same_arrays, stacked_rows
from cachelayer.records.dtypes import DType
from cachelayer.records.layout import U8, LeafPart
from cachelayer.records.leaf_columns import FlatRows, PartRows, separate_rows_of
from cachelayer.records.memory import splits_of
from cachelayer.records.spec import LeafSpec
from cachelayer.records.tree import describe
from cachelayer.records.values import Ragged, wrong_row

_LONG_STRING = 512


class FixedLeaf:
    """Numbers of known shape: one fixed part."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self._shape = tuple(dim or 0 for dim in spec.shape)
        self.parts: tuple[LeafPart, ...] = (LeafPart(self._dtype, self._shape),)

    def filler(self) -> Any:
        return np.zeros(self._shape, self._dtype)

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        stacked = stacked_rows(rows, self._dtype, self._shape)
        if stacked is None:
            # Some rows have to be converted, or do not fit.
            stacked = np.empty((len(rows), *self._shape), self._dtype)
            for index, row in enumerate(rows):
                stacked[index] = conform(self._spec, row, index)
        return (stacked,)

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        if isinstance(batch, Ragged) or (isinstance(batch, np.ndarray) and not is_plain(batch)):
            return self.encode(list(batch))
        return (conform_batch(self._spec, batch),)

    def value(self, *parts: NDArray[Any]) -> Any:
        return parts[0] if self._shape else parts[0][()]

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        return separate_rows_of(parts[0])

    def batch(self, parts: tuple[Any, ...]) -> Any:
        return parts[0]


class VaryingLeaf:
    """Numbers of one dimension whose length varies: one varying part."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self.parts: tuple[LeafPart, ...] = (LeafPart(self._dtype),)

    def filler(self) -> Any:
        return np.empty(0, self._dtype)

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        if not same_arrays(rows, self._dtype, 1):
            rows = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        return (FlatRows.of_rows(rows, self._dtype),)

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        values: Any = batch.values if isinstance(batch, Ragged) else batch
        has_dtype = is_plain(values) and dtypes.little_endian(values.dtype) == self._dtype
        if has_dtype and isinstance(batch, Ragged) and values.ndim == 1 and wrong_row(batch) is None:
            splits = batch.row_splits.astype(np.int64)
            return (FlatRows(values[splits[0] : splits[-1]], splits - splits[0]),)
        if has_dtype and not isinstance(batch, Ragged) and values.ndim == 2:
            return (FlatRows(values.reshape(-1), np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]),)
        return self.encode(list(batch))

    def value(self, *parts: NDArray[Any]) -> Any:
        return parts[0]

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        return separate_rows_of(parts[0])

    def batch(self, parts: tuple[Any, ...]) -> Any:
        return Ragged(parts[0].values, parts[0].splits)


class StringLeaf:
    """One ``bytes`` or ``str``: its bytes are one varying part."""

    parts: tuple[LeafPart, ...] = (LeafPart(U8),)

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec

    def filler(self) -> Any:
        return b"" if self._spec.dtype is bytes else ""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        if set(map(type, rows)) != {self._spec.dtype}:
            rows = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        lengths, data = bytes_of_strings(rows)
        return (FlatRows(data, splits_of(lengths)),)

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        return self.encode(list(batch))

    def value(self, *parts: NDArray[Any]) -> Any:
        if self._spec.dtype is str and parts[0].size > _LONG_STRING:
            # A long text is decoded in place; of a short one, a copy of the bytes takes less time.
            return str(parts[0].data, "utf-8", "surrogatepass")
        data = parts[0].tobytes()
        return data.decode("utf-8", "surrogatepass") if self._spec.dtype is str else data

    def values(self, parts: tuple[Any, ...]) -> list[Any]:
        return strings_of_bytes(parts[0], self._spec.dtype)

    def batch(self, parts: tuple[Any, ...]) -> Any:
        rows = self.values(parts)
        return np.fromiter(rows, dtype=object, count=len(rows))


class JsonLeaf:
    """A value of JSON: the bytes of its canonical text are one varying part."""

    parts: tuple[LeafPart, ...] = (LeafPart(U8),)

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec

    def filler(self) -> Any:
        return None

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        lengths, data = bytes_of_strings([self._text(row, index) for index, row in enumerate(rows)])
        return (FlatRows(data, splits_of(lengths)),)

    def _text(self, value: Any, index: int) -> str:
        try:
            return json_text.text_of(value)
        except InvalidTypeError as error:
            raise ElementError(self._spec.describe(), describe(value), record=index, hint=str(error)) from error

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        return self.encode(list(batch))

    def value(self, *parts: NDArray[Any]) -> Any:
        return json_text.value_of(parts[0].tobytes())

    def values(self, parts: tuple[Any, ...]) -> list[Any]:
        return [json_text.value_of(text) for text in strings_of_bytes(parts[0], str)]

    def batch(self, parts: tuple[Any, ...]) -> list[Any]:
        return self.values(parts)


def bytes_of_strings(strings: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the byte length of each string, and the bytes of all; ``str`` is UTF-8 that may have lone surrogates."""
    raw = [str.encode(item, "utf-8", "surrogatepass") if isinstance(item, str) else item for item in strings]
    return np.fromiter(map(len, raw), np.int64, len(raw)), np.frombuffer(b"".join(raw), U8)


def strings_of_bytes(rows: FlatRows, dtype: DType) -> list[Any]:
    """Return the string of each row of bytes: ``bytes`` or ``str``."""
    splits = rows.splits.tolist()
    # For short strings, slicing bytes is quicker; for long ones, saving a copy is.
    if rows.values.size > _LONG_STRING * len(splits):
        memory: Any = memoryview(np.ascontiguousarray(rows.values).data)
    else:
        memory = rows.values.tobytes()
    if dtype is str:
        return [str(memory[start:stop], "utf-8", "surrogatepass") for start, stop in pairwise(splits)]
    return [bytes(memory[start:stop]) for start, stop in pairwise(splits)]
