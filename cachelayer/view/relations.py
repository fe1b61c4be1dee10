"""Which versions of a dataset were made from which, and share shards."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cachelayer.errors import CorruptionError, FormatError, NotFoundError
from cachelayer.storage.storage import Storage
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion

MOST = 30
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
    with ThreadPoolExecutor(_THREADS, "cachelayer-view") as threads:
        manifests = list(threads.map(lambda info: _manifest(storage, dataset_id, info), chosen))
    keys = {
        info.version: {(each.stats.sha256, each.stats.records) for each in manifest.shards}
        for info, manifest in zip(chosen, manifests, strict=True)
        if isinstance(manifest, Manifest)
    }
    found = {}
    for info, manifest in zip(chosen, manifests, strict=True):
        if not isinstance(manifest, Manifest):
            found[info.version] = Relation(problem=manifest)
            continue
        mine = keys[info.version]
        shared = tuple(
            (name, len(mine & theirs)) for name, theirs in keys.items() if name != info.version and mine & theirs
        )
        found[info.version] = Relation(_base(manifest.provenance), shared, len(manifest.shards))
    return found, len(chosen)


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
