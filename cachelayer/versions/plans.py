"""The plans beside a version's manifest, of packs and of weighted samples: one that is deleted is made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachelayer.arrayrecord.pack_plan import check_plan
from cachelayer.arrayrecord.weight_table import read_table
from cachelayer.errors import CacheLayerError, CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.temporary_files import scratch_folder
from cachelayer.user_warnings import warn
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion


def plans_of(store: ObjectStore, dataset_id: str, info: VersionInfo) -> list[str]:
    """Return the names of the plans beside the manifest of a version."""
    folder = paths.build(dataset_id, paths.attempt_of(info.manifest))
    return [f"{folder}/{name}" for name in store.names(folder) if paths.is_plan(name)]


def plan_problems(version: StoredVersion) -> Iterator[str]:
    """Yield a sentence for each damaged plan of a version."""
    for name in plans_of(version.store, version.dataset_id, version.info):
        try:
            with _checked(version.store, name):
                pass
        except CacheLayerError as error:
            yield f"{error}; it is made again if you delete it"


def copy_plans(source: StoredVersion, to: ObjectStore, dataset_id: str, attempt: str) -> None:
    """Copy the plans of a version, those that are not damaged, beside the manifest of an attempt.

    Tables of weights are mapped, so none is copied into a bucket.
    """
    folder = paths.build(dataset_id, attempt)
    for name in plans_of(source.store, source.dataset_id, source.info):
        target = f"{folder}/{name.rpartition('/')[2]}"
        if to.exists(target) or (paths.is_weights(name) and not isinstance(to, LocalStore)):
            continue
        try:
            with _checked(source.store, name) as path:
                to.upload(path, target)
        except (CorruptionError, FormatError) as error:
            what = "table of weights" if paths.is_weights(name) else "plan of packs"
            warn(f"a {what} is not copied: {error}")


@contextmanager
def _checked(store: ObjectStore, name: str) -> Iterator[Path]:
    """Yield the file of a plan, or a temporary copy of it, if all of its bytes are right.

    Raises:
        FormatError, CorruptionError: if they are not.
    """
    check = read_table if paths.is_weights(name) else check_plan
    if isinstance(store, LocalStore):
        check(store.path(name))
        yield store.path(name)
        return
    with scratch_folder() as folder:
        path = folder / name.rpartition("/")[2]
        store.download(name, path, store.size(name) or 0)
        check(path)
        yield path
