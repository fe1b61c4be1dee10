"""What builds leave behind: nothing that no version names."""

from __future__ import annotations

import cachelayer
from cachelayer.objects import paths


def assert_only_versions_are_left(storage: cachelayer.Storage, dataset_id: str) -> None:
    """Raise unless all versions of a dataset are whole and, after a collection, there is nothing else of it."""
    storage.gc(grace=0.0)
    store = storage._store
    named: set[str] = set()
    for version in storage.versions(dataset_id):
        assert storage.verify(dataset_id, version, progress=False)
        found = storage.fetch(dataset_id, version)._base.version
        named |= {name for shard in found.manifest.shards for name in shard.files} | {found.info.manifest}
    attempts = store.names(f"{dataset_id}/_builds")
    files = {
        f"{paths.BUILDS}/{each}/{name}" for each in attempts for name in store.names(f"{dataset_id}/_builds/{each}")
    }
    assert files == named
    assert not any(store.names(f"{dataset_id}/_unfinished/{each}") for each in store.names(f"{dataset_id}/_unfinished"))
