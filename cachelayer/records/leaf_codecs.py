r"""The codecs of leaves, which translate each kind of leaf to and from the parts that a record stores.

A part is fixed (the same number of bytes in every record) or variable. The parts of a leaf, in order:

================  ==========================================  =======================================
leaf              fixed parts                                 variable parts
================  ==========================================  =======================================
static array      the array                                   \-
one string        \-                                          its bytes
dense array       uint32: the dimensions that are not known   values
ragged array      uint32: inner dimensions not known          uint32 row lengths, a part a level; values
sparse array      int64: dense shape                          int64 indices, row by row; values
================  ==========================================  =======================================

*values* is one part of the dtype; for strings it is two: uint32 byte lengths, then the bytes of all strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.records.column import Column, Flat
from cachelayer.records.conform import conform, conform_batch, is_stored_as_it_is, stacked_rows
from cachelayer.records.flat_values import Values, decode_strings, encode_strings
from cachelayer.records.leaf_parts import U32, FixedPart, as_u32
from cachelayer.records.memory import Ints, rows_apart, splits_of
from cachelayer.records.ragged_rows import flat_rows, wrong_row
from cachelayer.records.ragged_sparse_codecs import RaggedLeaf, SparseLeaf
from cachelayer.records.spec import LeafSpec, RaggedSpec, SparseSpec
from cachelayer.records.values import Ragged


class LeafCodec(Protocol):
    """Translates one leaf between rows, batches and columns. Rows here are never None."""

    fixed: tuple[FixedPart, ...]
    variable: tuple[np.dtype[Any], ...]

    def filler(self) -> Any:
        """Return the value that is stored in place of None."""

    def from_rows(self, rows: Sequence[Any]) -> Column:
        """Return the column of these rows.

        Raises:
            ElementError: if a row does not fit; its record is the index of the row.
        """

    def from_batch(self, batch: Any) -> Column:
        """Return the column of a batch: leaves stacked on a leading axis."""

    def to_rows(self, column: Column) -> list[Any]:
        """Return the rows, such that keeping one keeps little memory of others alive."""

    def to_batch(self, column: Column) -> Any:
        """Return the rows stacked on a leading axis."""


def leaf_codec(spec: LeafSpec) -> LeafCodec:
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
    """The codec of arrays and scalars of known shape."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self._shape = tuple(dim for dim in spec.shape if dim is not None)
        self.fixed: tuple[FixedPart, ...] = ((self._dtype, self._shape),)
        self.variable: tuple[np.dtype[Any], ...] = ()

    def filler(self) -> Any:
        return np.zeros(self._shape, self._dtype)

    def empty(self, rows: int) -> NDArray[Any]:
        """Return an array for the part of so many rows."""
        return np.empty((rows, *self._shape), self._dtype)

    def is_stack(self, array: NDArray[Any]) -> bool:
        """Return whether an array holds rows as they are stored."""
        return array.dtype == self._dtype and array.shape[1:] == self._shape

    def from_rows(self, rows: Sequence[Any]) -> Column:
        stacked = stacked_rows(rows, self._dtype, self._shape)
        if stacked is None:
            stacked = self.empty(len(rows))
            for index, row in enumerate(rows):
                stacked[index] = conform(self._spec, row, index)
        return Column((stacked,))

    def from_batch(self, batch: Any) -> Column:
        if isinstance(batch, Ragged):
            return self.from_rows(list(batch))
        return Column((conform_batch(self._spec, batch),))

    def to_rows(self, column: Column) -> list[Any]:
        return rows_apart(column.fixed[0]) if column.listed is None else column.listed

    def to_batch(self, column: Column) -> Any:
        return column.fixed[0]


class StringLeaf:
    """The codec of single ``bytes`` or ``str`` of any length."""

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
    """The codec of arrays with unknown dimensions, and of arrays of strings."""

    def __init__(self, spec: LeafSpec) -> None:
        self._spec = spec
        self._values = Values(spec.dtype)
        self._unknown = [axis for axis, dim in enumerate(spec.shape) if dim is None]
        self.fixed: tuple[FixedPart, ...] = ((U32, (len(self._unknown),)),) if self._unknown else ()
        self.variable = self._values.parts

    def filler(self) -> Any:
        return self._values.zeros([dim or 0 for dim in self._spec.shape])

    def from_rows(self, rows: Sequence[Any]) -> Column:
        arrays = [conform(self._spec, row, index) for index, row in enumerate(rows)]
        shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(rows), len(self._spec.shape))
        return self.from_parts(shapes, Flat.of_rows([array.reshape(-1) for array in arrays], self._values.array_dtype))

    def from_parts(self, shapes: Ints, flat: Flat) -> Column:
        """Return the column of rows with these shapes, int64 ``[rows, rank]``, and these values in C order."""
        fixed = (as_u32(self._spec, shapes[:, self._unknown]),) if self._unknown else ()
        return Column(fixed, self._values.encode(flat))

    def from_batch(self, batch: Any) -> Column:
        if is_stored_as_it_is(batch, self._spec.dtype, (None, *self._spec.shape)):
            shapes = np.broadcast_to(np.array(batch.shape[1:], np.int64), (len(batch), len(self._spec.shape)))
            splits = np.arange(len(batch) + 1, dtype=np.int64) * prod(batch.shape[1:])
            return self.from_parts(shapes, Flat(batch.reshape(-1), splits))
        if isinstance(batch, Ragged) and self._are_rows(batch):
            splits = batch.row_splits.astype(np.int64)
            lengths = as_u32(self._spec, (splits[1:] - splits[:-1])[:, None])
            return Column((lengths,), self._values.encode(flat_rows(batch)[1]))
        return self.from_rows(list(batch))

    def _are_rows(self, batch: Ragged) -> bool:
        """Return whether the rows of a batch are what the spec asks for, and differ only in their first dimension."""
        values = batch.values
        return (
            self._unknown == [0]
            and is_stored_as_it_is(values, self._spec.dtype, self._spec.shape)
            and wrong_row(batch) is None
        )

    def _dims(self, column: Column, rows: int) -> NDArray[np.int64]:
        dims = np.empty((rows, len(self._spec.shape)), np.int64)
        dims[:] = [dim or 0 for dim in self._spec.shape]
        if self._unknown:
            dims[:, self._unknown] = column.fixed[0]
        return dims

    def to_rows(self, column: Column) -> list[Any]:
        if column.listed is not None:
            return column.listed
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
            counts = counts * dims[:, axis]
            # Of the innermost level, there is an owner for each value, and nobody asks for it.
            if axis + 1 < levels:
                owner = np.repeat(owner, lengths)
        inner = tuple(dim or 0 for dim in self._spec.shape[levels:])
        ragged = Ragged.from_nested(flat.values.reshape(int(counts.sum()), *inner), tuple(splits))
        return ragged if levels == 1 else replace(ragged, row_shapes=dims[:, :levels])
