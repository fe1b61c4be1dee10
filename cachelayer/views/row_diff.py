"""Comparison of the rows of two versions: rows that came, rows that went, and rows that changed.

Keys and record numbers of all rows are in memory. Records are read some at a time, and only in the fields that both
versions have. A record that lies at the same place of one shard in both versions is equal, and is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset import leaves_below
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.field_values import keys_of_view
from cachelayer.datasets.table import Table
from cachelayer.errors import InvalidTypeError
from cachelayer.records.keys import Keys, numbered, rows_by_number
from cachelayer.records.layout import U8
from cachelayer.records.leaf_columns import Column, Columns, FlatRows
from cachelayer.records.spans import Spans
from cachelayer.records.stored_leaves import StoredLeaf
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import names_of_leaves, one_or_several
from cachelayer.specs.schema import rows_in_any
from cachelayer.specs.spec import LeafSpec, without_nulls
from cachelayer.specs.values import Ragged, Sparse
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, bytes_of, splits_of
from cachelayer.support.progress import Progress, unless_short
from cachelayer.versions.diff import RowDiff, RowPlace, Rows, Side, ValueChange
from cachelayer.versions.stored_version import StoredVersion

_AT_ONCE_NBYTES = 1 << 24
_MOST_AT_ONCE = 1 << 16
"""So many bytes of rows, and at most so many rows, are compared at a time."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of equal rows of two views, and the rows of each view without a partner."""

    one: Ints
    """The record numbers, in the first view, of the rows that both have, in its order."""
    other: Ints
    """The record numbers of the same rows in the other view."""
    went: Ints
    """The record numbers of the rows that only the first view has."""
    came: Ints
    """The record numbers of the rows that only the other view has."""
    keys: tuple[Keys, Keys] | None = None
    """The keys of the rows of both views; None if rows are paired by their record numbers."""

    @classmethod
    def by_number(cls, one: DatasetView, other: DatasetView) -> Pairs:
        """Return the rows with the same record number as pairs. An erased row counts as one that is not there."""
        length = max(len(one), len(other))
        in_one = np.zeros(length, np.bool_)
        in_other = np.zeros(length, np.bool_)
        for mask, view in ((in_one, one), (in_other, other)):
            mask[: len(view)] = True
            mask[view.origins.erased] = False
        both = np.flatnonzero(in_one & in_other)
        return cls(both, both, np.flatnonzero(in_one & ~in_other), np.flatnonzero(in_other & ~in_one))

    @classmethod
    def by_key(cls, one: DatasetView, other: DatasetView, names: Sequence[str], progress: bool | None) -> Pairs:
        """Return the rows with the same key as pairs."""
        keys = keys_of_view(one, "key", names, progress)
        other_keys = keys_of_view(other, "key", names, progress)
        # Equal keys of both views get one number.
        key_numbers, other_key_numbers = numbered(keys, other_keys)
        count = int(max(key_numbers.max(initial=0), other_key_numbers.max(initial=0))) + 1
        row_of_key = rows_by_number(keys, key_numbers, count)
        other_row_of_key = rows_by_number(other_keys, other_key_numbers, count)
        # For each row of the first view, the row of the other with the same key; -1 if there is none.
        partner = other_row_of_key[key_numbers]
        has_partner = partner >= 0
        return cls(
            one=keys.rows[has_partner],
            other=other_keys.rows[partner[has_partner]],
            went=keys.rows[~has_partner],
            came=other_keys.rows[row_of_key[other_key_numbers] < 0],
            keys=(keys, other_keys),
        )

    def place(self, one: int | None, other: int | None) -> RowPlace:
        """Return the key of a row and where it is, given its record number in each view, or None."""
        number = other if one is None else one
        side = 1 if one is None else 0
        key: Any = number
        if self.keys is not None and number is not None:
            key = self.keys[side].value(number)
        return RowPlace(key, (one, other))

    @property
    def in_order(self) -> bool:
        """True if the rows that both views have are in the same order."""
        return bool((np.diff(self.other) > 0).all())


@dataclass(frozen=True, eq=False)
class _Side:
    """The rows of one view, and their stored elements."""

    view: DatasetView
    elements: Table

    @classmethod
    def of(cls, view: DatasetView) -> _Side:
        elements = view.leaves
        if not isinstance(elements, Table):
            raise InvalidTypeError(f"{view.title}: diff() compares versions, and views of their records")
        return cls(view, elements.undecoded())

    @property
    def spec(self) -> Any:
        return self.elements.codec.spec

    def narrowed(self, keys: Sequence[str]) -> _Side:
        """Return the same rows with only these keys of their elements."""
        return replace(self, elements=self.elements.with_fields(leaves_below(self.elements.codec.schema, keys)))

    @cached_property
    def leaves_by_key(self) -> dict[str, range]:
        """The numbers of the leaves below each key of the elements, which are dicts; without keys that have none."""
        root = self.elements.codec.schema.root
        return {key: child.leaves for key, child in zip(root.keys, root.children, strict=True) if child.leaves}

    def numbers(self, rows: Ints) -> Ints:
        """Return the numbers that rows have in the shards of the version."""
        return self.view.selection.numbers_of(rows)

    def leaves(self, rows: Ints) -> dict[str, LeafRows]:
        """Return the stored values of some rows, by the path of each leaf."""
        columns = self.elements.columns(self.numbers(rows))
        leaves = zip(self.elements.codec.leaves, columns.leaves, strict=True)
        return {leaf.node.path: LeafRows(leaf, column, columns) for leaf, column in leaves}


@dataclass(frozen=True, eq=False)
class _ShardPlaces:
    """The places at which records of a version lie."""

    codes: Ints
    """A number for each shard, the same for shards of equal content."""
    ends: Ints
    """The record numbers at which shards begin, and the last one ends."""

    @classmethod
    def of(cls, version: StoredVersion, codes: dict[str, int]) -> _ShardPlaces:
        shards = version.manifest.rows.shards
        shard_codes = [codes.setdefault(content, len(codes)) for content in shards.sha256]
        return cls(np.array([*shard_codes, 0], np.int64), np.cumsum([0, *shards.records.tolist()]))

    def at(self, numbers: Ints) -> Ints:
        """Return a number for the place of each record: the code of its shard, and its number there."""
        shard = self.ends.searchsorted(numbers, "right") - 1
        return (self.codes[shard] << 32) + numbers - self.ends[shard]


@dataclass(frozen=True, eq=False)
class _FieldGroup:
    """Fields of both sides that are read together."""

    one: _Side
    other: _Side
    places: tuple[_ShardPlaces, _ShardPlaces] | None = None
    """The places of the records of both sides, if records at one place are equal and need not be read; else None."""

    def unread(self, one: Ints, other: Ints) -> Ints:
        """Return the indices of the pairs whose rows must be read to be compared."""
        if self.places is None:
            return np.arange(len(one))
        mine, theirs = self.places
        return np.flatnonzero(mine.at(self.one.numbers(one)) != theirs.at(self.other.numbers(other)))


def _field_groups(one: _Side, other: _Side) -> list[_FieldGroup]:
    """Return the fields that both sides have, in two groups: fields of the records, and columns added on a side."""
    home = one.elements.origins.home
    other_home = other.elements.origins.home
    places = None
    if home is not None and other_home is not None and _stored_alike(home, other_home):
        codes: dict[str, int] = {}
        places = (_ShardPlaces.of(home, codes), _ShardPlaces.of(other_home, codes))
    if not isinstance(one.spec, dict) or not isinstance(other.spec, dict):
        return [_FieldGroup(one, other, places)]
    stored: list[str] = []
    added: list[str] = []
    for key, leaves in one.leaves_by_key.items():
        other_leaves = other.leaves_by_key.get(key)
        if other_leaves is None:
            continue
        is_added = one.elements.has_added(leaves) or other.elements.has_added(other_leaves)
        (added if is_added else stored).append(key)
    groups = []
    if stored:
        groups.append(_FieldGroup(one.narrowed(stored), other.narrowed(stored), places))
    if added:
        # Rows that share a shard may differ in added columns.
        groups.append(_FieldGroup(one.narrowed(added), other.narrowed(added)))
    return groups


def _stored_alike(one: StoredVersion, other: StoredVersion) -> bool:
    """Return whether equal bytes of records mean equal elements in both versions."""
    if one.manifest.rows.codec != other.manifest.rows.codec:
        return False
    leaves = tree.leaves(one.manifest.rows.element_spec)
    other_leaves = tree.leaves(other.manifest.rows.element_spec)
    return [(path, without_nulls(leaf)) for path, leaf in leaves] == [
        (path, without_nulls(leaf)) for path, leaf in other_leaves
    ]


@dataclass(eq=False)
class _Changes:
    """The number of changed rows and, for each field, the number of rows in which it changed."""

    pairs: Pairs
    rows: Rows = field(default_factory=Rows)
    fields: dict[str, Rows] = field(default_factory=dict)

    def add(self, start: int, changed: NDArray[np.bool_]) -> None:
        """Count the rows that changed among further pairs."""
        count = int(np.count_nonzero(changed))
        if count:
            first = self.rows.first or self._place(start + int(changed.argmax()))
            self.rows = Rows(self.rows.count + count, first)

    def add_fields(self, pairs: Ints, one: Mapping[str, LeafRows], other: Mapping[str, LeafRows]) -> NDArray[np.bool_]:
        """Compare pairs in the leaves that both versions have, count the changes of each, and return which changed."""
        changed = np.zeros(len(pairs), np.bool_)
        for path in one:
            if path not in other:
                continue
            differ = differing_rows(one[path], other[path])
            changed |= differ
            if not differ.any():
                continue
            row = int(differ.argmax())
            counted = self.fields.get(path)
            if counted is None:
                place = self._place(int(pairs[row]))
                counted = Rows(0, ValueChange(place.key, place.records, one[path].value(row), other[path].value(row)))
            self.fields[path] = replace(counted, count=counted.count + int(np.count_nonzero(differ)))
        return changed

    def _place(self, pair: int) -> RowPlace:
        return self.pairs.place(int(self.pairs.one[pair]), int(self.pairs.other[pair]))


def side_of(view: DatasetView) -> Side:
    """Return the facts of a version, or of a view of one, that a comparison needs before rows are read."""
    side = _Side.of(view)
    version = side.elements.origins.home
    name = view.name
    if version is None or name is None:
        raise InvalidTypeError(f"{view.title}: diff() compares versions, and views of the records of one version each")
    reference = str(name) if name.calls else version.reference
    nbytes = view.nbytes if view.is_view else version.info.nbytes
    return Side(version, reference, view.origins.digests.elements, side.spec, len(view), nbytes)


def compare_rows(one: DatasetView, other: DatasetView, key: Any, *, progress: bool | None = None) -> RowDiff:
    """Compare the rows of two versions, or of views of them."""
    names = () if key is None else one_or_several("key", key)
    pairs = Pairs.by_key(one, other, names, progress) if names else Pairs.by_number(one, other)
    mine = _Side.of(one)
    theirs = _Side.of(other)
    groups = _field_groups(mine, theirs)
    changes = _Changes(pairs)
    nbytes = max(1, mine.elements.info.read_nbytes, theirs.elements.info.read_nbytes)
    size = max(1, min(_MOST_AT_ONCE, _AT_ONCE_NBYTES // nbytes))
    starts = range(0, len(pairs.one), size)
    with Progress("diff", len(pairs.one), unless_short(progress, len(starts))) as display:
        for start in starts:
            rows_of_one = pairs.one[start : start + size]
            rows_of_other = pairs.other[start : start + size]
            changed = np.zeros(len(rows_of_one), np.bool_)
            for group in groups:
                unread = group.unread(rows_of_one, rows_of_other)
                if len(unread):
                    leaves = group.one.leaves(rows_of_one[unread])
                    other_leaves = group.other.leaves(rows_of_other[unread])
                    changed[unread] |= changes.add_fields(start + unread, leaves, other_leaves)
            changes.add(start, changed)
            display.update(len(changed), 0)
    return RowDiff(
        key=names,
        same=len(pairs.one) - changes.rows.count,
        came=Rows(len(pairs.came), pairs.place(None, int(pairs.came[0])) if len(pairs.came) else None),
        went=Rows(len(pairs.went), pairs.place(int(pairs.went[0]), None) if len(pairs.went) else None),
        changed=changes.rows,
        fields=_named(changes.fields, mine.spec),
        in_order=pairs.in_order,
    )


def _named(fields: Mapping[str, Rows], spec: Any) -> dict[str, Rows]:
    """Return fields by their names, in the order of a spec; by their paths, if two leaves have one name."""
    paths = [path for path, _ in tree.leaves(spec)]
    names = names_of_leaves(spec)
    called = names if len(set(names)) == len(names) else paths
    return {name: fields[path] for path, name in zip(paths, called, strict=True) if path in fields}


@dataclass(frozen=True, eq=False)
class LeafRows:
    """One leaf of some rows of a version, as it is stored."""

    leaf: StoredLeaf
    column: Column
    columns: Columns
    """All columns, of which this is one."""

    def absent(self, depth: int) -> NDArray[np.bool_]:
        """Return in which rows one of the first nodes of the leaf's lineage is None."""
        absent = rows_in_any(self.columns.nulls, self.leaf.node.lineage[:depth])
        return np.zeros(self.columns.rows, np.bool_) if absent is None else absent

    @property
    def null_values(self) -> FlatRows:
        """True for each null value, within each row."""
        splits = self.leaf.value_splits(self.column.parts)
        return self.column.null_values or FlatRows(np.zeros(splits[-1], np.bool_), splits)

    def values(self) -> list[Any]:
        """Return the values of the rows; any where the leaf is None."""
        return self.leaf.codec.values(self.column.parts)

    def value(self, row: int) -> Any:
        """Return the value of a row, None if a dict around it is None."""
        return self.leaf.values(self.column, self.columns)[row]


def differing_rows(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    """Return in which rows a leaf differs between two versions.

    Values are compared bit for bit, also where only the shapes of their specs differ. A leaf of another kind or dtype,
    such as int32 and int64, differs in every row. None differs from everything but None.
    """
    spec = without_nulls(one.leaf.node.spec)
    other_spec = without_nulls(other.leaf.node.spec)
    if spec == other_spec:
        differ = _differing_parts(one, other)
    elif _kind(spec) != _kind(other_spec):
        differ = np.ones(one.columns.rows, np.bool_)
    else:
        contents, other_contents = ([_content(value) for value in rows.values()] for rows in (one, other))
        differ = np.array([before != after for before, after in zip(contents, other_contents, strict=True)], np.bool_)
    if one.column.null_values is not None or other.column.null_values is not None:
        _mark_differing(differ, one.null_values, other.null_values)
    depth = len(one.leaf.node.lineage)
    differ &= ~(one.absent(depth) | other.absent(depth))
    for nodes in range(1, depth + 1):
        differ |= one.absent(nodes) != other.absent(nodes)
    return differ


def _differing_parts(one: LeafRows, other: LeafRows) -> NDArray[np.bool_]:
    differ = np.zeros(one.columns.rows, np.bool_)
    for part, other_part in zip(one.column.parts, other.column.parts, strict=True):
        if isinstance(part, FlatRows):
            _mark_differing(differ, part, other_part)
        elif part.size:
            differ |= (_row_bytes(part) != _row_bytes(other_part)).any(axis=1)
    return differ


def _row_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(U8)


def _mark_differing(differ: NDArray[np.bool_], one: FlatRows, other: FlatRows) -> None:
    """Mark the rows in which varying parts differ."""
    has_equal_length = one.lengths == other.lengths
    differ |= ~has_equal_length
    rows = np.flatnonzero(has_equal_length)
    itemsize = one.values.dtype.itemsize
    nbytes = one.lengths[rows] * itemsize
    raw = _bytes_of_rows(one, rows)
    other_raw = _bytes_of_rows(other, rows)
    unequal_bytes = np.flatnonzero(raw != other_raw)
    differ[rows[splits_of(nbytes).searchsorted(unequal_bytes, "right") - 1]] = True


def _bytes_of_rows(flat: FlatRows, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    itemsize = flat.values.dtype.itemsize
    buffer = bytes_of(flat.values)
    return Spans.in_buffer(buffer, flat.splits[rows] * itemsize, flat.lengths[rows] * itemsize).packed_copy().buffer


def _kind(spec: LeafSpec) -> tuple[Any, ...]:
    """Return what two leaves share if their values can be equal: all but shapes and the widths of texts."""
    dtype = spec.dtype
    return type(spec), spec.timezone, dtype.kind if isinstance(dtype, np.dtype) and dtype.kind in "SU" else dtype


def _content(value: Any) -> Any:
    """Return what can be compared with the content of another value: the bytes of numbers, and their shape."""
    if isinstance(value, Ragged):
        return [_content(row) for row in value]
    if isinstance(value, Sparse):
        return value.dense_shape.tolist(), value.indices.tolist(), _content(value.values)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    return value.shape, value.tolist() if value.dtype.kind in "OSU" else value.tobytes()
