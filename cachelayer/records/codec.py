"""The codec, which turns elements into records and back: one by one, or many at once.

``typed/1`` lays out leaves as :mod:`cachelayer.records.layout` describes. ``bytes/1`` stores plain ``bytes`` unchanged,
so that their shards are ordinary ArrayRecord files. Nothing is ever pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, ElementError, FormatError, InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.records import dtypes, tree
from cachelayer.records.conform import separate_nulls
from cachelayer.records.dtypes import canonical_bytes
from cachelayer.records.frames import PREFIX, Frames
from cachelayer.records.layout import Layout, LeafPart, padded
from cachelayer.records.leaf_columns import NULL, NULL_DICT, Column, FlatRows, PartRows
from cachelayer.records.leaf_names import chosen_spec, varying_leaves
from cachelayer.records.leaves import Leaf, leaf_of
from cachelayer.records.media import MediaFiles
from cachelayer.records.memory import (
    MAX_SHARED_NBYTES,
    Bytes,
    Ints,
    move_ranges,
    rows_sharing_memory,
    scatter_rows,
    splits_of,
)
from cachelayer.records.null_marks import InnerDict, NullBits
from cachelayer.records.record_buffers import PackedRecords, Records
from cachelayer.records.simple_leaves import FixedLeaf
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable, NullDict, OfNullableDict, Ragged

TYPED, PLAIN = "typed/1", "bytes/1"
_MAX_RECORD_NBYTES = 2**32 - 1
_NO_PARTS: Ints = np.empty((0, 0), np.int64)


def codec_for(spec: Tree) -> Codec:
    """Return the codec for elements of a spec."""
    return Codec.of(spec, PLAIN if spec == ArraySpec(bytes) else TYPED)


def codec_named(name: str, spec: Tree) -> Codec:
    """Return the codec that a manifest names."""
    if name not in (TYPED, PLAIN):
        raise FormatError(f"unknown codec {name!r}: it may need a newer release of cachelayer")
    return Codec.of(spec, name)


@dataclass(frozen=True, eq=False)
class LeafPlan:
    """How one leaf is written into records and read from them.

    Args:
        number: its number in the records.
        path: where it is in an element.
        spec: what the records store.
        leaf: makes values of the parts, or of what its files are decoded to.
        parts: the parts, each with the offset of a fixed one, or the number of a varying one.
        files: what decodes its images or sounds; None if they are not decoded.
    """

    number: int
    path: str
    spec: LeafSpec
    leaf: Leaf
    parts: tuple[tuple[int, LeafPart], ...]
    files: MediaFiles | None = None
    around: tuple[InnerDict, ...] = ()
    """The dicts around it, the outermost first."""
    values_bit: int | None = None
    """The number of the null bit of its values; None if none of them can be null."""
    nulls: int = field(init=False)
    """Its null bit, if it may be None, and those of the dicts around it that may be; 0 for none."""
    value_of: Callable[..., Any] = field(init=False)
    """Makes a value of its parts."""

    def __post_init__(self) -> None:
        nulls = 1 << self.number if self.spec.nullable else 0
        object.__setattr__(self, "nulls", nulls | sum(1 << each.bit for each in self.around if each.nullable))
        object.__setattr__(self, "value_of", self.leaf.value if self.files is None else self.files.value)

    def decoding(self) -> LeafPlan:
        """Return the plan of the leaf with its images or sounds decoded; this one if it has none."""
        if not isinstance(self.spec, EncodedSpec):
            return self
        files = MediaFiles(self.path, self.spec)
        return replace(self, leaf=files.leaf, files=files)

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of its null bits, and of those of the dicts around it."""
        return frozenset([self.number, *(each.bit for each in self.around), *self._values_bits])

    @property
    def _values_bits(self) -> list[int]:
        return [] if self.values_bit is None else [self.values_bit]

    def null_of(self, bits: int) -> NullDict | None:
        """Return what stands for the leaf in an element in which one of its null bits is set."""
        outermost = next((each for each in self.around if each.nullable and bits & 1 << each.bit), None)
        return None if outermost is None else NullDict(outermost.depth)

    def marks(self, bits: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the nulls of a column, given the null bits of records: bool of shape ``[rows, bits]``."""
        nullable = [each for each in self.around if each.nullable]
        if not nullable:
            return bits[:, self.number]
        nulls = bits[:, self.number].astype(np.uint8)
        for each in reversed(nullable):
            nulls[bits[:, each.bit]] = NULL_DICT + each.depth
        return nulls

    def counts(self, nbytes: Ints) -> Ints:
        """Return the number of values of each row, given the bytes of the varying parts of records."""
        counted = self._counted
        if counted is None:
            ((_, part),) = self.parts
            return np.full(len(nbytes), prod(part.shape or ()), np.int64)
        place, part = self.parts[counted]
        return nbytes[:, place] // part.dtype.itemsize

    def values_of(self, parts: Sequence[PartRows]) -> Ints:
        """Return where the values of each row of a column begin, and the end."""
        counted = self._counted
        if counted is not None:
            splits: Ints = parts[counted].splits
            return splits
        ((_, part),) = self.parts
        return np.arange(len(parts[0]) + 1, dtype=np.int64) * prod(part.shape or ())

    def rows(self, column: Column) -> list[Any]:
        """Return the values of a column, such that keeping one keeps little memory of others alive."""
        is_made = len(column.parts) == 1 and isinstance(column.parts[0], list)
        values: list[Any] = column.parts[0] if is_made else self.leaf.values(column.parts)
        if column.null_values is not None:
            values = list(_rows_with_null_values(values, column.null_values))
        if column.nulls is not None:
            for row in np.flatnonzero(column.nulls):
                mark = int(column.nulls[row])
                values[row] = None if mark == NULL else NullDict(mark - NULL_DICT)
        return values

    @property
    def _counted(self) -> int | None:
        """The part that has an item for each value; None if their number is known."""
        if self.parts[-1][1].shape is not None:
            return None
        # Of strings, the lengths come before their bytes.
        return len(self.parts) - (2 if dtypes.is_string(self.spec.dtype) else 1)

    @property
    def varying(self) -> tuple[int, np.dtype[Any]]:
        """The number and the dtype of its first varying part."""
        return next((place, part.dtype) for place, part in self.parts if part.shape is None)


@dataclass(frozen=True, eq=False)
class Codec:
    """Translates between elements, batches, columns and records.

    Args:
        spec: the spec of the elements.
        name: the name in manifests.
        layout: where the parts of leaves lie in a record.
        leaves: how each leaf of the elements is written and read.
        null_bits: how many null bits a record has.
        with_nulls: the leaves of the records that may hold values that are null.
    """

    spec: Tree
    name: str
    layout: Layout
    leaves: tuple[LeafPlan, ...]
    null_bits: int
    with_nulls: tuple[LeafPlan, ...]

    @classmethod
    def of(cls, spec: Tree, name: str = TYPED) -> Self:
        """Return the codec of records that hold elements of a spec."""
        specs = tree.leaves(spec)
        leaves = [leaf_of(leaf) for _, leaf in specs]
        bits = NullBits.of(spec)
        layout = Layout.plain() if name == PLAIN else Layout.of([leaf.parts for leaf in leaves], bits.count)
        plans = []
        for number, ((path, leaf_spec), leaf, places) in enumerate(zip(specs, leaves, layout.places, strict=True)):
            parts = tuple(zip(places, leaf.parts, strict=True))
            around, values_bit = bits.around(number), bits.values.get(number)
            plans.append(LeafPlan(number, path, leaf_spec, leaf, parts, around=around, values_bit=values_bit))
        with_nulls = tuple(plan for plan in plans if plan.spec.nullable_values)
        return cls(spec, name, layout, tuple(plans), bits.count, with_nulls)

    def chosen(self, leaves: Sequence[int]) -> Self:
        """Return the codec of elements that have only these leaves, ascending, of the same records."""
        return replace(self, spec=chosen_spec(self.spec, leaves), leaves=tuple(self.leaves[leaf] for leaf in leaves))

    def decoding(self) -> Self:
        """Return the codec of elements whose images and sounds are decoded; this one if there are none."""
        if not any(isinstance(leaf.spec, EncodedSpec) for leaf in self.leaves):
            return self
        spec = tree.map_structure(self.spec, lambda _, leaf: leaf.decoded if isinstance(leaf, EncodedSpec) else leaf)
        return replace(self, spec=spec, leaves=tuple(leaf.decoding() for leaf in self.leaves))

    @cached_property
    def varying(self) -> dict[int, tuple[int, np.dtype[Any]]]:
        """The varying part that has as many items as the leaf has values, and its dtype, by the numbers of leaves."""
        return {number: self.leaves[number].varying for number in varying_leaves(self.spec)}

    @cached_property
    def _can_be_null(self) -> bool:
        return bool(self.with_nulls) or any(leaf.nulls for leaf in self.leaves)

    @cached_property
    def _pack(self) -> Callable[[Iterator[Any]], Any]:
        return tree.packer(self.spec)

    @cached_property
    def _pack_rows(self) -> Callable[[list[list[Any]], int], list[Any]]:
        return tree.row_packer(self.spec)

    @cached_property
    def _lengths_of(self) -> Callable[..., tuple[int, ...]]:
        return struct.Struct(f"<{self.layout.varying_count}I").unpack_from

    @cached_property
    def _element_of_fixed(self) -> Callable[[bytearray], Any] | None:
        """What makes an element of a record whose leaves have known shapes and are never null: the quickest to read."""
        are_fixed = all(isinstance(leaf.leaf, FixedLeaf) and leaf.files is None for leaf in self.leaves)
        if not self.leaves or not are_fixed or self._can_be_null:
            return None
        arrays = [(part.shape or (), part.dtype, place) for leaf in self.leaves for place, part in leaf.parts]
        pack = self._pack

        def element(record: bytearray) -> Any:
            views = [
                np.ndarray(shape, dtype, record, place) if shape else np.frombuffer(record, dtype, 1, place)[0]
                for shape, dtype, place in arrays
            ]
            return pack(iter(views))

        if not isinstance(self.spec, dict) or not all(isinstance(child, LeafSpec) for child in self.spec.values()):
            return element
        fields = [(key, *array) for key, array in zip(self.spec, arrays, strict=True)]
        # Without a list of the values, a dict takes half as long.
        return lambda record: {
            key: np.ndarray(shape, dtype, record, place) if shape else np.frombuffer(record, dtype, 1, place)[0]
            for key, shape, dtype, place in fields
        }

    # Elements and batches into records

    def columns(self, elements: Sequence[Any]) -> list[Column]:
        """Return one column for each leaf.

        Raises:
            ElementError: if an element does not fit the spec; its record is the index in ``elements``.
        """
        return list(map(_column, self.leaves, tree.flatten_rows(self.spec, elements)))

    def batch_columns(self, batch: Any) -> list[Column]:
        """Return the columns of a batch: the element's structure, with leaves stacked on a leading axis.

        A leaf that is None in some rows is an array of objects, or a Nullable with its filler in those rows.
        """
        columns = tree.flatten_batch(self.spec, batch)
        for leaf, values in zip(self.leaves, columns, strict=True):
            # Keys of a dict, or parts of a structure, are no rows.
            if isinstance(values, (Mapping, tuple)) or (isinstance(values, list) and not leaf.spec.takes_none):
                raise ElementError(leaf.spec.describe(), tree.describe(values), path=leaf.path, record=0)
        return list(map(_column, self.leaves, columns))

    def encode(self, columns: Sequence[Column], rows: int) -> Frames:
        """Return the records of ``rows`` elements."""
        layout = self.layout
        varying = [part for column in columns for part in column.parts if isinstance(part, FlatRows)]
        stored = len(varying)
        varying += [_packed_bits(column.null_values) for column in columns if column.null_values is not None]
        nbytes = np.empty((rows, len(varying)), np.int64)
        for number, flat in enumerate(varying):
            nbytes[:, number] = flat.lengths * flat.values.dtype.itemsize
        if self.name == PLAIN:
            _refuse_nulls(columns[0])
            frames = Frames.allocate(_checked(nbytes[:, 0]), zeros=False)
            _move(frames, frames.starts, varying[0], nbytes[:, 0])
            return frames
        lengths = _checked(layout.fixed_nbytes + padded(nbytes).sum(axis=1))
        frames = Frames.allocate(lengths, zeros=bool(varying))
        if not varying:
            self._write_fixed(frames.buffer.reshape(rows, PREFIX + layout.fixed_nbytes)[:, PREFIX:], columns, nbytes)
            return frames
        section = np.zeros((rows, layout.fixed_nbytes), np.uint8)
        self._write_fixed(section, columns, nbytes[:, :stored])
        scatter_rows(frames.buffer, frames.starts, section)
        starts = frames.starts + layout.fixed_nbytes
        for number, flat in enumerate(varying):
            _move(frames, starts, flat, nbytes[:, number])
            starts = starts + padded(nbytes[:, number])
        return frames

    def _write_fixed(self, section: Bytes, columns: Sequence[Column], nbytes: Ints) -> None:
        layout, rows = self.layout, len(section)
        if not rows:
            return
        for places, column in zip(layout.places, columns, strict=True):
            for place, values in zip(places, column.parts, strict=True):
                if isinstance(values, np.ndarray) and values.size:
                    raw = canonical_bytes(values).reshape(rows, -1).view(np.uint8)
                    section[:, place : place + raw.shape[1]] = raw
        if nbytes.shape[1]:
            raw = np.ascontiguousarray(nbytes, "<u4").view(np.uint8)
            section[:, layout.lengths_offset : layout.lengths_offset + raw.shape[1]] = raw
        section[:, layout.nulls_offset :] = 0
        nulls = self.nulls_of(columns)
        if nulls:
            bits = np.zeros((rows, self.null_bits), np.bool_)
            for number, are_null in nulls.items():
                bits[:, number] = are_null
            section[:, layout.nulls_offset : layout.nulls_offset + layout.null_nbytes] = np.packbits(
                bits, axis=1, bitorder="little"
            )

    def nulls_of(self, columns: Sequence[Column]) -> dict[int, NDArray[np.bool_]]:
        """Return the rows in which each null bit is set, by the numbers of the bits that columns may set."""
        nulls: dict[int, NDArray[np.bool_]] = {}
        for plan, column in zip(self.leaves, columns, strict=True):
            if column.nulls is not None:
                nulls[plan.number] = column.nulls == NULL
                for each in plan.around if column.nulls.dtype != np.bool_ else ():
                    nulls[each.bit] = nulls.get(each.bit, False) | (column.nulls == NULL_DICT + each.depth)
            if column.null_values is not None and plan.values_bit is not None:
                nulls[plan.values_bit] = _rows_with_nulls(column.null_values)
        return nulls

    def null_numbers(self, columns: Sequence[Column]) -> frozenset[int]:
        """Return the numbers of the null bits that are set in some row."""
        return frozenset(number for number, are_null in self.nulls_of(columns).items() if are_null.any())

    # Records into elements and batches

    def decode(self, records: Records, *, separate_rows: bool = False) -> list[Column]:
        """Return the columns of records.

        Args:
            records: the records.
            separate_rows: prepare the columns for :meth:`elements`: an element keeps little memory of others alive.

        Raises:
            ElementError: if an image or sound does not decode; its record is the index in ``records``.
            CorruptionError: if a record is not as the spec says.
        """
        starts, nbytes = self.varying_ranges(records)
        nulls: Any = self._nulls(records) if self._can_be_null else None
        null_values = self._null_values(records, starts, nbytes) if self.with_nulls else {}
        fixed_rows = _separate_fixed_rows if separate_rows else _fixed_rows
        columns = []
        for leaf in self.leaves:
            values: list[Any] = []
            for place, part in leaf.parts:
                if part.shape is not None:
                    values.append(fixed_rows(records, place, part))
                else:
                    flat = records.ranges(starts[:, place], nbytes[:, place]).view(part.dtype)
                    values.append(FlatRows(flat, splits_of(nbytes[:, place] // part.dtype.itemsize)))
            column = Column(tuple(values), leaf.marks(nulls) if leaf.nulls else None, null_values.get(leaf.number))
            columns.append(column if leaf.files is None else leaf.files.decode(column, separate_rows=separate_rows))
        return columns

    def elements(self, columns: Sequence[Column], rows: int) -> list[Any]:
        """Return the elements of columns."""
        values = [plan.rows(column) for plan, column in zip(self.leaves, columns, strict=True)]
        return self._pack_rows(values, rows)

    def element(self, record: bytearray) -> Any:
        """Return the element of one record. It may share the memory of the record."""
        if self.with_nulls:
            return self.elements(self.decode(PackedRecords.of_bytes([bytes(record)]), separate_rows=True), 1)[0]
        layout, size = self.layout, len(record)
        element_of_fixed = self._element_of_fixed
        if element_of_fixed is not None and size <= MAX_SHARED_NBYTES:
            if size != layout.fixed_nbytes:
                raise _damaged(size, layout.fixed_nbytes)
            return element_of_fixed(record)
        starts, nulls = [0], 0
        lengths: tuple[int, ...] = (size,)
        if self.name == TYPED:
            if size < layout.fixed_nbytes:
                raise _damaged(size, layout.fixed_nbytes)
            lengths = self._lengths_of(record, layout.lengths_offset)
            starts, end = [], layout.fixed_nbytes
            for length in lengths:
                starts.append(end)
                end += (length + 7) & ~7
            if end != size:
                raise _damaged(size, end)
            if self._can_be_null:
                nulls = int.from_bytes(record[layout.nulls_offset : layout.nulls_offset + layout.null_nbytes], "little")
        # Of a large record, small parts are copied, so that keeping one does not keep the record.
        least = size // 2 if size > MAX_SHARED_NBYTES else 0
        memory = memoryview(record)
        values: list[Any] = []
        for leaf in self.leaves:
            if nulls & leaf.nulls:
                values.append(leaf.null_of(nulls))
                continue
            arrays = []
            for place, part in leaf.parts:
                if part.shape is not None:
                    array: NDArray[Any] = np.ndarray(part.shape, part.dtype, record, place)
                else:
                    array = np.frombuffer(memory[starts[place] : starts[place] + lengths[place]], part.dtype)
                arrays.append(array if array.nbytes >= least else array.copy())
            values.append(leaf.value_of(*arrays))
        return self._pack(iter(values))

    def batch(self, columns: Sequence[Column]) -> Any:
        """Return a batch: the structure of an element, with leaves stacked on a leading axis."""
        batches = []
        for plan, column in zip(self.leaves, columns, strict=True):
            values, nulls = plan.leaf.batch(column.parts), column.nulls
            if column.null_values is not None:
                values = _batch_with_null_values(values, column.null_values)
            if nulls is not None and (plan.spec.nullable or (nulls == NULL).any()):
                values = Nullable(values, nulls == 0)
            for each in reversed(plan.around):
                if each.nullable and nulls is not None:
                    values = OfNullableDict(values, (nulls < NULL_DICT) | (nulls > NULL_DICT + each.depth), each.depth)
            batches.append(values)
        return self._pack(iter(batches))

    # Leaves of varying length, without decoding the records

    def lengths(self, records: Records) -> Ints:
        """Return the lengths of all leaves in ``varying``, 0 for erased records: int64 of shape ``[rows, leaves]``."""
        if self.name == PLAIN:
            return records.lengths.reshape(-1, 1)
        layout = self.layout
        held, width = records.lengths > 0, 4 * layout.varying_count
        nbytes = np.zeros((len(records), layout.varying_count), np.int64)
        raw = (
            records.same_range(layout.lengths_offset, width)
            if held.all()
            else records.ranges(held * layout.lengths_offset, held * width)
        )
        nbytes[held] = raw.view("<u4").reshape(np.count_nonzero(held), layout.varying_count)
        parts = [part for part, _ in self.varying.values()]
        return nbytes[:, parts] // np.array([dtype.itemsize for _, dtype in self.varying.values()], np.int64)

    def leaf_values(
        self, records: Records, number: int, starts: Ints, counts: Ints, ends: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Return some consecutive values of a leaf of each record, one after another.

        Nothing is read past the end of a leaf, whatever starts and counts are.

        Args:
            records: the records.
            number: the number of the leaf, one of ``varying``.
            starts: for each record, the first value.
            counts: for each record, how many values.
            ends: for each record, True if the leaf must end with the last of these; None if it may always have more.

        Returns:
            An array of the leaf's dtype; uint8 for ``bytes`` and ``str``.
        """
        leaf = self.leaves[number].spec
        if dtypes.is_string(leaf.dtype) and leaf.shape:
            raise InvalidArgumentError(f"leaf {number} is {leaf.describe()}: its values have no fixed size")
        part, dtype = self.varying[number]
        all_begins, all_nbytes = self.varying_ranges(records)
        begins, held = all_begins[:, part], all_nbytes[:, part] // dtype.itemsize
        are_wrong = (starts < 0) | (counts < 0) | (counts > held) | (starts > held - counts)
        if ends is not None:
            are_wrong |= ends & (starts + counts != held)
        wrong = np.flatnonzero(are_wrong)
        if len(wrong):
            row = int(wrong[0])
            raise CorruptionError(
                f"values {starts[row]} to {starts[row] + counts[row]} of a record that has {held[row]}: "
                "its length is not the one that is stored beside the shard"
            )
        values: NDArray[Any] = records.ranges(begins + starts * dtype.itemsize, counts * dtype.itemsize).view(dtype)
        return values

    def whole_values(self, records: Records, number: int) -> Any:
        """Return a leaf of one shape in all records, stacked; a Nullable if it, or a dict around it, may be None.

        Args:
            records: the records.
            number: the number of the leaf.
        """
        plan = self.leaves[number]
        [(place, part)] = plan.parts
        values = _fixed_rows(records, place, part)
        return Nullable(values, plan.marks(self._nulls(records)) == 0) if plan.nulls else values

    def varying_ranges(self, records: Records) -> tuple[Ints, Ints]:
        """Return where each varying part of each record begins, and its bytes: int64 of shape ``[rows, parts]``."""
        layout = self.layout
        if not layout.varying_count and records.uniform_nbytes == layout.fixed_nbytes:
            return _NO_PARTS, _NO_PARTS
        lengths = records.lengths
        if self.name == PLAIN:
            return np.zeros((len(lengths), 1), np.int64), lengths.reshape(-1, 1)
        short = np.flatnonzero(lengths < layout.fixed_nbytes)
        if len(short):
            raise _damaged(int(lengths[short[0]]), layout.fixed_nbytes)
        nbytes = np.empty((len(lengths), 0), np.int64)
        if layout.varying_count:
            nbytes = records.same_range(layout.lengths_offset, 4 * layout.varying_count).view("<u4").astype(np.int64)
        ends = np.cumsum(padded(nbytes), axis=1) + layout.fixed_nbytes
        starts = ends - padded(nbytes)
        end = ends[:, -1] if layout.varying_count else np.full(len(lengths), layout.fixed_nbytes)
        for _, begins, held in self._ranges_of_nulls(records, end, nbytes):
            end = begins + padded(held)
        wrong = np.flatnonzero(end != lengths)
        if len(wrong):
            raise _damaged(int(lengths[wrong[0]]), int(end[wrong[0]]))
        return starts, nbytes

    def _ranges_of_nulls(self, records: Records, end: Ints, nbytes: Ints) -> Iterator[tuple[LeafPlan, Ints, Ints]]:
        """Yield where the bits of the values of each leaf begin in each record, and their bytes.

        Args:
            records: the records.
            end: the end of the varying parts of each record.
            nbytes: the bytes of these.
        """
        bits: Any = self._nulls(records) if self.with_nulls else None
        for plan in self.with_nulls:
            held = np.where(bits[:, plan.values_bit], (plan.counts(nbytes) + 7) // 8, 0)
            yield plan, end, held
            end = end + padded(held)

    def _null_values(self, records: Records, starts: Ints, nbytes: Ints) -> dict[int, FlatRows]:
        """Return which values of the leaves that may hold nulls are null, by the numbers of the leaves."""
        found = {}
        if self.layout.varying_count:
            end = starts[:, -1] + padded(nbytes[:, -1])
        else:
            nbytes, end = np.empty((len(records), 0), np.int64), np.full(len(records), self.layout.fixed_nbytes)
        for plan, begins, held in self._ranges_of_nulls(records, end, nbytes):
            bits = np.unpackbits(records.ranges(begins * (held > 0), held), bitorder="little").view(np.bool_)
            splits = splits_of(plan.counts(nbytes))
            nulls = np.zeros(splits[-1], np.bool_)
            are_stored, places = _bits_of_values(splits, held)
            nulls[are_stored] = bits[places]
            found[plan.number] = FlatRows(nulls, splits)
        return found

    def _nulls(self, records: Records) -> Any:
        raw = records.same_range(self.layout.nulls_offset, self.layout.null_nbytes)
        return np.unpackbits(raw, axis=1, bitorder="little").view(np.bool_)


def _column(plan: LeafPlan, values: Any) -> Column:
    """Return the column of a list of values, or of values stacked on a leading axis."""
    nulls = None
    if isinstance(values, Nullable) and values.valid.ndim == 1:
        values, nulls = _without_marks(values)
    is_whole = not isinstance(values, Nullable) and not isinstance(getattr(values, "flat_values", None), Nullable)
    if not is_whole or (nulls is None and isinstance(values, np.ndarray) and values.dtype == object):
        values = list(values)
    try:
        if not isinstance(values, list):
            return Column(plan.leaf.encode_batch(values), nulls)
        if nulls is None:
            values, nulls = _with_fillers(plan, values)
        return _with_separate_nulls(plan, values, nulls)
    except ElementError as error:
        raise error.at(path=plan.path) from error.__cause__


def _without_marks(batch: Nullable) -> tuple[Any, NDArray[Any]]:
    """Return the values of a leaf in a batch, and the nulls of their column."""
    nulls = np.zeros(len(batch.valid), np.uint8)
    values: Any = batch
    while isinstance(values, Nullable) and values.valid.ndim == 1:
        mark = NULL_DICT + values.depth if isinstance(values, OfNullableDict) else NULL
        nulls[~values.valid & (nulls == 0)] = mark
        values = values.values
    return values, nulls


def _with_fillers(plan: LeafPlan, values: list[Any]) -> tuple[list[Any], NDArray[Any] | None]:
    """Return values with fillers in place of nulls, and the nulls of their column; None for no nulls."""
    kinds, takes_none = set(map(type, values)), plan.spec.takes_none
    if not plan.nulls and NullDict not in kinds and (takes_none or type(None) not in kinds):
        return values, None
    nulls = np.zeros(len(values), np.uint8)
    filled, filler = list(values), plan.leaf.filler()
    for row, value in enumerate(values):
        if value is None and not takes_none:
            nulls[row], filled[row] = NULL, filler
        elif type(value) is NullDict:
            nulls[row], filled[row] = NULL_DICT + value.depth, filler
    return filled, nulls


def _with_separate_nulls(plan: LeafPlan, values: list[Any], nulls: NDArray[Any] | None) -> Column:
    """Return the column of values of which none is None, though values within them may be."""
    null_values = None
    try:
        parts = plan.leaf.encode(values)
    except ElementError:
        # Only what does not fit is searched for nulls, so that other elements cost nothing extra.
        separated = None if plan.values_bit is None else separate_nulls(plan.spec, values)
        if separated is None:
            raise
        values, null_values = separated
        parts = plan.leaf.encode(values)
    if null_values is None and plan.spec.nullable_values:
        null_values = np.zeros(plan.values_of(parts)[-1], np.bool_)
    return Column(parts, nulls, None if null_values is None else FlatRows(null_values, plan.values_of(parts)))


def _bits_of_values(splits: Ints, held: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Return which values have bits, and the places of these bits.

    Args:
        splits: where the values of each row begin.
        held: the bytes that the bits of each row take; 0 for rows without.
    """
    counts = np.diff(splits)
    are_stored = np.repeat(held > 0, counts)
    places = np.arange(splits[-1]) + np.repeat(splits_of(held)[:-1] * 8 - splits[:-1], counts)
    return are_stored, places[are_stored]


def _rows_with_nulls(null_values: FlatRows) -> NDArray[np.bool_]:
    totals = splits_of(null_values.values)
    return np.diff(totals[null_values.splits]) > 0


def _packed_bits(null_values: FlatRows) -> FlatRows:
    """Return the bits of the values of each row that has nulls among them."""
    held = np.where(_rows_with_nulls(null_values), (null_values.lengths + 7) // 8, 0)
    splits = splits_of(held)
    bits = np.zeros(8 * splits[-1], np.bool_)
    are_stored, places = _bits_of_values(null_values.splits, held)
    bits[places] = null_values.values[are_stored]
    return FlatRows(np.packbits(bits, bitorder="little"), splits)


def _rows_with_null_values(rows: Iterable[Any], null_values: FlatRows) -> Iterator[Any]:
    """Yield the values of elements with the nulls that are within them."""
    for value, (start, stop) in zip(rows, pairwise(null_values.splits.tolist()), strict=True):
        yield _with_null_values(value, null_values.values[start:stop])


def _with_null_values(value: Any, nulls: NDArray[np.bool_]) -> Any:
    if isinstance(value, Ragged):
        return value.with_flat(_with_null_values(value.flat_values, nulls))
    return Nullable(value, ~nulls.reshape(value.shape))


def _batch_with_null_values(batch: Any, null_values: FlatRows) -> Any:
    """Return a batch of a leaf with the nulls that are within its values."""
    if isinstance(batch, np.ndarray) and batch.dtype == object and batch.size and isinstance(batch.flat[0], Ragged):
        # The rows are apart if their inner dimensions are unknown.
        return np.fromiter(_rows_with_null_values(batch, null_values), object, len(batch))
    return _with_null_values(batch, null_values.values)


def _fixed_rows(records: Records, offset: int, part: LeafPart) -> NDArray[Any]:
    """Return a fixed part of records, stacked on a leading axis."""
    # One call does what a view and a reshape would do, without a copy.
    raw = records.same_range(offset, part.nbytes) if part.nbytes else None
    return np.ndarray((len(records), *(part.shape or ())), part.dtype, raw)


def _separate_fixed_rows(records: Records, offset: int, part: LeafPart) -> list[NDArray[Any]] | NDArray[Any]:
    """Return a fixed part of each record as arrays of which few share memory; scalars as one array."""
    shape = part.shape or ()
    if not shape or not part.nbytes:
        return _fixed_rows(records, offset, part)
    together = rows_sharing_memory(part.nbytes)
    if together == 1:
        # Long rows are not copied twice.
        groups = [records.single(row).same_range(offset, part.nbytes) for row in range(len(records))]
    else:
        raw = records.same_range(offset, part.nbytes)
        groups = [raw[start : start + together].copy() for start in range(0, len(raw), together)]
    return [row for group in groups for row in np.ndarray((len(group), *shape), part.dtype, group)]


def _move(frames: Frames, starts: Ints, flat: FlatRows, nbytes: Ints) -> None:
    """Write a varying part of each record."""
    raw = canonical_bytes(flat.values).view(np.uint8)
    move_ranges(frames.buffer, starts, raw, flat.splits[:-1] * flat.values.dtype.itemsize, nbytes)


def _refuse_nulls(column: Column) -> None:
    if column.nulls is not None:
        row = int(np.flatnonzero(column.nulls)[0])
        hint = "To store None, declare element_spec=ArraySpec(bytes, nullable=True)."
        raise ElementError("bytes", "None", record=row, hint=hint)


def _damaged(nbytes: int, wanted: int) -> CorruptionError:
    return CorruptionError(f"a record of {nbytes} bytes, of which the parts take {wanted}")


def _checked(lengths: Ints) -> Ints:
    too_long = np.flatnonzero(lengths > _MAX_RECORD_NBYTES)
    if len(too_long):
        row = int(too_long[0])
        expected, got = f"a record of at most {_MAX_RECORD_NBYTES} bytes", f"{lengths[row]} bytes"
        raise ElementError(expected, got, record=row, hint="Split the element.")
    return lengths
