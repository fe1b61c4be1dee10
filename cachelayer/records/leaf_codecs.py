r"""The codecs of the kinds of leaves, and the parts that a record stores of each.

================  ============================  ================================  =====================================
codec             what it holds                 fixed parts                       varying parts
================  ============================  ================================  =====================================
FixedLeafCodec    numbers of known shape        the array                         \-
VaryingLeafCodec  numbers of shape ``[None]``   \-                                values
StringLeafCodec   one ``bytes`` or ``str``      \-                                its bytes
JsonLeafCodec     a value of JSON               \-                                the bytes of its text
ArrayLeafCodec    other arrays                  u32: the shape                    values
RaggedLeafCodec   a ragged array                u32: shape of the inner values    u32 row lengths of each level; values
SparseLeafCodec   a sparse array                i64: the dense shape              i64 places, value by value; values
VideoLeafCodec    the file of a video           u32: its CRC32C                   its index; the file, behind all others
================  ============================  ================================  =====================================

*values* are one part of the dtype. Of strings they are two parts: the u32 byte lengths, and the bytes of all strings.
So there are two primitives, and everything else is several of them::

    codec and spec                       value                            parts
    FixedLeafCodec,   int16 [2]          [1, 2]                           0100 0200
    VaryingLeafCodec, int16 [None]       [1, 2, 3]                        0100 0200 0300
    StringLeafCodec,  str                "hé"                             68 c3a9
    JsonLeafCodec                        {"b": 1, "a": [2]}               {"a":[2],"b":1}
    ArrayLeafCodec,   int16 [None, 2]    [[1, 2]]                         1 2 | 0100 0200
    ArrayLeafCodec,   str [None]         ["a", "bc"]                      2 | 1 2 | abc
    RaggedLeafCodec,  int16 [None, None] [[1], [], [2, 3]]                (no inner shape) | 1 0 2 | 0100 0200 0300
    SparseLeafCodec,  int16 [None]       7 at place 5 of 9                9 | 5 | 0700

A codec translates many values at once, for batches, and single values, for ``ref[i]``::

    rows, a list of values  -- encode -------->           -- value, values -->  values of rows
    batch, stacked values   -- encode_batch -->  parts    -- batch ---------->  a batch
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records.layout import U8, LeafPart
from cachelayer.records.leaf_columns import (
    FlatRows,
    LeafCodec,
    PartRows,
    bytes_of_strings,
    separate_rows_of,
    strings_of_bytes,
)
from cachelayer.specs import dtypes
from cachelayer.specs.spec import JsonSpec, LeafSpec, RaggedSpec, SparseSpec, VideoSpec, describe_leaf, is_static
from cachelayer.specs.tree import describe
from cachelayer.specs.values import Ragged, wrong_row
from cachelayer.support.memory import splits_of


def leaf_codec_for(spec: LeafSpec) -> LeafCodec:
    """Return the codec of a leaf of this spec."""
    if isinstance(spec, JsonSpec):
        return JsonLeafCodec(spec)
    if isinstance(spec, VideoSpec):
        from cachelayer.records.video_codec import VideoLeafCodec

        return VideoLeafCodec(spec)
    if not isinstance(spec, (RaggedSpec, SparseSpec)):
        if dtypes.is_string(spec.dtype) and not spec.shape:
            return StringLeafCodec(spec)
        if not dtypes.is_string(spec.dtype) and is_static(spec):
            return FixedLeafCodec(spec)
        if not dtypes.is_string(spec.dtype) and spec.shape == (None,):
            return VaryingLeafCodec(spec)
    from cachelayer.records.composite_codecs import composite_codec_for

    return composite_codec_for(spec)


class FixedLeafCodec(LeafCodec):
    """Numbers of known shape: one fixed part."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self._shape = tuple(dim or 0 for dim in spec.shape)
        self.parts: tuple[LeafPart, ...] = (LeafPart(self._dtype, self._shape),)

    def filler(self) -> Any:
        return np.zeros(self._shape, self._dtype)

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        from cachelayer.records.conform import conform, stacked_rows

        stacked = stacked_rows(rows, self._dtype, self._shape)
        if stacked is None:
            # Some rows have to be converted, or do not fit.
            stacked = np.empty((len(rows), *self._shape), self._dtype)
            for index, row in enumerate(rows):
                stacked[index] = conform(self._spec, row, index)
        return (stacked,)

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        from cachelayer.records.conform import conform_batch, is_plain

        if isinstance(batch, Ragged) or (isinstance(batch, np.ndarray) and not is_plain(batch)):
            return self.encode(list(batch))
        return (conform_batch(self._spec, batch),)

    def value(self, *parts: NDArray[Any]) -> Any:
        return parts[0] if self._shape else parts[0][()]

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        return separate_rows_of(parts[0])

    def batch(self, parts: tuple[Any, ...]) -> Any:
        return parts[0]


class VaryingLeafCodec(LeafCodec):
    """Numbers of one dimension whose length varies: one varying part."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self.parts: tuple[LeafPart, ...] = (LeafPart(self._dtype),)

    def filler(self) -> Any:
        return np.empty(0, self._dtype)

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        from cachelayer.records.conform import conform, same_arrays

        if not same_arrays(rows, self._dtype, 1):
            rows = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        return (FlatRows.of_rows(rows, self._dtype),)

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        from cachelayer.records.conform import is_plain

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


class StringLeafCodec(LeafCodec):
    """One ``bytes`` or ``str``: its bytes are one varying part."""

    parts: tuple[LeafPart, ...] = (LeafPart(U8),)

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec

    def filler(self) -> Any:
        return b"" if self._spec.dtype is bytes else ""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        if set(map(type, rows)) != {self._spec.dtype}:
            from cachelayer.records.conform import conform

            rows = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        lengths, data = bytes_of_strings(rows)
        return (FlatRows(data, splits_of(lengths)),)

    def value(self, *parts: NDArray[Any]) -> Any:
        if self._spec.dtype is str:
            return str(parts[0].data, "utf-8", "surrogatepass")
        return parts[0].tobytes()

    def values(self, parts: tuple[Any, ...]) -> list[Any]:
        return strings_of_bytes(parts[0], self._spec.dtype)


class JsonLeafCodec(LeafCodec):
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
        from cachelayer.specs import json_text

        try:
            return json_text.text_of(value)
        except InvalidTypeError as error:
            raise ElementError(describe_leaf(self._spec), describe(value), record=index, hint=str(error)) from error

    def value(self, *parts: NDArray[Any]) -> Any:
        from cachelayer.specs import json_text

        return json_text.value_of(parts[0].tobytes())

    def values(self, parts: tuple[Any, ...]) -> list[Any]:
        from cachelayer.specs import json_text

        return [json_text.value_of(text) for text in strings_of_bytes(parts[0], str)]

    def batch(self, parts: tuple[Any, ...]) -> list[Any]:
        return self.values(parts)
