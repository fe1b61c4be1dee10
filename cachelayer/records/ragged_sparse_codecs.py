"""The codecs of ragged and sparse leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records.column import Column, Flat
from cachelayer.records.conform import conform, fits_shape, is_stored_as_it_is
from cachelayer.records.flat_values import Values
from cachelayer.records.leaf_parts import U32, FixedPart, as_u32
from cachelayer.records.memory import Ints, rows_apart, splits_of
from cachelayer.records.ragged_rows import flat_rows, wrong_row
from cachelayer.records.spec import ArraySpec, LeafSpec, RaggedSpec, Shape, SparseSpec
from cachelayer.records.tree import describe
from cachelayer.records.values import Ragged, Sparse

_I64 = np.dtype("<i8")


class RaggedLeaf:
    """The codec of ragged arrays: the row lengths of each level, then the flat values."""

    def __init__(self, spec: RaggedSpec) -> None:
        self._spec = spec
        self._values = Values(spec.dtype)
        self._inner = spec.shape[spec.ragged_rank + 1 :]
        self._unknown = [axis for axis, dim in enumerate(self._inner) if dim is None]
        self.fixed: tuple[FixedPart, ...] = ((U32, (len(self._unknown),)),) if self._unknown else ()
        self.variable = (U32,) * spec.ragged_rank + self._values.parts

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
        """Return the column of rows with these row lengths at each level, inner shapes ``[rows, rank]``, and values."""
        fixed = (as_u32(self._spec, inner[:, self._unknown]),) if self._unknown else ()
        lengths = [
            Flat(as_u32(self._spec, level.values, np.repeat(np.arange(len(inner)), level.lengths)), level.splits)
            for level in levels
        ]
        return Column(fixed, (*lengths, *self._values.encode(flat)))

    def from_batch(self, batch: Any) -> Column:
        if not (isinstance(batch, Ragged) and self._are_rows(batch)):
            return self.from_rows(list(batch))
        levels, flat = flat_rows(batch)
        return self.from_parts(levels, np.empty((len(batch), len(self._inner)), np.int64), flat)

    def _are_rows(self, batch: Ragged) -> bool:
        """Return whether the rows of a batch are what the spec asks for, and differ only in their splits."""
        spec, values, levels = self._spec, batch.flat_values, batch.nested_row_splits[1:]
        return (
            spec.shape[0] is None
            and not self._unknown
            and batch.row_shapes is None
            and len(levels) == spec.ragged_rank
            and all(level.dtype.newbyteorder("<") == spec.splits_dtype for level in levels)
            and is_stored_as_it_is(values, spec.dtype, (None, *self._inner))
            and wrong_row(batch) is None
        )

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
        """Return the column of rows with these dense shapes, ``[rows, rank]``, indices and values."""
        return Column((shapes,), (indices, *self._values.encode(flat)))

    def from_batch(self, batch: Any) -> Column:
        """Return the column of a Sparse with the batch as its first dimension. Each row gets its inner dense shape."""
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
        """Return one Sparse with the batch as its first dimension, wide enough for the largest row."""
        indices, flat = column.variable[0], self._values.decode(column.variable[1:])
        shapes: Ints = column.fixed[0]
        inner = np.vstack([self._known, shapes]).max(axis=0)
        row_of = np.repeat(np.arange(len(shapes)), flat.lengths)
        placed = np.column_stack([row_of, indices.values.reshape(-1, self._rank)]).astype(np.int64)
        return Sparse(placed, flat.values, np.array([len(shapes), *inner], np.int64))


def _conform_values(spec: LeafSpec, values: Any, inner: Shape, row: int) -> NDArray[Any]:
    """Return the flat values of a ragged or sparse leaf as the spec stores them."""
    try:
        conformed: NDArray[Any] = conform(ArraySpec(spec.dtype, (None, *inner)), values, row)
    except ElementError as error:
        raise ElementError(spec.describe(), f"values {error.got}", record=row, hint=error.hint) from error.__cause__
    return conformed
