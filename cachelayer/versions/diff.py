"""Compare two versions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from cachelayer.drawing.text import leaf_text
from cachelayer.json_values import flattened
from cachelayer.records import spec_json
from cachelayer.records.tree import Tree, leaves
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import StoredVersion

_SHOWN = 60


@dataclass(frozen=True)
class Change:
    """One thing that differs between two versions.

    Args:
        path: the path of a leaf, or keys joined by dots.
        one, other: its value in each; None if it is missing there.
    """

    path: str
    one: Any
    other: Any

    def __str__(self) -> str:
        if self.one is None:
            return f"+ {self.path}: {_short(self.other)}"
        if self.other is None:
            return f"- {self.path}: {_short(self.one)}"
        return f"~ {self.path}: {_short(self.one)} -> {_short(self.other)}"


@dataclass(frozen=True)
class ShardDifference:
    """Some of the shards of a version.

    Args:
        count: their number.
        records: the number of their records.
        nbytes: their bytes.
    """

    count: int
    records: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.count:,} of {self.records:,} records, {self.nbytes:,} bytes"


@dataclass(frozen=True)
class RowPlace:
    """Where a row is that came, went or changed.

    Args:
        key: its key: a value, or a tuple of those of several fields; without a key its record number.
        records: its record number in each version; None where it is missing.
    """

    key: Any
    records: tuple[int | None, int | None]

    def __str__(self) -> str:
        numbers = [f"{number:,}" for number in self.records if number is not None]
        return f"{_short(self.key)} (record {' -> '.join(dict.fromkeys(numbers))})"


@dataclass(frozen=True)
class ValueChange(RowPlace):
    """A row in which a field changed, and its values there.

    Args:
        one, other: the value in each version.
    """

    one: Any
    other: Any

    def __str__(self) -> str:
        return f"{super().__str__()}: {leaf_text(self.one)} -> {leaf_text(self.other)}"


@dataclass(frozen=True)
class Rows:
    """Some of the rows of two versions.

    Args:
        count: their number.
        first: the first of them, of a field that changed a :class:`ValueChange`; None if there are none.
    """

    count: int = 0
    first: RowPlace | None = None

    def __str__(self) -> str:
        return f"{self.count:,}" + ("" if self.first is None else f", the first is {self.first}")


@dataclass(frozen=True)
class RowDiff:
    """How the rows of two versions differ.

    Rows with one key are one row. Values are compared bit for bit, as they are stored: NaN equals NaN, and an image its
    own file alone. A field whose dtype changed is compared by value if both are numbers, or both texts.

    Args:
        key: the fields of the key; empty if rows are compared by their record numbers.
        same: how many rows are the same in all fields that both have.
        came: the rows that only the other has.
        went: the rows that only the first has.
        changed: the rows that both have, with another value in some field that both have.
        fields: for each such field that changed in some row, in which rows.
        in_order: whether the rows that both have are in the same order.
    """

    key: tuple[str, ...]
    same: int
    came: Rows
    went: Rows
    changed: Rows
    fields: Mapping[str, Rows]
    in_order: bool

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
    """How two versions differ; ``str`` and ``repr`` show it in a few lines.

    Args:
        one, other: their references, pinned.
        same_data: whether their digests are equal.
        spec: leaves of the element specs that were added, removed or changed, as text.
        records: number of records of each.
        nbytes: bytes of the shards of each.
        shared: shards that hold the same records in both; their bytes are counted as in the first.
        only_one, only_other: shards that the other version does not have.
        provenance: differences in how they were made.
        metadata: differences in the users' metadata.
        rows: the rows that came, went or changed; None if rows were not compared.
    """

    one: str
    other: str
    same_data: bool
    spec: tuple[Change, ...]
    records: tuple[int, int]
    nbytes: tuple[int, int]
    shared: ShardDifference
    only_one: ShardDifference
    only_other: ShardDifference
    provenance: tuple[Change, ...]
    metadata: tuple[Change, ...]
    rows: RowDiff | None = None

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
        """Return the difference as dicts, lists, numbers and text; a value that JSON lacks is text."""
        document: dict[str, Any] = _as_json(self)
        return document


def _as_json(value: Any) -> Any:
    if isinstance(value, (Diff, RowDiff, Rows, RowPlace, Change, ShardDifference)):
        return {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _as_json(child) for name, child in value.items()}
    if isinstance(value, (tuple, list)):
        return [_as_json(child) for child in value]
    is_number = isinstance(value, np.generic) and value.dtype.kind in "biuf"
    plain = value.item() if is_number else value
    if plain is None or type(plain) in (bool, int, str) or (type(plain) is float and math.isfinite(plain)):
        return plain
    return leaf_text(value)


class Side(NamedTuple):
    """What is compared of a version: all of it, or what a view of it shows.

    Args:
        version: the version as it is stored.
        reference: what names it.
        digest: that of its records.
        spec: the spec of its elements, as they are stored.
        records: their number.
        nbytes: their bytes.
    """

    version: StoredVersion
    reference: str
    digest: str
    spec: Tree
    records: int
    nbytes: int


def compare(one: Side, other: Side, rows: RowDiff | None) -> Diff:
    """Compare two versions, of any storages.

    Args:
        one, other: the versions.
        rows: how their rows differ; None if these are not compared.
    """
    manifests = one.version.manifest, other.version.manifest
    mine, theirs = map(_shards_of, manifests)
    nbytes: dict[tuple[str, int], int] = {}
    for manifest in reversed(manifests):
        nbytes |= {_key(shard): shard.stats.nbytes for shard in manifest.shards}

    def summed(keys: Counter[tuple[str, int]]) -> ShardDifference:
        shards = list(keys.elements())
        return ShardDifference(len(shards), sum(records for _, records in shards), sum(nbytes[key] for key in shards))

    first, second = (dict(manifest.provenance) for manifest in manifests)
    metadata = _changes(first.pop("metadata", None) or {}, second.pop("metadata", None) or {})
    return Diff(
        one=one.reference,
        other=other.reference,
        same_data=one.digest == other.digest,
        spec=_spec_changes(one.spec, other.spec),
        records=(one.records, other.records),
        nbytes=(one.nbytes, other.nbytes),
        shared=summed(mine & theirs),
        only_one=summed(mine - theirs),
        only_other=summed(theirs - mine),
        provenance=_changes(first, second),
        metadata=metadata,
        rows=rows,
    )


def _shards_of(manifest: Manifest) -> Counter[tuple[str, int]]:
    return Counter(map(_key, manifest.shards))


def _key(shard: ShardFile) -> tuple[str, int]:
    """Return what identifies a shard in every storage."""
    return shard.stats.sha256, shard.stats.records


def _spec_changes(one: Tree, other: Tree) -> tuple[Change, ...]:
    changes = _differences(*({path: repr(leaf) for path, leaf in leaves(spec)} for spec in (one, other)))
    if changes or spec_json.to_json(one) == spec_json.to_json(other):
        return changes
    # The leaves are equal, but not their structure: a list for a tuple, or keys in another order.
    return (Change("structure", *(json.dumps(spec_json.to_json(spec)) for spec in (one, other))),)


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
