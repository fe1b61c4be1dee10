"""Compare two versions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer.json_values import flattened
from cachelayer.records import spec_json
from cachelayer.records.tree import Tree, leaves
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
        for name, changes in (("spec", self.spec), ("metadata", self.metadata), ("provenance", self.provenance)):
            lines += [f"{name}:{'' if changes else ' the same'}", *(f"  {change}" for change in changes)]
        return "\n".join(lines)

    __repr__ = __str__


def compare(one: StoredVersion, other: StoredVersion) -> Diff:
    """Compare two versions, of any storages."""
    mine, theirs = map(_shards_of, (one, other))
    nbytes: dict[tuple[str, int], int] = {}
    for version in (other, one):
        nbytes |= {_key(shard): shard.stats.nbytes for shard in version.manifest.shards}

    def summed(keys: Counter[tuple[str, int]]) -> ShardDifference:
        shards = list(keys.elements())
        return ShardDifference(len(shards), sum(records for _, records in shards), sum(nbytes[key] for key in shards))

    first, second = dict(one.manifest.provenance), dict(other.manifest.provenance)
    metadata = _changes(first.pop("metadata", None) or {}, second.pop("metadata", None) or {})
    return Diff(
        one=one.reference,
        other=other.reference,
        same_data=one.info.digest == other.info.digest,
        spec=_spec_changes(one.manifest.merged_spec, other.manifest.merged_spec),
        records=(one.info.records, other.info.records),
        nbytes=(one.info.nbytes, other.info.nbytes),
        shared=summed(mine & theirs),
        only_one=summed(mine - theirs),
        only_other=summed(theirs - mine),
        provenance=_changes(first, second),
        metadata=metadata,
    )


def _shards_of(version: StoredVersion) -> Counter[tuple[str, int]]:
    return Counter(map(_key, version.manifest.shards))


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
