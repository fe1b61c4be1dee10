r"""How each kind of leaf is laid out in parts: static arrays, strings, arrays of unknown shape, ragged, sparse.

A part is fixed (the same number of bytes in every record) or variable. Parts of a leaf, in order:

================  ==========================================  =======================================
leaf              fixed parts                                 variable parts
================  ==========================================  =======================================
static array      the array                                   \-
one string        \-                                          its bytes
dense array       uint32: the dimensions that are not known   values
ragged array      uint32: inner dimensions not known          uint32 row lengths, a part a level; values
sparse array      int64: dense shape                          int64 indices, row by row; values
================  ==========================================  =======================================

*values* is one part of the dtype; for strings two: uint32 byte lengths, then the bytes of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records import dtypes
from cachelayer.records.column import Column, Flat
from cachelayer.records.conform import conform, conform_batch, fits_shape, stacked_rows
from cachelayer.records.flat_values import Values, decode_strings, encode_strings
from cachelayer.records.memory import Ints, rows_apart, splits_of
from cachelayer.records.spec import ArraySpec, LeafSpec, RaggedSpec, Shape, SparseSpec
from cachelayer.records.tree import describe
from cachelayer.records.values import Ragged, Sparse

_U32 = np.dtype("<u4")
_I64 = np.dtype("<i8")
_MAX_U32 = 2**32 - 1
FixedPart = tuple[np.dtype[Any], tuple[int, ...]]


class LeafCodec(Protocol):
    """Translates one leaf between rows, batches and columns. Rows here are never None."""

    fixed: tuple[FixedPart, ...]
    variable: tuple[np.dtype[Any], ...]

    def filler(self) -> Any:
        """What stands in the place of a None."""

    def from_rows(self, rows: Sequence[Any]) -> Column:
        """The column of these rows; an ElementError carries the index of the row as its record."""

    def from_batch(self, batch: Any) -> Column:
        """The column of a batch: leaves stacked on a leading axis."""

    def to_rows(self, column: Column) -> list[Any]:
        """The rows, in memory that no other row has; who keeps one keeps little of the others."""

    def to_batch(self, column: Column) -> Any:
        """The rows stacked on a leading axis."""


def leaf_codec(spec: LeafSpec) -> LeafCodec:
    """The codec of a leaf spec."""
    if isinstance(spec, RaggedSpec):
        return RaggedLeaf(spec)
    if isinstance(spec, SparseSpec):
        return SparseLeaf(spec)
    if spec.is_static:
        return StaticLeaf(spec)
    if dtypes.is_string(spec.dtype) and not spec.shape:
        return StringLeaf(spec)
    return DenseLeaf(spec)


class StaticLeaf:
    """An array, or a scalar, of known shape."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self._shape = tuple(dim for dim in spec.shape if dim is not None)
        self.fixed: tuple[FixedPart, ...] = ((self._dtype, self._shape),)
        self.variable: tuple[np.dtype[Any], ...] = ()

    def filler(self) -> Any:
        return np.zeros(self._shape, self._dtype)

    def from_rows(self, rows: Sequence[Any]) -> Column:
        stacked = stacked_rows(rows, self._dtype, self._shape)
        if stacked is None:
            stacked = np.empty((len(rows), *self._shape), self._dtype)
            for index, row in enumerate(rows):
                stacked[index] = conform(self._spec, row, index)
        return Column((stacked,))

    def from_batch(self, batch: Any) -> Column:
        return Column((conform_batch(self._spec, batch),))

    def to_rows(self, column: Column) -> list[Any]:
        return rows_apart(column.fixed[0]) if column.listed is None else column.listed

    def to_batch(self, column: Column) -> Any:
        return column.fixed[0]


class StringLeaf:
    """One ``bytes`` or ``str`` of any length."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self.fixed: tuple[FixedPart, ...] = ()
        self.variable: tuple[np.dtype[Any], ...] = (np.dtype(np.uint8),)

    def filler(self) -> Any:
        return self._spec.dtype.type() if isinstance(self._spec.dtype, np.dtype) else self._spec.dtype()

    def from_rows(self, rows: Sequence[Any]) -> Column:
        kind = self._spec.dtype
        checked = [row if type(row) is kind else conform(self._spec, row, index) for index, row in enumerate(rows)]
        return Column((), (encode_strings(checked),))

    def from_batch(self, batch: Any) -> Column:
        return self.from_rows(list(batch))

    def to_rows(self, column: Column) -> list[Any]:
        return decode_strings(column.variable[0], self._spec.dtype)

    def to_batch(self, column: Column) -> Any:
        rows = self.to_rows(column)
        return np.fromiter(rows, dtype=object, count=len(rows))


class DenseLeaf:
    """An array with dimensions that are not known, or of strings."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._values = Values(spec.dtype)
        self._unknown = [axis for axis, dim in enumerate(spec.shape) if dim is None]
        self.fixed: tuple[FixedPart, ...] = ((_U32, (len(self._unknown),)),) if self._unknown else ()
        self.variable = self._values.parts

    def filler(self) -> Any:
        return self._values.zeros([dim or 0 for dim in self._spec.shape])

    def from_rows(self, rows: Sequence[Any]) -> Column:
        arrays = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(rows), len(self._spec.shape))
        return self.from_parts(shapes, Flat.of_rows([array.reshape(-1) for array in arrays], self._values.array_dtype))

    def from_parts(self, shapes: Ints, flat: Flat) -> Column:
        """The column of rows of these shapes, int64 ``[rows, rank]``, and their values in C order."""
        fixed = (_as_u32(self._spec, shapes[:, self._unknown]),) if self._unknown else ()
        return Column(fixed, self._values.encode(flat))

    def from_batch(self, batch: Any) -> Column:
        return self.from_rows(list(batch))

    def _dims(self, column: Column, rows: int) -> NDArray[np.int64]:
        dims = np.empty((rows, len(self._spec.shape)), np.int64)
        dims[:] = [dim or 0 for dim in self._spec.shape]
        if self._unknown:
            dims[:, self._unknown] = column.fixed[0]
        return dims

    def to_rows(self, column: Column) -> list[Any]:
        flat = self._values.decode(column.variable)
        shapes = self._dims(column, len(flat.splits) - 1).tolist()
        return [row.reshape(shape) for row, shape in zip(flat.rows_apart(), shapes, strict=True)]

    def to_batch(self, column: Column) -> Any:
        flat = self._values.decode(column.variable)
        rows = len(flat.splits) - 1
        if not self._unknown:
            return flat.values.reshape(rows, *(dim or 0 for dim in self._spec.shape))
        dims = self._dims(column, rows)
        levels = self._unknown[-1] + 1
        splits, counts = [], np.ones(rows, np.int64)
        owner = np.arange(rows)
        for axis in range(levels):
            lengths = dims[owner, axis]
            splits.append(splits_of(lengths))
            owner = np.repeat(owner, lengths)
            counts = counts * dims[:, axis]
        inner = tuple(dim or 0 for dim in self._spec.shape[levels:])
        ragged = Ragged.from_nested(flat.values.reshape(int(counts.sum()), *inner), tuple(splits))
        return ragged if levels == 1 else replace(ragged, row_shapes=dims[:, :levels])


class RaggedLeaf:
    """A ragged array: row lengths of every level, then the flat values."""

    def __init__(self, spec: RaggedSpec) -> None:
        self._spec = spec
        self._values = Values(spec.dtype)
        self._inner = spec.shape[spec.ragged_rank + 1 :]
        self._unknown = [axis for axis, dim in enumerate(self._inner) if dim is None]
        self.fixed: tuple[FixedPart, ...] = ((_U32, (len(self._unknown),)),) if self._unknown else ()
        self.variable = (_U32,) * spec.ragged_rank + self._values.parts

    def filler(self) -> Any:
        outer = np.zeros((self._spec.shape[0] or 0) + 1, self._spec.splits_dtype)
        values = self._values.zeros([0, *(dim or 0 for dim in self._inner)])
        return Ragged.from_nested(values, (outer, *[outer[:1]] * (self._spec.ragged_rank - 1)))

    def _checked(self, row: Any, index: int) -> Ragged:
        spec = self._spec
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
        return Ragged.from_nested(flat, splits)

    def from_rows(self, rows: Sequence[Any]) -> Column:
        ragged = [self._checked(row, index) for index, row in enumerate(rows)]
        flats = [row.flat_values for row in ragged]
        inner = np.array([flat.shape[1:] for flat in flats], np.int64).reshape(len(rows), len(self._inner))
        levels = [
            Flat.of_rows([np.diff(row.nested_row_splits[level]) for row in ragged], np.int64)
            for level in range(self._spec.ragged_rank)
        ]
        return self.from_parts(levels, inner, Flat.of_rows([f.reshape(-1) for f in flats], self._values.array_dtype))

    def from_parts(self, levels: Sequence[Flat], inner: Ints, flat: Flat) -> Column:
        """The column of rows with these row lengths at each level, inner shapes ``[rows, inner rank]``, and values."""
        fixed = (_as_u32(self._spec, inner[:, self._unknown]),) if self._unknown else ()
        lengths = [
            Flat(_as_u32(self._spec, level.values, np.repeat(np.arange(len(inner)), level.lengths)), level.splits)
            for level in levels
        ]
        return Column(fixed, (*lengths, *self._values.encode(flat)))

    def from_batch(self, batch: Any) -> Column:
        return self.from_rows(list(batch))

    def to_rows(self, column: Column) -> list[Any]:
        levels = column.variable[: self._spec.ragged_rank]
        flat = self._values.decode(column.variable[self._spec.ragged_rank :])
        return [self._row(index, column, levels, values) for index, values in enumerate(flat.rows_apart())]

    def _row(self, index: int, column: Column, levels: tuple[Flat, ...], values: NDArray[Any]) -> Ragged:
        splits = tuple(splits_of(level.row(index)).astype(self._spec.splits_dtype) for level in levels)
        inner = [dim or 0 for dim in self._inner]
        for axis, dim in zip(self._unknown, column.fixed[0][index].tolist() if self._unknown else (), strict=True):
            inner[axis] = dim
        return Ragged.from_nested(values.reshape(int(splits[-1][-1]), *inner), splits)

    def to_batch(self, column: Column) -> Any:
        levels = column.variable[: self._spec.ragged_rank]
        flat = self._values.decode(column.variable[self._spec.ragged_rank :])
        if self._unknown:
            rows = [self._row(index, column, levels, flat.row(index)) for index in range(len(flat.splits) - 1)]
            return np.fromiter(rows, dtype=object, count=len(rows))
        outer = splits_of(levels[0].lengths)
        splits = (outer, *(splits_of(level.values) for level in levels))
        total = int(splits[-1][-1])
        return Ragged.from_nested(flat.values.reshape(total, *(dim or 0 for dim in self._inner)), splits)


class SparseLeaf:
    """A sparse array: its dense shape, indices and values."""

    def __init__(self, spec: SparseSpec) -> None:
        self._spec = spec
        self._values = Values(spec.dtype)
        self._rank = len(spec.shape)
        self._known = np.array([dim or 0 for dim in spec.shape], _I64)
        self.fixed: tuple[FixedPart, ...] = ((_I64, (self._rank,)),)
        self.variable = (_I64, *self._values.parts)

    def filler(self) -> Any:
        return Sparse(np.zeros((0, self._rank), _I64), self._values.zeros([0]), self._known)

    def _checked(self, row: Any, index: int) -> Sparse:
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
        return Sparse(indices, values, shape)

    def from_rows(self, rows: Sequence[Any]) -> Column:
        sparse = [self._checked(row, index) for index, row in enumerate(rows)]
        shapes = np.array([row.dense_shape for row in sparse], _I64).reshape(len(rows), self._rank)
        indices = Flat.of_rows([row.indices.reshape(-1) for row in sparse], _I64)
        return self.from_parts(shapes, indices, Flat.of_rows([row.values for row in sparse], self._values.array_dtype))

    def from_parts(self, shapes: Ints, indices: Flat, flat: Flat) -> Column:
        """The column of rows of these dense shapes, ``[rows, rank]``, with their indices and values."""
        return Column((shapes,), (indices, *self._values.encode(flat)))

    def from_batch(self, batch: Any) -> Column:
        """Rows of a Sparse whose first dimension is the batch; each gets the batch's inner dense shape."""
        if not isinstance(batch, Sparse):
            return self.from_rows(list(batch))
        rows = int(batch.dense_shape[0])
        order = np.argsort(batch.indices[:, 0], kind="stable")
        splits = np.searchsorted(batch.indices[order, 0], np.arange(rows + 1))
        pieces = [order[splits[row] : splits[row + 1]] for row in range(rows)]
        inner = batch.dense_shape[1:]
        return self.from_rows([Sparse(batch.indices[piece, 1:], batch.values[piece], inner) for piece in pieces])

    def to_rows(self, column: Column) -> list[Any]:
        indices, flat = column.variable[0], self._values.decode(column.variable[1:])
        return [
            Sparse(at.reshape(-1, self._rank), values, shape)
            for at, values, shape in zip(
                indices.rows_apart(), flat.rows_apart(), rows_apart(column.fixed[0]), strict=True
            )
        ]

    def to_batch(self, column: Column) -> Any:
        """One Sparse with the batch as its first dimension, wide enough for the largest row."""
        indices, flat = column.variable[0], self._values.decode(column.variable[1:])
        shapes: Ints = column.fixed[0]
        inner = np.vstack([self._known, shapes]).max(axis=0)
        row_of = np.repeat(np.arange(len(shapes)), flat.lengths)
        placed = np.column_stack([row_of, indices.values.reshape(-1, self._rank)]).astype(np.int64)
        return Sparse(placed, flat.values, np.array([len(shapes), *inner], np.int64))


def _conform_values(spec: LeafSpec, values: Any, inner: Shape, row: int) -> NDArray[Any]:
    """The flat values of a ragged or sparse leaf as the spec stores them."""
    try:
        conformed: NDArray[Any] = conform(ArraySpec(spec.dtype, (None, *inner)), values, row)
    except ElementError as error:
        raise ElementError(spec.describe(), f"values {error.got}", record=row, hint=error.hint) from error.__cause__
    return conformed


def _as_u32(spec: LeafSpec, lengths: Ints, row_of: Ints | None = None) -> NDArray[np.uint32]:
    """Dimensions or row lengths as they are stored, where ``row_of`` is the row of each; by default its number."""
    too_long = np.argwhere(lengths > _MAX_U32)
    if len(too_long):
        place = too_long[0]
        row = int(place[0] if row_of is None else row_of[place[0]])
        raise ElementError(spec.describe(), f"a dimension of {lengths[tuple(place)]}", record=row)
    stored: NDArray[np.uint32] = lengths.astype(_U32)
    return stored


def fixed_nbytes(part: FixedPart) -> int:
    """Bytes of one fixed part in a record."""
    return part[0].itemsize * prod(part[1])
