"""Compare two versions: their specs, counts, shards, provenance and metadata, and their rows if asked."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from cachelayer.drawing.text import leaf_text
from cachelayer.specs import spec_json
from cachelayer.specs.tree import Tree, leaves
from cachelayer.support.json_values import flattened
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import StoredVersion

_SHOWN = 60


@dataclass(frozen=True)
class Change:
    """A value that differs between two versions."""

    path: str
    """The path of a leaf, or keys joined by dots."""
    one: Any
    """The value in the first version; None if it is missing there."""
    other: Any
    """The value in the other version; None if it is missing there."""

    def __str__(self) -> str:
        if self.one is None:
            return f"+ {self.path}: {_short(self.other)}"
        if self.other is None:
            return f"- {self.path}: {_short(self.one)}"
        return f"~ {self.path}: {_short(self.one)} -> {_short(self.other)}"


@dataclass(frozen=True)
class ShardDifference:
    """The size of some shards of a version, together."""

    count: int
    """Number of shards."""
    records: int
    """Number of records in these shards."""
    nbytes: int
    """Bytes of these shards."""

    def __str__(self) -> str:
        return f"{self.count:,} of {self.records:,} records, {self.nbytes:,} bytes"


@dataclass(frozen=True)
class RowPlace:
    """The place of a row that came, went or changed."""

    key: Any
    """The value of the key field, or a tuple of the values of several; without a key the record number."""
    records: tuple[int | None, int | None]
    """The record number in each version; None where the row is missing."""

    def __str__(self) -> str:
        numbers = [f"{number:,}" for number in self.records if number is not None]
        return f"{_short(self.key)} (record {' -> '.join(dict.fromkeys(numbers))})"


@dataclass(frozen=True)
class ValueChange(RowPlace):
    """A row in which a field changed, with the values of the field.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> one = storage.cache([{"id": "a", "score": 1}, {"id": "b", "score": 2}], "scores@v1")
        >>> other = storage.cache([{"id": "b", "score": 9}, {"id": "a", "score": 1}], "scores@v2")
        >>> first = one.diff(other, key="id").rows.fields["score"].first
        >>> first.key, first.records, int(first.one), int(first.other)
        ('b', (1, 0), 2, 9)
    """

    one: Any
    """The value in the first version."""
    other: Any
    """The value in the other version."""

    def __str__(self) -> str:
        return f"{super().__str__()}: {leaf_text(self.one)} -> {leaf_text(self.other)}"


@dataclass(frozen=True)
class Rows:
    """The number of rows that came, went or changed, and the first of these rows."""

    count: int = 0
    first: RowPlace | None = None
    """The first row; a :class:`ValueChange` if a field changed in these rows. None if there are none."""

    def __str__(self) -> str:
        return f"{self.count:,}" + ("" if self.first is None else f", the first is {self.first}")


@dataclass(frozen=True)
class RowDiff:
    """The differences between the rows of two versions.

    Two rows with the same key are one row. Values are compared bit for bit, as they are stored: NaN equals NaN, and an
    image equals only the same file. A field whose dtype changed has changed in every row.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> one = storage.cache([{"id": "a", "score": 1}, {"id": "b", "score": 2}], "scores@v1")
        >>> other = storage.cache([{"id": "b", "score": 9}, {"id": "c", "score": 3}], "scores@v2")
        >>> print(one.diff(other, key="id").rows)
        by id: 1 came, 1 went, 1 changed, 0 are the same
        + came: 1, the first is c (record 1)
        - went: 1, the first is a (record 0)
        ~ score: 1, the first is b (record 1 -> 0): 2 -> 9
    """

    key: tuple[str, ...]
    """The fields of the key; empty if rows are compared by their record numbers."""
    same: int
    """Number of rows that are the same in all fields that both versions have."""
    came: Rows
    """The rows that only the other version has."""
    went: Rows
    """The rows that only the first version has."""
    changed: Rows
    """The rows of both versions with another value in some field that both have."""
    fields: Mapping[str, Rows]
    """The rows in which each of these fields changed, by the name of the field."""
    in_order: bool
    """Whether the rows of both versions are in the same order."""

    def __str__(self) -> str:
        by = f"by {', '.join(self.key)}" if self.key else "by record number"
        order = "" if self.in_order else ", in another order"
        counts = f"{self.came.count:,} came, {self.went.count:,} went, {self.changed.count:,} changed"
        lines = [f"{by}: {counts}, {self.same:,} are the same{order}"]
        lines += [f"{sign} {rows}" for sign, rows in (("+ came:", self.came), ("- went:", self.went)) if rows.count]
        lines += [f"~ {name or 'the element'}: {rows}" for name, rows in self.fields.items()]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Diff:
    """The differences between two versions; ``str`` and ``repr`` show them in a few lines.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> one = storage.cache(range(3), "numbers@v1")
        >>> other = storage.append("numbers@v1", "v2", range(3, 5))
        >>> diff = one.diff(other)
        >>> diff.same_data, diff.records, diff.rows.came.count
        (False, (3, 5), 2)
        >>> print(diff.shared)  # the first shard is not stored twice
        1 of 3 records, ... bytes
    """

    one: str
    """The reference of the first version, pinned by its digest."""
    other: str
    """The reference of the other version, pinned by its digest."""
    same_data: bool
    """Whether their digests are equal."""
    spec: tuple[Change, ...]
    """Leaves of the element spec that were added, removed or changed, as text."""
    records: tuple[int, int]
    """Number of records of each version."""
    nbytes: tuple[int, int]
    """Bytes of the shards of each version."""
    shared: ShardDifference
    """The shards that hold the same records in both versions, with the bytes that they have in the first."""
    only_one: ShardDifference
    """The shards that only the first version has."""
    only_other: ShardDifference
    """The shards that only the other version has."""
    provenance: tuple[Change, ...]
    """Differences in how the versions were made."""
    metadata: tuple[Change, ...]
    """Differences in the metadata that users stored with the versions."""
    rows: RowDiff | None = None
    """The rows that came, went or changed; None if rows were not compared."""

    def __str__(self) -> str:
        lines = [
            f"one:     {self.one}",
            f"other:   {self.other}",
            f"data:    {'the same' if self.same_data else 'different'}",
            f"records: {_both(*self.records)}",
            f"bytes:   {_both(*self.nbytes)}",
            f"shards:  shared {self.shared}",
            f"         only in one {self.only_one}",
            f"         only in the other {self.only_other}",
        ]
        first, *more = ["not compared"] if self.rows is None else str(self.rows).splitlines()
        lines += [f"rows:    {first}", *(f"  {line}" for line in more)]
        for name, changes in (("spec", self.spec), ("metadata", self.metadata), ("provenance", self.provenance)):
            lines += [f"{name}:{'' if changes else ' the same'}", *(f"  {change}" for change in changes)]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Return the difference as dicts, lists, numbers and texts; a value that JSON lacks is a text.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> one = storage.cache(range(3), "numbers@v1")
            >>> other = storage.cache(range(4), "numbers@v2")
            >>> document = one.diff(other).to_json()
            >>> document["records"], document["rows"]["came"]
            ([3, 4], {'count': 1, 'first': {'key': 3, 'records': [None, 3]}})
        """
        document: dict[str, Any] = _as_json(self)
        return document


def _as_json(value: Any) -> Any:
    if isinstance(value, (Diff, RowDiff, Rows, RowPlace, Change, ShardDifference)):
        return {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _as_json(child) for name, child in value.items()}
    if isinstance(value, (tuple, list)):
        return [_as_json(child) for child in value]
    plain = value.item() if isinstance(value, np.generic) and value.dtype.kind in "biuf" else value
    if plain is None or type(plain) in (bool, int, str) or (type(plain) is float and math.isfinite(plain)):
        return plain
    return leaf_text(value)


class Side(NamedTuple):
    """One of the two things that are compared: a version, or a view of one."""

    version: StoredVersion
    """The version, as it is stored."""
    reference: str
    digest: str
    spec: Tree
    """The spec of elements, as they are stored."""
    records: int
    nbytes: int


def compare(one: Side, other: Side, rows: RowDiff | None) -> Diff:
    """Compare two versions, of the same storage or of two."""
    shards = one.version.manifest.shards
    other_shards = other.version.manifest.shards
    keys = Counter(map(_key, shards))
    other_keys = Counter(map(_key, other_shards))
    nbytes = {_key(shard): shard.stats.nbytes for shard in (*other_shards, *shards)}
    provenance = dict(one.version.manifest.provenance)
    other_provenance = dict(other.version.manifest.provenance)
    metadata = provenance.pop("metadata", None) or {}
    other_metadata = other_provenance.pop("metadata", None) or {}
    return Diff(
        one=one.reference,
        other=other.reference,
        same_data=one.digest == other.digest,
        spec=_spec_changes(one.spec, other.spec),
        records=(one.records, other.records),
        nbytes=(one.nbytes, other.nbytes),
        shared=_summed(keys & other_keys, nbytes),
        only_one=_summed(keys - other_keys, nbytes),
        only_other=_summed(other_keys - keys, nbytes),
        provenance=_changes(provenance, other_provenance),
        metadata=_changes(metadata, other_metadata),
        rows=rows,
    )


_Key = tuple[str, int]
"""The SHA-256 of the records of a shard, and their number: these are the same in every storage."""


def _key(shard: ShardFile) -> _Key:
    return shard.stats.sha256, shard.stats.records


def _summed(keys: Counter[_Key], nbytes: Mapping[_Key, int]) -> ShardDifference:
    shards = list(keys.elements())
    return ShardDifference(len(shards), sum(records for _, records in shards), sum(nbytes[key] for key in shards))


def _spec_changes(one: Tree, other: Tree) -> tuple[Change, ...]:
    changes = _differences(_leaf_texts(one), _leaf_texts(other))
    one_json = spec_json.to_json(one)
    other_json = spec_json.to_json(other)
    if changes or one_json == other_json:
        return changes
    # The leaves are equal, but not their structure: a list for a tuple, or keys in another order.
    return (Change("structure", json.dumps(one_json), json.dumps(other_json)),)


def _leaf_texts(spec: Tree) -> dict[str, str]:
    return {path: repr(leaf) for path, leaf in leaves(spec)}


def _changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Change, ...]:
    return _differences(dict(flattened(one)), dict(flattened(other)))


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Change, ...]:
    paths = [*one, *(path for path in other if path not in one)]
    return tuple(Change(path, one.get(path), other.get(path)) for path in paths if one.get(path) != other.get(path))


def _both(one: int, other: int) -> str:
    return f"{one:,}" if one == other else f"{one:,} -> {other:,} ({other - one:+,})"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
