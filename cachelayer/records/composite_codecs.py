"""Codecs of leaves of several parts: arrays of varying shape or of strings, ragged arrays, sparse arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records.conform import conform, fits_shape, is_plain, ragged_of
from cachelayer.records.layout import U8, U32, LeafPart
from cachelayer.records.leaf_columns import (
    FlatRows,
    LeafCodec,
    PartRows,
    bytes_of_strings,
    separate_rows_of,
    strings_of_bytes,
)
from cachelayer.specs import dtypes
from cachelayer.specs.dtypes import DType
from cachelayer.specs.spec import ArraySpec, LeafSpec, RaggedSpec, SparseSpec, describe_leaf
from cachelayer.specs.tree import describe
from cachelayer.specs.values import Ragged, Sparse, wrong_row
from cachelayer.support.memory import Ints, splits_of

_I64 = np.dtype("<i8")
_MAX_U32 = 2**32 - 1
Arrays = tuple[NDArray[Any], ...]


class _SeveralParts(LeafCodec):
    """The codec of a leaf of several parts, whose rows are encoded and decoded one by one."""

    @abstractmethod
    def parts_of(self, row: Any, index: int) -> Arrays:
        """Return the parts of one value; errors name it by this index."""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        parts_of_rows = [self.parts_of(row, index) for index, row in enumerate(rows)]
        rows_of_parts = list(zip(*parts_of_rows, strict=True)) if parts_of_rows else [()] * len(self.parts)
        encoded: list[PartRows] = []
        for part, arrays in zip(self.parts, rows_of_parts, strict=True):
            if part.shape is None:
                encoded.append(FlatRows.of_rows(arrays, part.dtype))
            else:
                encoded.append(np.array(arrays, part.dtype).reshape(len(rows), *part.shape))
        return tuple(encoded)

    def parts_of_flat_rows(self, shapes: Ints, varying: Sequence[FlatRows]) -> tuple[PartRows, ...]:
        """Return the parts of rows that a framework has flattened, such as tensors of TensorFlow."""
        *parts, values = varying
        if values.values.dtype == object:
            lengths, data = bytes_of_strings(values.values.tolist())
            parts += [FlatRows(lengths, values.splits), FlatRows(data, splits_of(lengths)[values.splits])]
        else:
            parts.append(values)
        cast = [
            FlatRows(rows.values.astype(part.dtype, copy=False), rows.splits)
            for part, rows in zip(self.parts[1:], parts, strict=True)
        ]
        return (shapes.astype(self.parts[0].dtype), *cast)

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        return [self.value(*row) for row in zip(*map(separate_rows_of, parts), strict=True)]


class ArrayLeafCodec(_SeveralParts):
    """Arrays of several dimensions, some of them unknown; and arrays of strings."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self.parts = (LeafPart(U32, (len(spec.shape),)), *_value_parts(spec.dtype))

    def filler(self) -> Any:
        return _zeros(self._spec.dtype, [dim or 0 for dim in self._spec.shape])

    def parts_of(self, row: Any, index: int) -> Arrays:
        array = conform(self._spec, row, index)
        return (_as_u32(self._spec, array.shape, index), *_parts_of_values(self._spec.dtype, array))

    def value(self, *parts: NDArray[Any]) -> Any:
        return _values_of_parts(self._spec.dtype, parts[1:]).reshape(parts[0].tolist())

    def batch(self, parts: tuple[Any, ...]) -> Any:
        shape = self._spec.shape
        dims = parts[0].astype(np.int64)
        values = _values_of_parts(self._spec.dtype, tuple(rows.values for rows in parts[1:]))
        if None not in shape:
            return values.reshape(len(dims), *(dim or 0 for dim in shape))
        # A Ragged needs a level for each dimension up to the last unknown one. A row of shape [2, 3] is one row of
        # length 2 in the outer level, and two rows of length 3 in the inner one. So level i has a row for each index
        # into the dimensions before it, whose lengths repeat dimension i of the element that it belongs to.
        levels = 1 + max(axis for axis, dim in enumerate(shape) if dim is None)
        splits = []
        element_of_row = np.arange(len(dims))
        for axis in range(levels):
            lengths = dims[element_of_row, axis]
            splits.append(splits_of(lengths))
            # The innermost level has a row for each value: its elements are needed for no further level.
            if axis + 1 < levels:
                element_of_row = np.repeat(element_of_row, lengths)
        inner = tuple(dim or 0 for dim in shape[levels:])
        count = int(dims[:, :levels].prod(axis=1).sum())
        ragged = Ragged.from_nested(values.reshape(count, *inner), tuple(splits))
        return ragged if levels == 1 else replace(ragged, row_shapes=dims[:, :levels])


class RaggedLeafCodec(_SeveralParts):
    """A ragged array: the shape of its inner values, the row lengths of each level, and the flat values."""

    def __init__(self, spec: RaggedSpec) -> None:
        self._spec = spec
        self._inner = spec.shape[spec.ragged_rank + 1 :]
        self._flat_spec = ArraySpec(spec.dtype, (None, *self._inner), timezone=spec.timezone)
        self._first_value = 1 + spec.ragged_rank
        dims = LeafPart(U32, (len(self._inner),))
        self.parts = (dims, *[LeafPart(U32)] * spec.ragged_rank, *_value_parts(spec.dtype))

    def filler(self) -> Any:
        outer = np.zeros((self._spec.shape[0] or 0) + 1, self._spec.splits_dtype)
        values = _zeros(self._spec.dtype, [0, *(dim or 0 for dim in self._inner)])
        return Ragged.from_nested(values, (outer, *[outer[:1]] * (self._spec.ragged_rank - 1)))

    def parts_of(self, row: Any, index: int) -> Arrays:
        spec = self._spec
        is_nested = isinstance(row, np.ndarray) and (row.ndim > 1 or row.dtype == object)
        if isinstance(row, (list, tuple)) or is_nested:
            try:
                row = ragged_of(spec, self._flat_spec, row, index)
            except InvalidTypeError as error:
                raise ElementError(describe_leaf(spec), describe(row), record=index, hint=str(error)) from error
        if not isinstance(row, Ragged):
            raise ElementError(describe_leaf(spec), describe(row), record=index, hint="Pass a cachelayer.Ragged.")
        flat = _conform_values(spec, self._flat_spec, row.flat_values, index)
        splits = row.nested_row_splits
        if not self._are_splits(splits, len(flat)):
            raise ElementError(describe_leaf(spec), f"{row!r} with row splits {splits}", record=index)
        levels = [_as_u32(spec, np.diff(level), index) for level in splits]
        return (_as_u32(spec, flat.shape[1:], index), *levels, *_parts_of_values(spec.dtype, flat))

    def _are_splits(self, splits: Sequence[NDArray[Any]], values: int) -> bool:
        """Return whether row splits fit the spec, and so many inner values."""
        spec = self._spec
        # The rows of a level are the values of the level around it.
        ends = [*(len(level) - 1 for level in splits[1:]), values]
        return (
            len(splits) == spec.ragged_rank
            and all(level.ndim == 1 and level.dtype.newbyteorder("<") == spec.splits_dtype for level in splits)
            and fits_shape(spec.shape[:1], (len(splits[0]) - 1,))
            and all(len(level) and level[0] == 0 and (np.diff(level) >= 0).all() for level in splits)
            and all(level[-1] == end for level, end in zip(splits, ends, strict=True))
        )

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        if isinstance(batch, Ragged) and self._fits_at_once(batch):
            return self._batch_at_once(batch)
        return super().encode_batch(batch)

    def _fits_at_once(self, batch: Ragged) -> bool:
        """Return whether all rows of a batch are as the spec says, so that none must be converted or refused."""
        spec = self._spec
        values = batch.flat_values
        levels = batch.nested_row_splits[1:]
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

    def _batch_at_once(self, batch: Ragged) -> tuple[PartRows, ...]:
        """Return the parts of a batch, without making its rows.

        The outermost level of a batch separates the rows. In turn, each level below becomes the row lengths of a part,
        and tells where the rows begin in the next level. Splits need not begin at 0: a batch may be a slice.
        """
        splits = batch.row_splits.astype(np.int64)
        values = batch.values
        levels = []
        while isinstance(values, Ragged):
            within = splits - splits[0]
            inner = values.row_splits[splits[0] : splits[-1] + 1].astype(np.int64)
            levels.append(FlatRows(np.diff(inner), within))
            splits = inner[within]
            values = values.values
        flat = values[splits[0] : splits[-1]].reshape(-1)
        width = flat.size // max(1, int(splits[-1] - splits[0]))
        dims = np.tile(np.array(self._inner, np.int64), (len(batch), 1))
        return self.parts_of_flat_rows(dims, [*levels, FlatRows(flat, (splits - splits[0]) * width)])

    def value(self, *parts: NDArray[Any]) -> Any:
        splits = [splits_of(level) for level in parts[1 : self._first_value]]
        values = _values_of_parts(self._spec.dtype, parts[self._first_value :])
        shaped = values.reshape(int(splits[-1][-1]), *parts[0].tolist())
        return Ragged.from_nested(shaped, tuple(level.astype(self._spec.splits_dtype) for level in splits))

    def batch(self, parts: tuple[Any, ...]) -> Any:
        if None in self._inner:
            return super().batch(parts)
        levels = parts[1 : self._first_value]
        splits = (splits_of(levels[0].lengths), *(splits_of(level.values) for level in levels))
        values = _values_of_parts(self._spec.dtype, tuple(rows.values for rows in parts[self._first_value :]))
        return Ragged.from_nested(values.reshape(int(splits[-1][-1]), *self._inner), splits)


class SparseLeafCodec(_SeveralParts):
    """A sparse array: its dense shape, the indices of its values, and the values."""

    def __init__(self, spec: SparseSpec) -> None:
        self._spec = spec
        self._rank = len(spec.shape)
        self._flat_spec = ArraySpec(spec.dtype, (None,))
        self._known = np.array([dim or 0 for dim in spec.shape], _I64)
        self.parts = (LeafPart(_I64, (self._rank,)), LeafPart(_I64), *_value_parts(spec.dtype))

    def filler(self) -> Any:
        return Sparse(np.zeros((0, self._rank), _I64), _zeros(self._spec.dtype, [0]), self._known)

    def parts_of(self, row: Any, index: int) -> Arrays:
        spec = self._spec
        if not isinstance(row, Sparse):
            raise ElementError(describe_leaf(spec), describe(row), record=index, hint="Pass a cachelayer.Sparse.")
        values = _conform_values(spec, self._flat_spec, row.values, index)
        indices = row.indices
        shape = row.dense_shape
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
            raise ElementError(describe_leaf(spec), got, record=index, hint=hint)
        return (shape, indices.reshape(-1), *_parts_of_values(spec.dtype, values))

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        """Return the parts of a Sparse whose first dimension is the batch. All rows have its inner dense shape."""
        if not isinstance(batch, Sparse):
            return super().encode_batch(batch)
        rows = int(batch.dense_shape[0])
        inner = batch.dense_shape[1:]
        order = np.argsort(batch.indices[:, 0], kind="stable")
        splits = np.searchsorted(batch.indices[order, 0], np.arange(rows + 1))
        pieces = [order[start:stop] for start, stop in pairwise(splits.tolist())]
        return self.encode([Sparse(batch.indices[piece, 1:], batch.values[piece], inner) for piece in pieces])

    def value(self, *parts: NDArray[Any]) -> Any:
        shape, indices, *values = parts
        return Sparse(indices.reshape(-1, self._rank), _values_of_parts(self._spec.dtype, tuple(values)), shape)

    def batch(self, parts: tuple[Any, ...]) -> Any:
        """Return one Sparse whose first dimension is the batch, and whose other dimensions hold the largest row."""
        shapes, indices, *values = parts
        joined = _values_of_parts(self._spec.dtype, tuple(rows.values for rows in values))
        inner = np.vstack([self._known, shapes]).max(axis=0)
        row_of = np.repeat(np.arange(len(shapes)), values[0].lengths)
        placed = np.column_stack([row_of, indices.values.reshape(-1, self._rank)]).astype(np.int64)
        return Sparse(placed, joined, np.array([len(shapes), *inner], np.int64))


def _as_u32(spec: LeafSpec, numbers: Any, index: int) -> NDArray[Any]:
    """Return dimensions or row lengths as records store them."""
    stored = np.asarray(numbers, np.int64)
    if stored.max(initial=0) > _MAX_U32:
        raise ElementError(describe_leaf(spec), f"a dimension of {stored.max()}", record=index)
    return stored.astype(U32)


def _conform_values(spec: LeafSpec, flat: ArraySpec, values: Any, row: int) -> NDArray[Any]:
    """Return the flat values of a ragged or sparse array in the dtype and the inner shape of its spec."""
    try:
        conformed: NDArray[Any] = conform(flat, values, row)
    except ElementError as error:
        raise ElementError(describe_leaf(spec), f"values {error.got}", record=row, hint=error.hint) from error.__cause__
    return conformed


def _zeros(dtype: DType, shape: Sequence[int]) -> NDArray[Any]:
    """Return an array of zeros, or of empty strings."""
    return np.full(shape, dtype(), object) if isinstance(dtype, type) else np.zeros(shape, dtype)


def _value_parts(dtype: DType) -> tuple[LeafPart, ...]:
    return (LeafPart(U32), LeafPart(U8)) if dtypes.is_string(dtype) else (LeafPart(np.dtype(dtype)),)


def _parts_of_values(dtype: DType, array: NDArray[Any]) -> Arrays:
    if not dtypes.is_string(dtype):
        return (array.reshape(-1),)
    lengths, data = bytes_of_strings(array.reshape(-1).tolist())
    return lengths.astype(U32), data


def _values_of_parts(dtype: DType, parts: Arrays) -> NDArray[Any]:
    """Return the flat values of one row, or of all rows one after another, from their parts."""
    if not dtypes.is_string(dtype):
        return parts[0]
    strings = strings_of_bytes(FlatRows(parts[1], splits_of(parts[0])), dtype)
    return np.fromiter(strings, dtype=object, count=len(strings))


def composite_codec_for(spec: LeafSpec) -> LeafCodec:
    """Return the codec of a leaf whose values have several parts."""
    if isinstance(spec, RaggedSpec):
        return RaggedLeafCodec(spec)
    return SparseLeafCodec(spec) if isinstance(spec, SparseSpec) else ArrayLeafCodec(spec)
