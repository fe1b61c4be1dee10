"""The codec: elements and batches into records, and records into elements and batches.

Between both lie columns, one for each leaf, so that all rows are translated at once::

    elements -- columns -------->          -- encode -->  Frames,       Records  -- decode -->         -- elements -->
                                  Columns                 to hash and                          Columns
    a batch  -- batch_columns -->                         write                                        -- batch ----->

    a record -- element --> an element                    (the quickest way to one: ref[i])
    Records  -- lengths, leaf_values, fixed_values        (some values of a leaf, without decoding the records)

There are two forms of records. ``typed/1`` has leaves where :mod:`cachelayer.records.layout` says. ``bytes/1`` stores
elements that are ``bytes`` as they are, so that their shards are ordinary ArrayRecord files. Nothing is ever pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, ElementError, FormatError, InvalidArgumentError
from cachelayer.records.layout import Layout, LeafPart, padded
from cachelayer.records.leaf_codecs import FixedLeafCodec, leaf_codec_for
from cachelayer.records.leaf_columns import Column, Columns, FlatRows, packed_bits, rows_with_nulls, unpacked_bits
from cachelayer.records.spans import Records, Spans, lie_outside
from cachelayer.records.stored_leaves import StoredLeaf
from cachelayer.specs import dtypes
from cachelayer.specs.dtypes import canonical_bytes
from cachelayer.specs.leaf_names import has_length
from cachelayer.specs.schema import Flags, Schema, rows_in_any
from cachelayer.specs.spec import ArraySpec, EncodedSpec, LeafSpec, decoded_leaf, describe_leaf, takes_none
from cachelayer.specs.tree import Tree, describe, map_structure
from cachelayer.specs.values import Nullable
from cachelayer.support.locks import PickledByFields, cached_property
from cachelayer.support.memory import (
    MAX_SHARED_NBYTES,
    Bytes,
    Ints,
    Placed,
    move_ranges,
    rows_sharing_memory,
    splits_of,
)

if TYPE_CHECKING:
    from cachelayer.records.frames import Frames

TYPED = "typed/1"
PLAIN = "bytes/1"
_MAX_RECORD_NBYTES = 2**32 - 1


def codec_for(spec: Tree) -> Codec:
    """Return the codec for elements of a spec."""
    return Codec.of(spec, PLAIN if spec == ArraySpec(bytes) else TYPED)


def codec_named(name: str, spec: Tree) -> Codec:
    """Return the codec that a manifest names."""
    if name not in (TYPED, PLAIN):
        raise FormatError(f"unknown codec {name!r}: if a newer release wrote it, update cachelayer")
    if name == PLAIN and spec != ArraySpec(bytes):
        raise FormatError(f"records of codec {name!r} are bytes objects, not {spec}")
    return Codec.of(spec, name)


@dataclass(frozen=True, eq=False)
class _VaryingPlaces:
    """The places of the varying parts of some records, and of the bits of their null values."""

    starts: Ints
    """Where each varying part begins in its record: of shape ``[rows, parts]``."""
    nbytes: Ints
    """The bytes of each varying part, without padding: of shape ``[rows, parts]``."""
    value_bits: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    """By the number of each leaf that may hold null values: where their bits begin in each record, and their bytes."""


_NOTHING: Ints = np.empty((0, 0), np.int64)
_NO_VARYING_PLACES = _VaryingPlaces(_NOTHING, _NOTHING)


@dataclass(frozen=True, eq=False)
class Codec(PickledByFields):
    """Translates between elements, batches, columns and records."""

    schema: Schema
    """The schema of the elements."""
    name: str
    """The name of the codec in manifests."""
    layout: Layout
    leaves: tuple[StoredLeaf, ...]
    """The leaves of the elements."""
    record_schema: Schema
    """The schema of the records, of which elements may have only some leaves."""
    with_null_values: tuple[StoredLeaf, ...]
    """All leaves of the records within which values may be null, whether the elements have these leaves or not."""
    spec: Tree = field(init=False)
    """The spec of the elements."""
    has_videos: bool = field(init=False)
    """True if some of the leaves are videos."""
    reads_videos: bool = field(init=False)
    """True if elements have the bytes of videos."""
    _nullable: dict[str, int] = field(init=False)
    """The numbers of the null bits of the leaves and dicts that may be None, by path."""

    def __post_init__(self) -> None:
        videos = [leaf for leaf in self.leaves if leaf.has_file]
        vars(self).update(
            spec=self.schema.spec,
            has_videos=bool(videos),
            reads_videos=any(leaf.files is None for leaf in videos),
            _nullable={node.path: self.record_schema.bits[node.path] for node in self.schema.nullable},
        )

    @classmethod
    def of(cls, spec: Tree, name: str = TYPED) -> Self:
        """Return the codec of records that hold elements of a spec."""
        schema = Schema.of(spec)
        codecs = [leaf_codec_for(node.spec) for node in schema.leaves]
        parts = [codec.parts for codec in codecs]
        layout = Layout.plain() if name == PLAIN else Layout.of(parts, schema.bit_count)
        leaves = tuple(
            StoredLeaf(node, codec, tuple(zip(places, codec.parts, strict=True)))
            for node, codec, places in zip(schema.leaves, codecs, layout.places, strict=True)
        )
        with_null_values = tuple(leaf for leaf in leaves if leaf.node.spec.nullable_values)
        return cls(schema, name, layout, leaves, schema, with_null_values)

    def chosen(self, numbers: Sequence[int]) -> Self:
        """Return the codec that reads the same records, as elements with the leaves of these numbers, ascending."""
        leaves = tuple(self.leaves[number] for number in numbers)
        return replace(self, schema=Schema.of(self.schema.chosen(numbers)), leaves=leaves)

    def decoding(self) -> Self:
        """Return the codec that decodes images and sounds; this codec if elements have none."""
        if not any(isinstance(leaf.node.spec, EncodedSpec) for leaf in self.leaves):
            return self
        schema = Schema.of(map_structure(self.spec, lambda _, leaf: decoded_leaf(leaf)))
        return replace(self, schema=schema, leaves=tuple(leaf.decoding() for leaf in self.leaves))

    @cached_property
    def varying(self) -> dict[int, tuple[int, np.dtype[Any]]]:
        """By the number of each leaf that has lengths: the varying part that has its values, and the dtype of these."""
        varying = [leaf.leaves.start for leaf in self.schema.leaves if has_length(leaf.spec)]
        return {number: self.leaves[number].first_varying for number in varying}

    @cached_property
    def _null_masks(self) -> dict[int, int]:
        """The null bits that make a leaf None, by its number: bit n for the null bit n."""
        bits = self._nullable
        return {
            leaf.node.number: sum(1 << bits[path] for path in leaf.node.lineage if path in bits) for leaf in self.leaves
        }

    @cached_property
    def _lengths_of(self) -> Callable[..., tuple[int, ...]]:
        return struct.Struct(f"<{self.layout.varying_count}I").unpack_from

    # Elements and batches into records

    def columns(self, elements: Sequence[Any]) -> Columns:
        """Return the columns of elements; the record of an ElementError is the index in ``elements``."""
        return self._columns(*self.schema.split_rows(elements), len(elements))

    def batch_columns(self, batch: Any, rows: int) -> Columns:
        """Return the columns of a batch: a structure like an element, with leaves stacked on a leading axis.

        A leaf that is None in some rows is an array of objects, or a Nullable with its filler in those rows.
        """
        values, nulls = self.schema.split(batch, Nullable)
        for leaf, of_leaf in zip(self.leaves, values, strict=True):
            # The keys of a dict, or the parts of a tuple or list, are no rows.
            if isinstance(of_leaf, (Mapping, tuple)) or (isinstance(of_leaf, list) and not takes_none(leaf.node.spec)):
                raise ElementError(describe_leaf(leaf.node.spec), describe(of_leaf), path=leaf.node.path, record=0)
        return self._columns(values, nulls, rows)

    def _columns(self, values: Sequence[Any], nulls: dict[str, Flags], rows: int) -> Columns:
        """Return the columns of the values of leaves, given in which rows dicts are None."""
        columns = []
        for leaf, of_leaf in zip(self.leaves, values, strict=True):
            absent = rows_in_any(nulls, leaf.node.lineage)
            column, are_none = leaf.column(of_leaf, absent)
            columns.append(column)
            if are_none is not None:
                nulls[leaf.node.path] = are_none if absent is None else are_none & ~absent
        return Columns(columns, rows, nulls)

    def encode(self, columns: Columns) -> Frames:
        """Return the records of columns."""
        from cachelayer.records.frames import PREFIX, Frames

        if self.name == PLAIN:
            return _plain_records(columns)
        rows = columns.rows
        layout = self.layout
        varying = self._varying_parts(columns.leaves)
        value_bits = [packed_bits(column.null_values) for column in columns.leaves if column.null_values is not None]
        tails = [*varying, *value_bits]
        nbytes = np.empty((rows, len(tails)), np.int64)
        for number, tail in enumerate(tails):
            nbytes[:, number] = tail.lengths * tail.values.dtype.itemsize
        lengths = _checked(layout.fixed_nbytes + padded(nbytes).sum(axis=1))
        # The fixed section is overwritten as a whole. The padding after each tail stays zero, so the buffer begins as
        # zeros.
        frames = Frames.allocate(lengths, zeros=bool(tails))
        if not tails:
            section = frames.buffer.reshape(rows, PREFIX + layout.fixed_nbytes)[:, PREFIX:]
            self._write_fixed(section, columns, nbytes)
            return frames
        section = np.zeros((rows, layout.fixed_nbytes), np.uint8)
        self._write_fixed(section, columns, nbytes[:, : len(varying)])
        width = layout.fixed_nbytes
        move_ranges(frames.buffer, frames.starts, section.reshape(-1), np.arange(rows) * width, np.full(rows, width))
        starts = frames.starts + layout.fixed_nbytes
        for number, tail in enumerate(tails):
            _write_varying(frames, starts, tail, nbytes[:, number])
            starts = starts + padded(nbytes[:, number])
        return frames

    def _write_fixed(self, section: Bytes, columns: Columns, nbytes: Ints) -> None:
        """Write the fixed sections of records: uint8 of shape ``[rows, fixed_nbytes]``."""
        layout = self.layout
        rows = len(section)
        if not rows:
            return
        for places, column in zip(layout.places, columns.leaves, strict=True):
            for place, values in zip(places, column.parts, strict=True):
                if isinstance(values, np.ndarray) and values.size:
                    _write_rows(section, place, canonical_bytes(values).reshape(rows, -1).view(np.uint8))
        if nbytes.shape[1]:
            _write_rows(section, layout.lengths_offset, np.ascontiguousarray(nbytes, "<u4").view(np.uint8))
        end = np.zeros((rows, layout.fixed_nbytes - layout.nulls_offset), np.uint8)
        rows_of_bits = self.rows_by_null_bit(columns)
        if rows_of_bits:
            bits = np.zeros((rows, self.record_schema.bit_count), np.bool_)
            for bit, are_set in rows_of_bits.items():
                bits[:, bit] = are_set
            end[:, : layout.null_nbytes] = np.packbits(bits, axis=1, bitorder="little")
        if end.size:
            _write_rows(section, layout.nulls_offset, end)

    def rows_by_null_bit(self, columns: Columns) -> dict[int, NDArray[np.bool_]]:
        """Return in which rows each null bit is set, by the numbers of the bits that these columns may set."""
        rows: dict[int, NDArray[np.bool_]] = {}
        for leaf, column in zip(self.leaves, columns.leaves, strict=True):
            if column.null_values is not None:
                rows[self.record_schema.bits_of_values[leaf.node.path]] = rows_with_nulls(column.null_values)
        for node in (*self.schema.leaves, *self.schema.dicts):
            null = columns.nulls.get(node.path)
            if null is not None:
                # Within a dict that is None, nothing else is.
                absent = rows_in_any(columns.nulls, node.lineage[:-1])
                rows[self.record_schema.bits[node.path]] = null if absent is None else null & ~absent
        return rows

    def null_bits_in(self, columns: Columns) -> frozenset[int]:
        """Return the numbers of the null bits that are set in some row."""
        return frozenset(bit for bit, are_set in self.rows_by_null_bit(columns).items() if are_set.any())

    def _varying_parts(self, columns: Sequence[Column]) -> list[FlatRows]:
        """Return the varying parts of columns in the order in which they lie in records."""
        parts = {
            place: part
            for places, column in zip(self.layout.places, columns, strict=True)
            for place, part in zip(places, column.parts, strict=True)
            if isinstance(part, FlatRows)
        }
        return [parts[place] for place in range(self.layout.varying_count)]

    # Records into elements and batches

    def decode(self, records: Records, numbers: Ints | None = None, *, separate_rows: bool = False) -> Columns:
        """Return the columns of records; the record of an ElementError is the index in ``records``.

        Errors of videos have the ``numbers``. With ``separate_rows``, rows are kept one by one, for :meth:`elements`.
        """
        places = self._varying_places(records)
        null_bits = self._null_bits(records) if self._nullable else None
        nulls = {} if null_bits is None else {path: null_bits[:, bit] for path, bit in self._nullable.items()}
        fixed_rows = _separate_fixed_rows if separate_rows else _fixed_rows
        columns = []
        for leaf in self.leaves:
            parts: list[Any] = []
            for place, part in leaf.parts:
                if part.shape is not None:
                    parts.append(fixed_rows(records, place, part))
                elif part.is_file and leaf.files is not None:
                    from cachelayer.records.files_in_records import StoredBytes

                    ranges = zip(places.starts[:, place].tolist(), places.nbytes[:, place].tolist(), strict=True)
                    parts.append([StoredBytes(records, row, *bounds) for row, bounds in enumerate(ranges)])
                else:
                    nbytes = places.nbytes[:, place]
                    values = records.ranges(places.starts[:, place], nbytes).view(part.dtype)
                    parts.append(FlatRows(values, splits_of(nbytes // part.dtype.itemsize)))
            has_null_values = leaf.node.number in places.value_bits
            null_values = _null_values(records, leaf, places) if has_null_values else None
            column = Column(tuple(parts), null_values)
            if leaf.files is not None:
                absent = rows_in_any(nulls, leaf.node.lineage)
                column = leaf.files.decode(column, absent, numbers, separate_rows=separate_rows)
            columns.append(column)
        return Columns(columns, len(records), nulls)

    def elements(self, columns: Columns) -> list[Any]:
        """Return the elements of columns."""
        values = [leaf.values(column, columns) for leaf, column in zip(self.leaves, columns.leaves, strict=True)]
        return self.schema.pack_rows(values, columns.nulls, columns.rows)

    def batch(self, columns: Columns) -> Any:
        """Return the batch of columns: a structure like an element, with leaves stacked on a leading axis."""
        batches = [leaf.batch(column, columns) for leaf, column in zip(self.leaves, columns.leaves, strict=True)]
        nulls = {}
        for node in self.schema.nullable_dicts:
            absent = rows_in_any(columns.nulls, node.lineage)
            nulls[node.path] = np.zeros(columns.rows, np.bool_) if absent is None else absent
        return self.schema.pack(batches, nulls)

    @cached_property
    def element(self) -> Callable[[bytearray], Any]:
        """Returns the element of one record, whose memory it may share: what :meth:`decode` does for many records."""
        return self._element_of_fixed or self._element

    def _element(self, record: bytearray) -> Any:
        if self.with_null_values:
            return self.elements(self.decode(Spans.of_bytes([bytes(record)]), separate_rows=True))[0]
        layout = self.layout
        size = len(record)
        starts = [0]
        lengths: tuple[int, ...] = (size,)
        null_bits = 0
        if self.name == TYPED:
            if size < layout.fixed_nbytes:
                raise _damaged(size, layout.fixed_nbytes)
            lengths = self._lengths_of(record, layout.lengths_offset)
            starts = []
            end = layout.fixed_nbytes
            for length in lengths:
                starts.append(end)
                end += (length + 7) & ~7
            if end != size:
                raise _damaged(size, end)
            if self._nullable:
                raw = record[layout.nulls_offset : layout.nulls_offset + layout.null_nbytes]
                null_bits = int.from_bytes(raw, "little")
        # Small parts of a large record are copied: a view of one would keep the whole record in memory.
        least_shared_nbytes = size // 2 if size > MAX_SHARED_NBYTES else 0
        memory = memoryview(record)
        values: list[Any] = []
        for leaf in self.leaves:
            if null_bits and null_bits & self._null_masks[leaf.node.number]:
                values.append(None)
                continue
            arrays = []
            for place, part in leaf.parts:
                if part.shape is not None:
                    array: NDArray[Any] = np.ndarray(part.shape, part.dtype, record, place)
                else:
                    array = np.frombuffer(memory[starts[place] : starts[place] + lengths[place]], part.dtype)
                arrays.append(array if array.nbytes >= least_shared_nbytes else array.copy())
            values.append(leaf.value_of(*arrays))
        if not null_bits:
            return self.schema.pack(values)
        return self.schema.pack(values, {path: True for path, bit in self._nullable.items() if null_bits >> bit & 1})

    @cached_property
    def _element_of_fixed(self) -> Callable[[bytearray], Any] | None:
        """The quick way from a record to its element, which ``ref[i]`` waits for.

        None unless elements are made of arrays of known shapes which are never None, and small enough to share the
        memory of their record.
        """
        nbytes = self.layout.fixed_nbytes
        are_fixed = all(isinstance(leaf.codec, FixedLeafCodec) and leaf.files is None for leaf in self.leaves)
        may_be_null = self._nullable or self.with_null_values
        if not self.leaves or not are_fixed or may_be_null or nbytes > MAX_SHARED_NBYTES:
            return None
        arrays = [(part.shape or (), part.dtype, place) for leaf in self.leaves for place, part in leaf.parts]
        keys = list(self.spec) if isinstance(self.spec, dict) else []
        is_flat = len(keys) == len(arrays) and all(isinstance(self.spec[key], LeafSpec) for key in keys)
        fields = [(key, *array) for key, array in zip(keys if is_flat else range(len(arrays)), arrays, strict=True)]
        pack = self.schema.pack

        def element(record: bytearray) -> Any:
            if len(record) != nbytes:
                raise _damaged(len(record), nbytes)
            leaves = {
                key: np.ndarray(shape, dtype, record, place) if shape else np.frombuffer(record, dtype, 1, place)[0]
                for key, shape, dtype, place in fields
            }
            return leaves if is_flat else pack(list(leaves.values()))

        return element

    # Videos, without the bytes of their files

    def video_files(self, records: Records) -> list[tuple[Ints, Ints, Ints]]:
        """Return the begins of the files of videos, their bytes and their CRC32C, leaf by leaf; reads fixed parts."""
        places = self._varying_places(records)
        places_of_parts = sorted((leaf.parts[-1][0], leaf.parts[0][0]) for leaf in self.leaves if leaf.has_file)
        files = []
        for file, checksum in places_of_parts:
            checksums = records.take(checksum, 4).view("<u4").reshape(-1).astype(np.int64)
            files.append((places.starts[:, file], places.nbytes[:, file], checksums))
        return files

    # Leaves of varying length, without decoding the records

    def lengths(self, records: Records) -> Ints:
        """Return the length of each leaf that has lengths: int64 of shape ``[rows, len(self.varying)]``.

        An erased record has lengths of 0.
        """
        if self.name == PLAIN:
            return records.lengths.reshape(-1, 1)
        layout = self.layout
        # An erased record has no bytes, so no lengths stand in it.
        have_bytes = records.lengths > 0
        width = 4 * layout.varying_count
        if have_bytes.all():
            raw = records.take(layout.lengths_offset, width)
        else:
            raw = records.ranges(have_bytes * layout.lengths_offset, have_bytes * width)
        nbytes = np.zeros((len(records), layout.varying_count), np.int64)
        nbytes[have_bytes] = raw.view("<u4").reshape(np.count_nonzero(have_bytes), layout.varying_count)
        parts = [part for part, _ in self.varying.values()]
        return nbytes[:, parts] // np.array([dtype.itemsize for _, dtype in self.varying.values()], np.int64)

    def leaf_values(
        self,
        records: Records,
        number: int,
        starts: Ints,
        counts: Ints,
        ends: NDArray[np.bool_] | None = None,
        into: Placed | None = None,
    ) -> NDArray[Any]:
        """Return some consecutive values of a leaf, one of ``varying``, of each record: uint8 of ``bytes`` and ``str``.

        They are written ``into`` an array, or follow one another in a new one. Nothing is read past the end of a leaf,
        whatever starts and counts are; where ``ends`` is True, the leaf must end with the last of these values.
        """
        spec = self.leaves[number].node.spec
        if dtypes.is_string(spec.dtype) and spec.shape:
            raise InvalidArgumentError(f"leaf {number} is {describe_leaf(spec)}: its values have no fixed size")
        part, dtype = self.varying[number]
        places = self._varying_places(records)
        begins = places.starts[:, part]
        lengths = places.nbytes[:, part] // dtype.itemsize
        are_wrong = lie_outside(starts, counts, lengths)
        if ends is not None:
            are_wrong |= ends & (starts + counts != lengths)
        if are_wrong.any():
            row = int(are_wrong.argmax())
            raise CorruptionError(
                f"values {starts[row]} to {starts[row] + counts[row]} of a record that has {lengths[row]}: "
                "its length is not the one that is stored beside the shard"
            )
        begins = begins + starts * dtype.itemsize
        nbytes = counts * dtype.itemsize
        if into is None:
            return records.ranges(begins, nbytes).view(dtype)
        records.move(begins, nbytes, into.values.view(np.uint8), into.places * dtype.itemsize)
        return into.values

    def fixed_values(self, records: Records, number: int) -> Any:
        """Return a leaf of one shape in all records, stacked; a Nullable if it, or a dict around it, may be None."""
        leaf = self.leaves[number]
        [(place, part)] = leaf.parts
        values = _fixed_rows(records, place, part)
        bits = [self._nullable[path] for path in leaf.node.lineage if path in self._nullable]
        if not bits:
            return values
        return Nullable(values, ~np.logical_or.reduce(self._null_bits(records)[:, bits], axis=1))

    def _varying_places(self, records: Records) -> _VaryingPlaces:
        """Return where the varying parts of each record lie; raise if a record has another length than they give."""
        layout = self.layout
        sizes = records.sizes
        is_fixed = not layout.varying_count and not self.with_null_values
        if is_fixed and isinstance(sizes, int) and sizes == layout.fixed_nbytes:
            return _NO_VARYING_PLACES
        lengths = records.lengths
        if self.name == PLAIN:
            return _VaryingPlaces(np.zeros((len(lengths), 1), np.int64), lengths.reshape(-1, 1))
        nbytes = np.empty((len(lengths), 0), np.int64)
        if layout.varying_count:
            nbytes = records.take(layout.lengths_offset, 4 * layout.varying_count).view("<u4").astype(np.int64)
        nbytes_padded = padded(nbytes)
        ends = nbytes_padded.cumsum(axis=1) + layout.fixed_nbytes
        starts = ends - nbytes_padded
        end = ends[:, -1] if layout.varying_count else np.full(len(lengths), layout.fixed_nbytes)
        value_bits = {}
        if self.with_null_values:
            null_bits = self._null_bits(records)
            for leaf in self.with_null_values:
                has_nulls = null_bits[:, self.record_schema.bits_of_values[leaf.node.path]]
                held = np.where(has_nulls, (leaf.value_counts(nbytes) + 7) // 8, 0)
                value_bits[leaf.node.number] = (end, held)
                end = end + padded(held)
        is_wrong = end != lengths
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise _damaged(int(lengths[row]), int(end[row]))
        return _VaryingPlaces(starts, nbytes, value_bits)

    def _null_bits(self, records: Records) -> NDArray[np.bool_]:
        """Return the null bits of records: bool of shape ``[rows, bits]``, or a few bits more."""
        raw = records.take(self.layout.nulls_offset, self.layout.null_nbytes)
        return np.unpackbits(raw, axis=1, bitorder="little").view(np.bool_)


def _null_values(records: Records, leaf: StoredLeaf, places: _VaryingPlaces) -> FlatRows:
    """Return the nulls among the values within a leaf."""
    begins, nbytes = places.value_bits[leaf.node.number]
    raw = records.ranges(begins * (nbytes > 0), nbytes)
    return unpacked_bits(raw, splits_of(leaf.value_counts(places.nbytes)), nbytes)


def _fixed_rows(records: Records, offset: int, part: LeafPart) -> NDArray[Any]:
    """Return a fixed part of records, stacked on a leading axis."""
    # One call does what a view and a reshape would do, without a copy.
    raw = records.take(offset, part.nbytes) if part.nbytes else None
    return np.ndarray((len(records), *(part.shape or ())), part.dtype, raw)


def _separate_fixed_rows(records: Records, offset: int, part: LeafPart) -> list[NDArray[Any]] | NDArray[Any]:
    """Return a fixed part of each record: to keep one row keeps at most 64 KiB of other rows alive."""
    at_once = rows_sharing_memory(part.nbytes)
    if not part.shape or len(records) <= at_once:
        return _fixed_rows(records, offset, part)
    rows: list[NDArray[Any]] = []
    for first in range(0, len(records), at_once):
        rows.extend(_fixed_rows(records[first : first + at_once], offset, part))
    return rows


def _plain_records(columns: Columns) -> Frames:
    """Return the records of ``bytes``, which are stored as they are."""
    from cachelayer.records.frames import Frames

    nulls = columns.nulls.get("")
    if nulls is not None and nulls.any():
        row = int(nulls.argmax())
        hint = "To store None, declare element_spec=ArraySpec(bytes, nullable=True)."
        raise ElementError("bytes", "None", record=row, hint=hint)
    [values] = columns.leaves[0].parts
    frames = Frames.allocate(_checked(values.lengths), zeros=False)
    _write_varying(frames, frames.starts, values, values.lengths)
    return frames


def _write_rows(section: Bytes, place: int, raw: Bytes) -> None:
    """Write a row of bytes to the same place of each record: in one piece, for numpy copies single bytes slowly."""
    item = f"V{raw.shape[1]}"
    section[:, place : place + raw.shape[1]].view(item)[...] = raw.view(item)


def _write_varying(frames: Frames, starts: Ints, rows: FlatRows, nbytes: Ints) -> None:
    """Write a varying part of each record to where it starts in the buffer of the frames."""
    raw = canonical_bytes(rows.values).view(np.uint8)
    move_ranges(frames.buffer, starts, raw, rows.splits[:-1] * rows.values.dtype.itemsize, nbytes)


def _damaged(nbytes: int, wanted: int) -> CorruptionError:
    return CorruptionError(f"a record of {nbytes} bytes, of which the parts take {wanted}")


def _checked(lengths: Ints) -> Ints:
    """Return the lengths of records, none of which is too long."""
    too_long = np.flatnonzero(lengths > _MAX_RECORD_NBYTES)
    if len(too_long):
        row = int(too_long[0])
        expected = f"a record of at most {_MAX_RECORD_NBYTES} bytes"
        raise ElementError(expected, f"{lengths[row]} bytes", record=row, hint="Split the element.")
    return lengths
