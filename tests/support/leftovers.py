"""What lies in a dataset, and what its versions name."""

import threading
import time

import cachelayer
from cachelayer.objects import paths
from cachelayer.versions.log import Log
from cachelayer.versions.notes import PLAN_HASH, noted_numbers, read_part
from cachelayer.versions.snapshot import manifest_name, manifest_stem


def files_below(storage: cachelayer.Storage, folder: str) -> set[str]:
    """Return the names of all files below a folder, relative to it."""
    store = storage._store
    root = store.local_path(folder)
    if root is not None:
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    below = {name: files_below(storage, f"{folder}/{name}") for name in store.names(folder)}
    return {f"{name}/{each}" if each else name for name, found in below.items() for each in found or {""}}


def stored_files(storage: cachelayer.Storage, dataset_id: str = "d") -> set[str]:
    """Return the files of shards and manifests, relative to the dataset."""
    folders = paths.SHARDS, paths.MANIFESTS
    return {f"{one}/{name}" for one in folders for name in storage._store.names(f"{dataset_id}/{one}")}


def named_files(storage: cachelayer.Storage, dataset_id: str = "d") -> set[str]:
    """Return the files that its versions name, relative to the dataset."""
    named: set[str] = set()
    for version in Log(storage._store.folder(dataset_id)).head().versions:
        found = storage.fetch(f"{dataset_id}@{version}")._base.version
        named |= {blob.name for file in found.manifest.files for blob in file.blobs} | {manifest_name(found.info)}
        if found.indices is not None:
            named.add(paths.indices(manifest_stem(found.info)))
        if found.manifest.kept is not None and found.manifest.kept.has_file:
            named.add(paths.kept_numbers(manifest_stem(found.info)))
    return named


def collect_all(storage: cachelayer.Storage, dataset_id: str) -> None:
    """Collect garbage, as soon as the claims of those that were killed count as dead."""
    until, pause = time.monotonic() + 60, threading.Event()
    storage.gc(grace=0.0)
    while files_below(storage, f"{dataset_id}/{paths.BUILDS}") and time.monotonic() < until:
        pause.wait(0.1)
        storage.gc(grace=0.0)


def notes(storage: cachelayer.Storage, dataset_id: str = "d") -> set[str]:
    """Return the notes and claims of builds."""
    return files_below(storage, f"{dataset_id}/{paths.BUILDS}")


def noted_shards(storage: cachelayer.Storage, dataset_id: str, version: str) -> list[str]:
    """Return the shards that an unpublished build has noted as finished."""
    builds = storage._store.folder(dataset_id).folder(paths.builds(version))
    plans = [builds.folder(name) for name in builds.names("") if PLAN_HASH.fullmatch(name)]
    parts = [read_part(plan, number) for plan in plans for number in sorted(noted_numbers(plan))]
    return [shard.name for part in parts if part is not None for shard in part.shards]


def assert_nothing_is_left(storage: cachelayer.Storage, dataset_id: str) -> None:
    """Raise if there is anything of a dataset besides its versions and its log."""
    # What a killed process was writing, under a temporary name, is collected after an hour, whatever the grace is.
    whole = {name for name in stored_files(storage, dataset_id) if not name.endswith(".tmp")}
    assert whole == named_files(storage, dataset_id)
    for folder in (paths.BUILDS, paths.WORKING):
        assert not files_below(storage, f"{dataset_id}/{folder}")


def assert_only_versions_are_left(storage: cachelayer.Storage, dataset_id: str) -> None:
    """Raise unless all versions of a dataset are whole and, after a collection, there is nothing else of it."""
    collect_all(storage, dataset_id)
    versions = Log(storage._store.folder(dataset_id)).head().versions
    assert all(storage.verify(f"{dataset_id}@{version}", progress=False) for version in versions)
    assert_nothing_is_left(storage, dataset_id)
