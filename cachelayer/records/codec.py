"""Codecs, which turn elements into records and back, many at once.

``typed/1`` lays out leaves as :mod:`cachelayer.records.layout` describes. ``bytes/1`` stores plain ``bytes`` unchanged,
so that their shards are ordinary ArrayRecord files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, ElementError, FormatError
from cachelayer.records import tree
from cachelayer.records.alike import AlikeElements, rows_of
from cachelayer.records.column import Column, Flat
from cachelayer.records.dtypes import canonical_bytes
from cachelayer.records.element_reader import ElementReader
from cachelayer.records.layout import gaps, layout_of
from cachelayer.records.leaf_codecs import StaticLeaf, leaf_codec
from cachelayer.records.leaf_parts import fixed_nbytes
from cachelayer.records.memory import Bytes, Ints, move_ranges, rows_together, scatter_rows, splits_of
from cachelayer.records.record_buffers import PREFIX, Frames, RecordBuffer, Records
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable

MAX_RECORD_NBYTES = 2**32 - 1
_NO_PARTS: Ints = np.empty((0, 0), np.int64)


class Codec(Protocol):
    """Translates between elements, batches, columns and records."""

    name: str
    spec: Tree

    def columns(self, elements: Sequence[Any]) -> list[Column]:
        """Return one column for each leaf.

        Raises:
            ElementError: if an element does not fit the spec; its record is the index in ``elements``.
        """

    def batch_columns(self, batch: Any) -> list[Column]:
        """Return the columns of a batch: the element's structure, with leaves stacked on a leading axis.

        A leaf that is None in some rows must be a Nullable, with the filler of its codec in those rows.
        """

    def encode(self, columns: Sequence[Column], rows: int) -> Frames:
        """Return the records of ``rows`` elements."""

    def decode(
        self, records: Records, chosen: Collection[int] | None = None, *, apart: bool = False
    ) -> list[Column | None]:
        """Return the columns of records, with None for each leaf that is not in ``chosen``.

        Args:
            chosen: the numbers of the leaves to decode; None for all.
            apart: prepare the columns for :meth:`elements`, so that an element keeps little memory of others alive.
        """

    def elements(self, columns: Sequence[Column | None], rows: int) -> list[Any]:
        """Return the elements of columns."""

    def element(self, record: bytearray) -> Any:
        """Return the element of one record. It may share the memory of the record."""

    def batch(self, columns: Sequence[Column | None]) -> Any:
        """Return a batch: the structure of an element, with leaves stacked on a leading axis."""

    def batches(self, columns: Sequence[Column], splits: Sequence[int]) -> list[Any]:
        """Return consecutive batches of rows, which share the memory of the columns.

        Args:
            columns: the columns of all leaves.
            splits: where each batch begins, and the end of the last.
        """


def codec_for(spec: Tree) -> Codec:
    """Return the codec for elements of a spec."""
    return RawCodec(spec) if spec == ArraySpec(bytes) else TypedCodec(spec)


def codec_named(name: str, spec: Tree) -> Codec:
    """Return the codec that a manifest names."""
    for codec in (TypedCodec, RawCodec):
        if codec.name == name:
            return codec(spec)
    raise FormatError(f"unknown codec {name!r}: it may need a newer release of cachelayer")


class TreeCodec(ABC):
    """The base of all codecs: takes elements and batches apart into leaves, and builds them."""

    def __init__(self, spec: Tree) -> None:
        self.spec = spec
        leaves = tree.leaves(spec)
        self._paths = [path for path, _ in leaves]
        self._leaf_specs = [leaf for _, leaf in leaves]
        self._leaves = [leaf_codec(leaf) for leaf in self._leaf_specs]
        self._are_static = all(isinstance(leaf, StaticLeaf) for leaf in self._leaves)
        self._pack_rows = tree.row_packer(spec)
        self._pack = tree.packer(spec)

    def element(self, record: bytearray) -> Any:
        lengths = np.array([len(record)])
        columns = self.decode(RecordBuffer(np.frombuffer(record, np.uint8), np.zeros(1, np.int64), lengths))
        return self.elements(columns, 1)[0]

    @abstractmethod
    def decode(
        self, records: Records, chosen: Collection[int] | None = None, *, apart: bool = False
    ) -> list[Column | None]:
        """See :class:`Codec`."""

    def columns(self, elements: Sequence[Any]) -> list[Column]:
        columns = elements.columns_like(self.spec) if isinstance(elements, AlikeElements) else None
        return [
            self._column(index, values)
            for index, values in enumerate(tree.flatten_rows(self.spec, elements) if columns is None else columns)
        ]

    def _column(self, index: int, rows: NDArray[Any] | list[Any]) -> Column:
        leaf, is_nullable = self._leaves[index], self._leaf_specs[index].nullable
        if isinstance(rows, np.ndarray) and isinstance(leaf, StaticLeaf) and leaf.is_stack(rows):
            return Column((rows,), nulls=np.zeros(len(rows), np.bool_) if is_nullable else None)
        values = rows_of(rows)
        nulls = [value is None for value in values]
        try:
            if not is_nullable and not any(nulls):
                return leaf.from_rows(values)
            filler = leaf.filler()
            column = leaf.from_rows([filler if value is None else value for value in values])
        except ElementError as error:
            raise error.at(path=self._paths[index]) from error.__cause__
        return Column(column.fixed, column.variable, np.array(nulls, np.bool_))

    def batch_columns(self, batch: Any) -> list[Column]:
        columns = []
        for leaf, path, values in zip(self._leaves, self._paths, tree.flatten_like(self.spec, batch), strict=True):
            is_nullable = isinstance(values, Nullable)
            try:
                column = leaf.from_batch(values.values if is_nullable else values)
            except ElementError as error:
                raise error.at(path=path) from error.__cause__
            columns.append(Column(column.fixed, column.variable, ~values.valid) if is_nullable else column)
        return columns

    def elements(self, columns: Sequence[Column | None], rows: int) -> list[Any]:
        values = []
        for leaf, column in zip(self._leaves, columns, strict=True):
            if column is None:
                raise ValueError("elements cannot be made: a column is missing")
            values.append(leaf.to_rows(column))
            if column.nulls is not None:
                for row in np.flatnonzero(column.nulls):
                    values[-1][row] = None
        return self._pack_rows(values, rows)

    def batch(self, columns: Sequence[Column | None]) -> Any:
        batches = []
        for leaf, column in zip(self._leaves, columns, strict=True):
            values = None if column is None else leaf.to_batch(column)
            if column is not None and column.nulls is not None:
                values = Nullable(values, ~column.nulls)
            batches.append(values)
        return self._pack(iter(batches))

    def batches(self, columns: Sequence[Column], splits: Sequence[int]) -> list[Any]:
        bounds = list(pairwise(splits))
        if self._are_static and all(each.nulls is None for each in columns):
            arrays = [column.fixed[0] for column in columns]
            return self._pack_rows([[array[start:stop] for start, stop in bounds] for array in arrays], len(bounds))
        return [self.batch([column.rows(start, stop) for column in columns]) for start, stop in bounds]


class RawCodec(TreeCodec):
    """The codec of plain ``bytes``, which it stores unchanged."""

    name = "bytes/1"

    def element(self, record: bytearray) -> Any:
        return bytes(record)

    def encode(self, columns: Sequence[Column], rows: int) -> Frames:  # noqa: ARG002
        if columns[0].nulls is not None:
            row = int(np.flatnonzero(columns[0].nulls)[0])
            raise ElementError(
                "bytes", "None", record=row, hint="To store None, declare element_spec=ArraySpec(bytes, nullable=True)."
            )
        flat = columns[0].variable[0]
        frames = Frames.allocate(_checked(flat.lengths), zeros=False)
        move_ranges(frames.buffer, frames.starts, flat.values, flat.splits[:-1], flat.lengths)
        return frames

    def decode(
        self,
        records: Records,
        chosen: Collection[int] | None = None,
        *,
        apart: bool = False,  # noqa: ARG002
    ) -> list[Column | None]:
        if chosen is not None and 0 not in chosen:
            return [None]
        lengths = records.lengths
        splits = splits_of(lengths)
        if isinstance(records, RecordBuffer) and np.array_equal(records.starts, splits[:-1]):
            return [Column((), (Flat(records.buffer, splits),))]
        return [Column((), (Flat(records.ranges(np.zeros(len(lengths), np.int64), lengths), splits),))]


class TypedCodec(TreeCodec):
    """The codec of elements of any spec. It places leaves as :mod:`cachelayer.records.layout` describes."""

    name = "typed/1"

    def __init__(self, spec: Tree) -> None:
        super().__init__(spec)
        self.layout = layout_of(self._leaves)
        self._fixed_parts = [
            [(offset, fixed_nbytes(part), *part) for offset, part in zip(offsets, leaf.fixed, strict=True)]
            for offsets, leaf in zip(self.layout.fixed, self._leaves, strict=True)
        ]
        used = [(offset, offset + size) for parts in self._fixed_parts for offset, size, *_ in parts if size]
        self._gaps = gaps(used, self.layout.fixed_nbytes)
        self._nullable = any(spec.nullable for spec in self._leaf_specs)
        sizes = [sum(size for _, size, *_ in parts) for parts in self._fixed_parts]
        are_static = [leaf.is_static for leaf in self._leaf_specs]
        # If they become elements, arrays of known shape are read a few rows at a time.
        self._is_listed = [
            is_static and bool(leaf.shape) and size > 0
            for is_static, leaf, size in zip(are_static, self._leaf_specs, sizes, strict=True)
        ]
        # Reading small leaves first loads cache lines that large ones need; reading them last would miss all of them.
        self._smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
        can_be_read = ElementReader.reads(self._leaf_specs)
        self._reader = ElementReader(self._leaf_specs, self.layout) if can_be_read else None

    def element(self, record: bytearray) -> Any:
        leaves = None if self._reader is None else self._reader.leaves(record)
        # If the record is damaged, this tells what is wrong with it.
        return super().element(record) if leaves is None else self._pack(iter(leaves))

    def encode(self, columns: Sequence[Column], rows: int) -> Frames:
        layout = self.layout
        variable = [flat for column in columns for flat in column.variable]
        nbytes = np.empty((rows, len(variable)), np.int64)
        for index, flat in enumerate(variable):
            nbytes[:, index] = flat.lengths * flat.values.dtype.itemsize
        lengths = _checked(layout.fixed_nbytes + _padded(nbytes).sum(axis=1))
        frames = Frames.allocate(lengths, zeros=bool(variable))
        if variable:
            section = np.zeros((rows, layout.fixed_nbytes), np.uint8)
        else:
            section = frames.buffer.reshape(rows, PREFIX + layout.fixed_nbytes)[:, PREFIX:]
            for start, stop in self._gaps:
                section[:, start:stop] = 0
        self._write_fixed(section, columns, nbytes)
        if variable:
            scatter_rows(frames.buffer, frames.starts, section)
            self._write_variable(frames, variable, nbytes)
        return frames

    def _write_fixed(self, section: Bytes, columns: Sequence[Column], nbytes: Ints) -> None:
        rows = len(section)
        for parts, column in zip(self._fixed_parts, columns, strict=True):
            for (offset, size, *_), values in zip(parts, column.fixed, strict=True):
                if size and rows:
                    raw = canonical_bytes(values).reshape(rows, -1).view(np.uint8)
                    section[:, offset : offset + size] = raw
        if nbytes.shape[1] and rows:
            raw = np.ascontiguousarray(nbytes, "<u4").view(np.uint8)
            section[:, self.layout.lengths : self.layout.lengths + raw.shape[1]] = raw
        if any(column.nulls is not None for column in columns):
            absent = np.zeros(rows, np.bool_)
            bits = np.column_stack([absent if column.nulls is None else column.nulls for column in columns])
            packed = np.packbits(bits, axis=1, bitorder="little")
            section[:, self.layout.nulls : self.layout.nulls + packed.shape[1]] = packed

    def _write_variable(self, frames: Frames, variable: list[Flat], nbytes: Ints) -> None:
        starts = frames.starts + self.layout.fixed_nbytes
        for index, flat in enumerate(variable):
            raw = canonical_bytes(flat.values).view(np.uint8)
            itemsize = flat.values.dtype.itemsize
            move_ranges(frames.buffer, starts, raw, flat.splits[:-1] * itemsize, nbytes[:, index])
            starts = starts + _padded(nbytes[:, index])

    def decode(
        self, records: Records, chosen: Collection[int] | None = None, *, apart: bool = False
    ) -> list[Column | None]:
        layout, rows = self.layout, len(records)
        starts, nbytes = self.variable_ranges(records)
        nulls = self._nulls(records)
        columns: list[Column | None] = [None] * len(self._leaves)
        for index in self._smallest_first:
            if chosen is not None and index not in chosen:
                continue
            is_null = nulls[:, index] if self._leaf_specs[index].nullable else None
            if apart and self._is_listed[index]:
                listed = self._listed(records, *self._fixed_parts[index][0])
                columns[index] = Column(nulls=is_null, listed=listed)
                continue
            # One call does what a view and a reshape would do, without a copy.
            fixed = [
                np.ndarray((rows, *shape), dtype, records.slab(offset, size) if size else None)
                for offset, size, dtype, shape in self._fixed_parts[index]
            ]
            variable = []
            for number, dtype in enumerate(self._leaves[index].variable, start=layout.variable[index]):
                values = records.ranges(starts[:, number], nbytes[:, number]).view(dtype)
                variable.append(Flat(values, splits_of(nbytes[:, number] // dtype.itemsize)))
            columns[index] = Column(tuple(fixed), tuple(variable), is_null)
        return columns

    @staticmethod
    def _listed(records: Records, offset: int, nbytes: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[Any]:
        """Return the rows of a fixed part, such that only few share memory."""
        parts = records.slabs(offset, nbytes, rows_together(nbytes))
        return [row for part in parts for row in np.ndarray((len(part), *shape), dtype, part)]

    def variable_ranges(self, records: Records) -> tuple[Ints, Ints]:
        """Return where each variable part of each record begins, and its bytes: int64 of shape ``[rows, parts]``."""
        layout = self.layout
        if not layout.variable_count and records.uniform_nbytes == layout.fixed_nbytes:
            return _NO_PARTS, _NO_PARTS
        nbytes = np.empty((len(records), 0), np.int64)
        lengths = records.lengths
        short = np.flatnonzero(lengths < layout.fixed_nbytes)
        if len(short):
            raise CorruptionError(
                f"a record of {lengths[short[0]]} bytes is shorter than its fixed parts, {layout.fixed_nbytes} bytes"
            )
        if layout.variable_count:
            raw = records.slab(layout.lengths, 4 * layout.variable_count)
            nbytes = raw.view("<u4").astype(np.int64)
        starts = np.full((len(lengths), layout.variable_count + 1), layout.fixed_nbytes)
        for part in range(layout.variable_count):
            starts[:, part + 1] = starts[:, part] + _padded(nbytes[:, part])
        wrong = np.flatnonzero(starts[:, -1] != lengths)
        if len(wrong):
            row = wrong[0]
            raise CorruptionError(f"a record of {lengths[row]} bytes says that its parts take {starts[row, -1]} bytes")
        return starts, nbytes

    def variable_dtype(self, leaf: int) -> np.dtype[Any]:
        """Return the dtype of the first variable part of a leaf."""
        return self._leaves[leaf].variable[0]

    def _nulls(self, records: Records) -> Any:
        if not self._nullable:
            return None
        raw = records.slab(self.layout.nulls, self.layout.null_nbytes)
        return np.unpackbits(raw, axis=1, count=len(self._leaves), bitorder="little").astype(np.bool_)


def _padded(nbytes: Ints) -> Ints:
    return (nbytes + 7) & ~np.int64(7)


def _checked(lengths: Ints) -> Ints:
    too_long = np.flatnonzero(lengths > MAX_RECORD_NBYTES)
    if len(too_long):
        row = int(too_long[0])
        raise ElementError(
            f"a record of at most {MAX_RECORD_NBYTES} bytes",
            f"{lengths[row]} bytes",
            record=row,
            hint="Split the element.",
        )
    return lengths
