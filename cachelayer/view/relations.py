"""Which versions of a dataset were made from which, and share shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any

from cachelayer.errors import CorruptionError, FormatError, NotFoundError
from cachelayer.storage.storage import Storage
from cachelayer.system_threads import Pool
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion

MOST, MOST_SHARDS = 30, 300_000
_THREADS = 16


@dataclass(frozen=True)
class Relation:
    """What connects a version to others.

    Args:
        base: the version that it was derived or rewritten from, as its provenance names it; empty if it was built.
        shared: for each other version with shards of the same records, their number.
        shards: the number of its shards.
        problem: why nothing is known of it; empty if it is.
    """

    base: str = ""
    shared: tuple[tuple[str, int], ...] = ()
    shards: int = 0
    problem: str = ""


def relations(storage: Storage, dataset_id: str, infos: Sequence[VersionInfo]) -> tuple[dict[str, Relation], int]:
    """Return what connects the first few of these versions, by name, and how many were compared.

    Raises:
        StorageError: if the storage failed.
    """
    chosen = infos[:MOST]
    with Pool(_THREADS, "cachelayer-view") as threads:
        manifests = list(threads.map(lambda info: _manifest(storage, dataset_id, info), chosen))
    sizes = accumulate(len(each.shards) if isinstance(each, Manifest) else 0 for each in manifests)
    fit = sum(size <= MOST_SHARDS for size in sizes)
    chosen, manifests = chosen[:fit], manifests[:fit]
    counts = _shared([_keys(manifest) for manifest in manifests])
    found = {}
    for place, (info, manifest) in enumerate(zip(chosen, manifests, strict=True)):
        if not isinstance(manifest, Manifest):
            found[info.version] = Relation(problem=manifest)
            continue
        others = ((other.version, counts[place, at]) for at, other in enumerate(chosen) if at != place)
        shared = tuple((name, number) for name, number in others if number)
        found[info.version] = Relation(_base(manifest.provenance), shared, len(manifest.shards))
    return found, len(chosen)


def _keys(manifest: Manifest | str) -> set[tuple[str, int]]:
    """Return what tells the shards of a version apart; nothing if it could not be read."""
    if not isinstance(manifest, Manifest):
        return set()
    return set(zip(manifest.shards.sha256, manifest.shards.records.tolist(), strict=True))


def _shared(keys: Sequence[set[tuple[str, int]]]) -> Counter[tuple[int, int]]:
    """Return how many keys each two sets share. Most keys are in the same few groups of sets."""
    groups: dict[tuple[str, int], int] = {}
    for place, mine in enumerate(keys):
        for key in mine:
            groups[key] = groups.get(key, 0) | 1 << place
    counts: Counter[tuple[int, int]] = Counter()
    for group, number in Counter(groups.values()).items():
        places = [place for place in range(len(keys)) if group >> place & 1]
        for pair in product(places, places):
            counts[pair] += number
    return counts


def _manifest(storage: Storage, dataset_id: str, info: VersionInfo) -> Manifest | str:
    try:
        return StoredVersion(storage._store, dataset_id, info).manifest
    except (CorruptionError, FormatError, NotFoundError) as error:
        return str(error)


def _base(provenance: dict[str, Any]) -> str:
    """Return the name of the version that a version was made from; a stranger's provenance may hold anything."""
    base = provenance.get("base")
    if isinstance(base, dict):
        return "@".join(str(base[name]) for name in ("dataset_id", "version") if name in base)[:300]
    return base[:300] if isinstance(base, str) else ""
