r"""The kinds of leaves: how each is taken apart into the parts that a record stores, and made of them again.

===============================  ======================================  ===================================
leaf                             fixed parts                             varying parts
===============================  ======================================  ===================================
numbers of known shape           the array                               \-
numbers of shape ``[None]``      \-                                      the values
one string                       \-                                      its bytes
value of JSON                    \-                                      the bytes of its text
other arrays                     uint32: the shape                       values
ragged array                     uint32: the shape of the inner values   uint32 row lengths of each level; values
sparse array                     int64: dense shape                      int64 indices, row by row; values
===============================  ======================================  ===================================

*values* is one part of the dtype; for strings it is two: uint32 byte lengths, then the bytes of all strings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records import dtypes, json_text
from cachelayer.records.conform import (
    conform,
    conform_batch,
    fits_shape,
    is_plain,
    ragged_of,
    same_arrays,
    stacked_rows,
)
from cachelayer.records.dtypes import DType
from cachelayer.records.layout import U8, U32, Flat, LeafPart, PartRows, listed
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.spec import ArraySpec, JsonSpec, LeafSpec, RaggedSpec, Shape, SparseSpec
from cachelayer.records.tree import describe
from cachelayer.records.values import Ragged, Sparse, wrong_row

_I64 = np.dtype("<i8")
_MAX_U32 = 2**32 - 1
_LONG_STRING = 512
Arrays = tuple[NDArray[Any], ...]


class Leaf(Protocol):
    """Translates one leaf between its values and its parts. No value here is None."""

    parts: tuple[LeafPart, ...]

    def filler(self) -> Any:
        """Return the value that is stored in place of None."""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        """Return the parts of these values.

        Raises:
            ElementError: if one does not fit; its record is the index of the value.
        """

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        """Return the parts of the rows of a batch: values stacked on a leading axis."""

    def value(self, *parts: NDArray[Any]) -> Any:
        """Return the value of one row; it may share the memory of the parts."""

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        """Return the value of each row, such that keeping one keeps little memory of others alive."""

    def stack(self, parts: tuple[Any, ...]) -> Any:
        """Return the values of all rows stacked on a leading axis."""


def leaf_of(spec: LeafSpec) -> Leaf:
    """Return how a leaf of this spec is stored."""
    if isinstance(spec, RaggedSpec):
        return RaggedLeaf(spec)
    if isinstance(spec, SparseSpec):
        return SparseLeaf(spec)
    if isinstance(spec, JsonSpec):
        return JsonLeaf(spec)
    if dtypes.is_string(spec.dtype):
        return ArrayLeaf(spec) if spec.shape else StringLeaf(spec)
    if spec.is_static:
        return FixedLeaf(spec)
    return VaryingLeaf(spec) if spec.shape == (None,) else ArrayLeaf(spec)


class FixedLeaf:
    """Numbers of known shape: the first primitive."""

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
        return listed(parts[0])

    def stack(self, parts: tuple[Any, ...]) -> Any:
        return parts[0]


class VaryingLeaf:
    """Numbers of one dimension, of a length that varies: the second primitive."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self.parts: tuple[LeafPart, ...] = (LeafPart(self._dtype),)

    def filler(self) -> Any:
        return np.empty(0, self._dtype)

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        if not same_arrays(rows, self._dtype, 1):
            rows = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        return (Flat.of_rows(rows, self._dtype),)

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        values: Any = batch.values if isinstance(batch, Ragged) else batch
        if not is_plain(values) or dtypes.little_endian(values.dtype) != self._dtype:
            return self.encode(list(batch))
        if isinstance(batch, Ragged):
            if values.ndim != 1 or wrong_row(batch) is not None:
                return self.encode(list(batch))
            splits = batch.row_splits.astype(np.int64)
            return (Flat(values[splits[0] : splits[-1]], splits - splits[0]),)
        if values.ndim != 2:
            return self.encode(list(batch))
        return (Flat(values.reshape(-1), np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]),)

    def value(self, *parts: NDArray[Any]) -> Any:
        return parts[0]

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        return listed(parts[0])

    def stack(self, parts: tuple[Any, ...]) -> Any:
        return Ragged(parts[0].values, parts[0].splits)


class StringLeaf:
    """One ``bytes`` or ``str``: the second primitive too."""

    parts: tuple[LeafPart, ...] = (LeafPart(U8),)

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec

    def filler(self) -> Any:
        return b"" if self._spec.dtype is bytes else ""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        if set(map(type, rows)) != {self._spec.dtype}:
            rows = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        lengths, data = _bytes_of(rows)
        return (Flat(data, splits_of(lengths)),)

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        return self.encode(list(batch))

    def value(self, *parts: NDArray[Any]) -> Any:
        if self._spec.dtype is str and parts[0].size > _LONG_STRING:
            return str(parts[0].data, "utf-8", "surrogatepass")
        data = parts[0].tobytes()
        return data.decode("utf-8", "surrogatepass") if self._spec.dtype is str else data

    def values(self, parts: tuple[Any, ...]) -> list[Any]:
        return _strings(parts[0], self._spec.dtype)

    def stack(self, parts: tuple[Any, ...]) -> Any:
        rows = self.values(parts)
        return np.fromiter(rows, dtype=object, count=len(rows))


class JsonLeaf:
    """A value of JSON, as the bytes of its canonical text: the second primitive too."""

    parts: tuple[LeafPart, ...] = (LeafPart(U8),)

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec

    def filler(self) -> Any:
        return None

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        lengths, data = _bytes_of([self._text(row, index) for index, row in enumerate(rows)])
        return (Flat(data, splits_of(lengths)),)

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
        return [json_text.value_of(text) for text in _strings(parts[0], str)]

    def stack(self, parts: tuple[Any, ...]) -> list[Any]:
        return self.values(parts)


class _Composite(ABC):
    """A leaf of several parts, taken apart and made row by row."""

    parts: tuple[LeafPart, ...]

    @abstractmethod
    def split(self, row: Any, index: int) -> Arrays:
        """Return the parts of one value, whose index errors name."""

    @abstractmethod
    def value(self, *parts: NDArray[Any]) -> Any:
        """See :class:`Leaf`."""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        columns = zip(*[self.split(row, index) for index, row in enumerate(rows)], strict=True)
        return tuple(
            Flat.of_rows(column, part.dtype)
            if part.shape is None
            else np.array(column, part.dtype).reshape(len(rows), *part.shape)
            for part, column in zip(self.parts, columns if len(rows) else [()] * len(self.parts), strict=True)
        )

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        return self.encode(list(batch))

    def of_flat(self, shapes: Ints, varying: Sequence[Flat]) -> tuple[PartRows, ...]:
        """Return the parts of rows that were flattened elsewhere.

        Args:
            shapes: of shape ``[rows, rank]``: the shape of each row; of ragged rows, that of their inner values.
            varying: the row lengths of each level, or the indices; then the values, which may be strings.
        """
        *flats, values = varying
        if values.values.dtype == object:
            lengths, data = _bytes_of(values.values.tolist())
            flats += [Flat(lengths, values.splits), Flat(data, splits_of(lengths)[values.splits])]
        else:
            flats.append(values)
        cast = [
            Flat(flat.values.astype(part.dtype, copy=False), flat.splits)
            for part, flat in zip(self.parts[1:], flats, strict=True)
        ]
        return (shapes.astype(self.parts[0].dtype), *cast)

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        return [self.value(*row) for row in zip(*map(listed, parts), strict=True)]


class ArrayLeaf(_Composite):
    """Arrays with several dimensions of which some are unknown, and arrays of strings."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self.parts = (LeafPart(U32, (len(spec.shape),)), *_value_parts(spec.dtype))

    def filler(self) -> Any:
        return _zeros(self._spec.dtype, [dim or 0 for dim in self._spec.shape])

    def split(self, row: Any, index: int) -> Arrays:
        array = conform(self._spec, row, index)
        return (_as_u32(self._spec, array.shape, index), *_split_values(self._spec.dtype, array))

    def value(self, *parts: NDArray[Any]) -> Any:
        return _joined_values(self._spec.dtype, parts[1:]).reshape(parts[0].tolist())

    def stack(self, parts: tuple[Any, ...]) -> Any:
        shape, dims = self._spec.shape, parts[0].astype(np.int64)
        values = _joined_values(self._spec.dtype, tuple(flat.values for flat in parts[1:]))
        if None not in shape:
            return values.reshape(len(dims), *(dim or 0 for dim in shape))
        levels = 1 + max(axis for axis, dim in enumerate(shape) if dim is None)
        splits, counts, owner = [], np.ones(len(dims), np.int64), np.arange(len(dims))
        for axis in range(levels):
            lengths = dims[owner, axis]
            splits.append(splits_of(lengths))
            counts = counts * dims[:, axis]
            # Of the innermost level, there is an owner for each value, and nobody asks for it.
            if axis + 1 < levels:
                owner = np.repeat(owner, lengths)
        inner = tuple(dim or 0 for dim in shape[levels:])
        ragged = Ragged.from_nested(values.reshape(int(counts.sum()), *inner), tuple(splits))
        return ragged if levels == 1 else replace(ragged, row_shapes=dims[:, :levels])


class RaggedLeaf(_Composite):
    """A ragged array: the row lengths of each level, then the flat values."""

    def __init__(self, spec: RaggedSpec) -> None:
        self._spec = spec
        self._inner = spec.shape[spec.ragged_rank + 1 :]
        self._first_value = 1 + spec.ragged_rank
        dims = LeafPart(U32, (len(self._inner),))
        self.parts = (dims, *[LeafPart(U32)] * spec.ragged_rank, *_value_parts(spec.dtype))

    def filler(self) -> Any:
        outer = np.zeros((self._spec.shape[0] or 0) + 1, self._spec.splits_dtype)
        values = _zeros(self._spec.dtype, [0, *(dim or 0 for dim in self._inner)])
        return Ragged.from_nested(values, (outer, *[outer[:1]] * (self._spec.ragged_rank - 1)))

    def split(self, row: Any, index: int) -> Arrays:
        spec = self._spec
        is_nested = isinstance(row, np.ndarray) and (row.ndim > 1 or row.dtype == object)
        if isinstance(row, (list, tuple)) or is_nested:
            try:
                row = ragged_of(spec, row, index)
            except InvalidTypeError as error:
                raise ElementError(spec.describe(), describe(row), record=index, hint=str(error)) from error
        if not isinstance(row, Ragged):
            raise ElementError(spec.describe(), describe(row), record=index, hint="Pass a cachelayer.Ragged.")
        flat, splits = _conform_values(spec, row.flat_values, self._inner, index), row.nested_row_splits
        counts = [*map(len, splits[1:]), len(flat) + 1]
        fits = (
            len(splits) == spec.ragged_rank
            and all(level.ndim == 1 and level.dtype.newbyteorder("<") == spec.splits_dtype for level in splits)
            and fits_shape(spec.shape[:1], (len(splits[0]) - 1,))
            and all(len(level) and level[0] == 0 and (np.diff(level) >= 0).all() for level in splits)
            and all(level[-1] == count - 1 for level, count in zip(splits, counts, strict=True))
        )
        if not fits:
            raise ElementError(spec.describe(), f"{row!r} with row splits {splits}", record=index)
        levels = [_as_u32(spec, np.diff(level), index) for level in splits]
        return (_as_u32(spec, flat.shape[1:], index), *levels, *_split_values(spec.dtype, flat))

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        return self._at_once(batch) if isinstance(batch, Ragged) and self._are_rows(batch) else self.encode(list(batch))

    def _are_rows(self, batch: Ragged) -> bool:
        """Return whether the rows of a batch are what the spec asks for, and differ only in their splits."""
        spec, values, levels = self._spec, batch.flat_values, batch.nested_row_splits[1:]
        return (
            spec.shape[0] is None
            and None not in self._inner
            and batch.row_shapes is None
            and len(levels) == spec.ragged_rank
            and all(level.dtype.newbyteorder("<") == spec.splits_dtype for level in levels)
            and is_plain(values)
            and dtypes.little_endian(values.dtype) == spec.dtype
            and values.shape[1:] == self._inner
            and wrong_row(batch) is None
        )

    def _at_once(self, batch: Ragged) -> tuple[PartRows, ...]:
        splits, values, levels = batch.row_splits.astype(np.int64), batch.values, []
        while isinstance(values, Ragged):
            within = splits - splits[0]
            inner = values.row_splits[splits[0] : splits[-1] + 1].astype(np.int64)
            levels.append(Flat(np.diff(inner), within))
            splits, values = inner[within], values.values
        flat = values[splits[0] : splits[-1]].reshape(-1)
        width = flat.size // max(1, int(splits[-1] - splits[0]))
        dims = np.tile(np.array(self._inner, np.int64), (len(batch), 1))
        return self.of_flat(dims, [*levels, Flat(flat, (splits - splits[0]) * width)])

    def value(self, *parts: NDArray[Any]) -> Any:
        splits = [splits_of(level) for level in parts[1 : self._first_value]]
        values = _joined_values(self._spec.dtype, parts[self._first_value :])
        shaped = values.reshape(int(splits[-1][-1]), *parts[0].tolist())
        return Ragged.from_nested(shaped, tuple(level.astype(self._spec.splits_dtype) for level in splits))

    def stack(self, parts: tuple[Any, ...]) -> Any:
        if None in self._inner:
            rows = self.values(parts)
            return np.fromiter(rows, dtype=object, count=len(rows))
        levels = parts[1 : self._first_value]
        splits = (splits_of(levels[0].lengths), *(splits_of(level.values) for level in levels))
        values = _joined_values(self._spec.dtype, tuple(flat.values for flat in parts[self._first_value :]))
        return Ragged.from_nested(values.reshape(int(splits[-1][-1]), *self._inner), splits)


class SparseLeaf(_Composite):
    """A sparse array: its dense shape, indices and values."""

    def __init__(self, spec: SparseSpec) -> None:
        self._spec = spec
        self._rank = len(spec.shape)
        self._known = np.array([dim or 0 for dim in spec.shape], _I64)
        self.parts = (LeafPart(_I64, (self._rank,)), LeafPart(_I64), *_value_parts(spec.dtype))

    def filler(self) -> Any:
        return Sparse(np.zeros((0, self._rank), _I64), _zeros(self._spec.dtype, [0]), self._known)

    def split(self, row: Any, index: int) -> Arrays:
        spec = self._spec
        if not isinstance(row, Sparse):
            raise ElementError(spec.describe(), describe(row), record=index, hint="Pass a cachelayer.Sparse.")
        values = _conform_values(spec, row.values, (), index)
        indices, shape = row.indices, row.dense_shape
        fits = (
            all(part.dtype.newbyteorder("<") == _I64 for part in (indices, shape))
            and fits_shape(spec.shape, tuple(shape.tolist()) if shape.ndim == 1 else ())
            and indices.shape == (len(values), self._rank)
            and (shape >= 0).all()
            and ((indices >= 0) & (indices < shape)).all()
        )
        if not fits:
            got = f"{indices.dtype}{list(indices.shape)} indices of {len(values)} values, dense shape {shape.tolist()}"
            hint = "Indices are int64 and lie within the dense shape."
            raise ElementError(spec.describe(), got, record=index, hint=hint)
        return (shape, indices.reshape(-1), *_split_values(spec.dtype, values))

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        """Return the parts of a Sparse with the batch as its first dimension. Each row gets its inner dense shape."""
        if not isinstance(batch, Sparse):
            return self.encode(list(batch))
        rows, inner = int(batch.dense_shape[0]), batch.dense_shape[1:]
        order = np.argsort(batch.indices[:, 0], kind="stable")
        splits = np.searchsorted(batch.indices[order, 0], np.arange(rows + 1))
        pieces = [order[start:stop] for start, stop in pairwise(splits.tolist())]
        return self.encode([Sparse(batch.indices[piece, 1:], batch.values[piece], inner) for piece in pieces])

    def value(self, *parts: NDArray[Any]) -> Any:
        shape, indices, *values = parts
        return Sparse(indices.reshape(-1, self._rank), _joined_values(self._spec.dtype, tuple(values)), shape)

    def stack(self, parts: tuple[Any, ...]) -> Any:
        """Return one Sparse with the batch as its first dimension, wide enough for the largest row."""
        shapes, indices, *values = parts
        joined = _joined_values(self._spec.dtype, tuple(flat.values for flat in values))
        inner = np.vstack([self._known, shapes]).max(axis=0)
        row_of = np.repeat(np.arange(len(shapes)), values[0].lengths)
        placed = np.column_stack([row_of, indices.values.reshape(-1, self._rank)]).astype(np.int64)
        return Sparse(placed, joined, np.array([len(shapes), *inner], np.int64))


def _as_u32(spec: LeafSpec, numbers: Any, index: int) -> NDArray[Any]:
    """Return dimensions or row lengths as they are stored."""
    stored = np.asarray(numbers, np.int64)
    if stored.max(initial=0) > _MAX_U32:
        raise ElementError(spec.describe(), f"a dimension of {stored.max()}", record=index)
    return stored.astype(U32)


def _conform_values(spec: LeafSpec, values: Any, inner: Shape, row: int) -> NDArray[Any]:
    """Return the flat values of a ragged or sparse leaf as the spec stores them."""
    try:
        conformed: NDArray[Any] = conform(ArraySpec(spec.dtype, (None, *inner)), values, row)
    except ElementError as error:
        raise ElementError(spec.describe(), f"values {error.got}", record=row, hint=error.hint) from error.__cause__
    return conformed


def _zeros(dtype: DType, shape: Sequence[int]) -> NDArray[Any]:
    """Return an array of zeros, or of empty strings."""
    return np.full(shape, dtype(), object) if isinstance(dtype, type) else np.zeros(shape, dtype)


def _value_parts(dtype: DType) -> tuple[LeafPart, ...]:
    return (LeafPart(U32), LeafPart(U8)) if dtypes.is_string(dtype) else (LeafPart(np.dtype(dtype)),)


def _split_values(dtype: DType, array: NDArray[Any]) -> Arrays:
    if not dtypes.is_string(dtype):
        return (array.reshape(-1),)
    lengths, data = _bytes_of(array.reshape(-1).tolist())
    return lengths.astype(U32), data


def _joined_values(dtype: DType, parts: Arrays) -> NDArray[Any]:
    """Return the values of one row, or of all rows, whose parts lie one after another."""
    if not dtypes.is_string(dtype):
        return parts[0]
    strings = _strings(Flat(parts[1], splits_of(parts[0])), dtype)
    return np.fromiter(strings, dtype=object, count=len(strings))


def _bytes_of(strings: Sequence[Any]) -> Arrays:
    """Return the byte lengths of strings, and their bytes; str is UTF-8, with lone surrogates kept."""
    raw = [str.encode(item, "utf-8", "surrogatepass") if isinstance(item, str) else item for item in strings]
    return np.fromiter(map(len, raw), np.int64, len(raw)), np.frombuffer(b"".join(raw), U8)


def _strings(flat: Flat, dtype: DType) -> list[Any]:
    splits = flat.splits.tolist()
    # For short strings, slicing bytes is quicker; for long ones, saving a copy is.
    if flat.values.size > _LONG_STRING * len(splits):
        memory: Any = memoryview(np.ascontiguousarray(flat.values).data)
    else:
        memory = flat.values.tobytes()
    if dtype is str:
        return [str(memory[start:stop], "utf-8", "surrogatepass") for start, stop in pairwise(splits)]
    return [bytes(memory[start:stop]) for start, stop in pairwise(splits)]
