"""Compare the rows of two versions: those that came, went and changed.

Keys and record numbers of all rows are in memory; records are read some at a time, and only those fields that both
versions have. What lies in the same place of a shard that both versions have is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset import leaves_below
from cachelayer.access.dataset_view import DatasetView
from cachelayer.access.field_values import keys_of_view
from cachelayer.access.record_elements import StoredElements
from cachelayer.errors import InvalidTypeError
from cachelayer.progress import Progress, unless_short
from cachelayer.records import tree
from cachelayer.records.keys import Keys, key_names, numbered, rows_by_number
from cachelayer.records.leaf_names import names_of_leaves
from cachelayer.records.leaf_rows import LeafRows, differing_rows
from cachelayer.records.memory import Ints
from cachelayer.versions.diff import RowDiff, RowPlace, Rows, Side, ValueChange
from cachelayer.versions.stored_version import StoredVersion

_AT_ONCE_NBYTES, _MOST_AT_ONCE = 1 << 24, 1 << 16


@dataclass(frozen=True, eq=False)
class Pairs:
    """Which rows of two views are one row.

    Args:
        one, other: the record numbers of the rows that both have, in the order of the first.
        went: the record numbers of the rows that only the first has.
        came: the record numbers of the rows that only the other has.
        keys: the keys of each; None if a key is the record number.
    """

    one: Ints
    other: Ints
    went: Ints
    came: Ints
    keys: tuple[Keys, Keys] | None = None

    @classmethod
    def by_number(cls, one: DatasetView, other: DatasetView) -> Pairs:
        """Return the pairs of rows of one record number; an erased row is not there."""
        there = np.zeros((2, max(len(one), len(other))), np.bool_)
        for row, view in enumerate((one, other)):
            there[row, : len(view)] = True
            there[row, view.erased] = False
        both = np.flatnonzero(there.all(axis=0))
        return cls(both, both, np.flatnonzero(there[0] > there[1]), np.flatnonzero(there[1] > there[0]))

    @classmethod
    def by_key(cls, one: DatasetView, other: DatasetView, names: Sequence[str], progress: bool | None) -> Pairs:
        """Return the pairs of rows of one key.

        Raises:
            InvalidArgumentError: if two rows of one version have the same key.
        """
        mine, theirs = (keys_of_view(view, "key", names, progress) for view in (one, other))
        first, second = numbered(mine, theirs)
        count = int(max(first.max(initial=0), second.max(initial=0))) + 1
        in_one = rows_by_number(mine, first, count)
        in_other = rows_by_number(theirs, second, count)
        found = in_other[first]
        return cls(
            mine.rows[found >= 0],
            theirs.rows[found[found >= 0]],
            mine.rows[found < 0],
            theirs.rows[in_one[second] < 0],
            (mine, theirs),
        )

    def place(self, one: int | None, other: int | None) -> RowPlace:
        """Return where a row is, by its record number in each."""
        number = other if one is None else one
        side = 1 if one is None else 0
        key: Any = number
        if self.keys is not None and number is not None:
            key = self.keys[side].value(number)
        return RowPlace(key, (one, other))

    @property
    def in_order(self) -> bool:
        """True if the rows that both have are in the same order."""
        return bool((np.diff(self.other) > 0).all())


@dataclass(frozen=True, eq=False)
class _Side:
    """The rows of one version, or of a view of it, as they are stored."""

    view: DatasetView
    elements: StoredElements

    @classmethod
    def of(cls, view: DatasetView) -> _Side:
        elements = view.base.leaves
        if not isinstance(elements, StoredElements):
            raise InvalidTypeError(f"{view.title}: diff() compares versions, and views of their records")
        return cls(view, elements.undecoded())

    @property
    def spec(self) -> Any:
        return self.elements.codec.spec

    def narrowed(self, keys: Sequence[str]) -> _Side:
        """Return the same rows with some of the keys of their dicts."""
        narrow: Any = self.elements.with_fields(leaves_below(self.spec, keys))
        return replace(self, elements=narrow)

    def has_added(self, key: str) -> bool:
        """Return whether a key is a column that was added to the version."""
        return self.elements.has_added(leaves_below(self.spec, [key]))

    def numbers(self, rows: Ints) -> Ints:
        """Return the numbers of records in the shards of the version."""
        return self.view.selection.numbers_of(rows)

    def leaves(self, rows: Ints) -> dict[str, LeafRows]:
        """Return the leaves of some rows by their paths."""
        columns = self.elements.columns(self.numbers(rows))
        plans = self.elements.codec.leaves
        return {plan.path: LeafRows(plan, column, len(rows)) for plan, column in zip(plans, columns, strict=True)}


@dataclass(frozen=True, eq=False)
class _ShardPlaces:
    """Where records lie: in which shard, by a code of its content, and at which number there."""

    codes: Ints
    ends: Ints

    @classmethod
    def of(cls, version: StoredVersion, codes: dict[str, int]) -> _ShardPlaces:
        shards = version.manifest.rows.shards
        known = [codes.setdefault(content, len(codes)) for content in shards.sha256]
        return cls(np.array([*known, 0], np.int64), np.cumsum([0, *shards.records.tolist()]))

    def at(self, numbers: Ints) -> Ints:
        """Return a number for each place."""
        shard = self.ends.searchsorted(numbers, "right") - 1
        return (self.codes[shard] << 32) + numbers - self.ends[shard]


@dataclass(frozen=True, eq=False)
class _Part:
    """Fields that are read together.

    Args:
        one, other: the rows with these fields.
        places: where the rows of each lie, if what lies in one place is the same and need not be read; else None.
    """

    one: _Side
    other: _Side
    places: tuple[_ShardPlaces, _ShardPlaces] | None = None

    def unread(self, one: Ints, other: Ints) -> Ints:
        """Return which of some pairs of rows must be read."""
        if self.places is None:
            return np.arange(len(one))
        mine, theirs = self.places
        return np.flatnonzero(mine.at(self.one.numbers(one)) != theirs.at(self.other.numbers(other)))


def _parts(one: _Side, other: _Side) -> list[_Part]:
    """Return the fields that both have: those of records, which may lie in shards of both, and added ones."""
    homes = one.elements.home, other.elements.home
    places = None
    if homes[0] is not None and homes[1] is not None and _stored_alike(homes[0], homes[1]):
        codes: dict[str, int] = {}
        places = _ShardPlaces.of(homes[0], codes), _ShardPlaces.of(homes[1], codes)
    if not isinstance(one.spec, dict) or not isinstance(other.spec, dict):
        return [_Part(one, other, places)]
    both = [
        key for key in one.spec if key in other.spec and all(leaves_below(side.spec, [key]) for side in (one, other))
    ]
    added = [key for key in both if one.has_added(key) or other.has_added(key)]
    stored = [key for key in both if key not in added]
    parts = [(stored, places), (added, None)]
    return [_Part(one.narrowed(keys), other.narrowed(keys), known) for keys, known in parts if keys]


def _stored_alike(one: StoredVersion, other: StoredVersion) -> bool:
    """Return whether equal bytes of records mean equal elements in both versions."""
    rows = one.manifest.rows, other.manifest.rows
    specs = [[(path, leaf.without_nulls()) for path, leaf in tree.leaves(row.element_spec)] for row in rows]
    return rows[0].codec == rows[1].codec and specs[0] == specs[1]


@dataclass(eq=False)
class _Changes:
    """Counts the rows that changed, and those in which each field did."""

    pairs: Pairs
    rows: Rows = field(default_factory=Rows)
    fields: dict[str, Rows] = field(default_factory=dict)

    def add(self, start: int, changed: NDArray[np.bool_]) -> None:
        """Count rows that changed; they follow those that were counted before.

        Args:
            start: the number of the first pair of them.
            changed: which of them changed.
        """
        count = int(np.count_nonzero(changed))
        if count:
            first = self.rows.first or self._place(start + int(changed.argmax()))
            self.rows = Rows(self.rows.count + count, first)

    def add_fields(self, pairs: Ints, one: Mapping[str, LeafRows], other: Mapping[str, LeafRows]) -> NDArray[np.bool_]:
        """Compare rows in the leaves that both versions have, count those that changed, and return which did."""
        changed = np.zeros(len(pairs), np.bool_)
        for path in (path for path in one if path in other):
            differ = differing_rows(one[path], other[path])
            changed |= differ
            if not differ.any():
                continue
            row, known = int(differ.argmax()), self.fields.get(path)
            if known is None:
                place = self._place(int(pairs[row]))
                known = Rows(0, ValueChange(place.key, place.records, one[path].value(row), other[path].value(row)))
            self.fields[path] = replace(known, count=known.count + int(np.count_nonzero(differ)))
        return changed

    def _place(self, pair: int) -> RowPlace:
        return self.pairs.place(int(self.pairs.one[pair]), int(self.pairs.other[pair]))


def side_of(view: DatasetView) -> Side:
    """Return a version, or a view of one, as a side of a comparison.

    Raises:
        InvalidTypeError: if it is no view of the records of one version.
    """
    side = _Side.of(view)
    version, name = side.elements.home, view.name
    if version is None or name is None:
        raise InvalidTypeError(f"{view.title}: diff() compares versions, and views of the records of one version each")
    reference = str(name) if name.calls else version.reference
    nbytes = view.nbytes if view.is_view else version.info.nbytes
    return Side(version, reference, view.digests.elements, side.spec, len(view), nbytes)


def compare_rows(one: DatasetView, other: DatasetView, key: Any, *, progress: bool | None = None) -> RowDiff:
    """Compare the rows of two versions, or of views of them.

    Args:
        one, other: the rows.
        key: the fields by which a row of one is that of the other; None for the record number.
        progress: as in :meth:`DataRef.mirror`.

    Raises:
        InvalidArgumentError: if there is no such field, or two rows of one version have one key; it names the first.
    """
    names = () if key is None else key_names("key", key)
    pairs = Pairs.by_key(one, other, names, progress) if names else Pairs.by_number(one, other)
    mine = _Side.of(one)
    theirs = _Side.of(other)
    parts = _parts(mine, theirs)
    changes = _Changes(pairs)
    nbytes = max(1, mine.elements.info.read_nbytes, theirs.elements.info.read_nbytes)
    size = max(1, min(_MOST_AT_ONCE, _AT_ONCE_NBYTES // nbytes))
    starts = range(0, len(pairs.one), size)
    with Progress("diff", len(pairs.one), unless_short(progress, len(starts))) as display:
        for start in starts:
            rows_of_one, rows_of_other = pairs.one[start : start + size], pairs.other[start : start + size]
            changed = np.zeros(len(rows_of_one), np.bool_)
            for part in parts:
                unread = part.unread(rows_of_one, rows_of_other)
                if len(unread):
                    leaves = part.one.leaves(rows_of_one[unread]), part.other.leaves(rows_of_other[unread])
                    changed[unread] |= changes.add_fields(start + unread, *leaves)
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
    """Return fields by their names in place of their paths, in the order of a spec, unless a name means several."""
    paths = [path for path, _ in tree.leaves(spec)]
    names = names_of_leaves(spec)
    called = names if len(set(names)) == len(names) else paths
    return {name: fields[path] for path, name in zip(paths, called, strict=True) if path in fields}
