"""Repair a version from another storage; see :meth:`cachelayer.Storage.repair`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelayer.errors import DigestMismatchError, InvalidArgumentError, InvalidTypeError
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.storage.catalog import Catalog
from cachelayer.versions.blobs import damaged
from cachelayer.versions.copy import RepairReport, repair
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, names_version
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import manifest_of
from cachelayer.views.dataref import DataRef

if TYPE_CHECKING:
    from cachelayer.storage.storage import Storage


def repair_version(
    catalog: Catalog,
    reference: Reference,
    place: Storage | DataRef[Any] | str | os.PathLike[str] | None,
    *,
    dry_run: bool,
    progress: bool | None,
) -> RepairReport:
    """Find what is damaged of a version, and put it again from another place."""
    if place is None and not dry_run:
        raise InvalidArgumentError("repair: pass from_=, another storage that has the version; or dry_run=True")
    version = catalog.resolve(reference)
    good_version = None if place is None else version_elsewhere(version, place)
    copies = damaged_copies(version, catalog.copies, dry_run=dry_run)
    return repair(version, None if dry_run else good_version, local_copies=copies, progress=progress)


def version_elsewhere(version: StoredVersion, place: Storage | DataRef[Any] | str | os.PathLike[str]) -> StoredVersion:
    """Return a version in another place that has the same records.

    ``place`` is a storage or its URL, or a version there.
    """
    from cachelayer.storage.storage import Storage, open

    if isinstance(place, str) and names_version(place):
        place = open(place)
    if isinstance(place, DataRef):
        there = place._base.version
        if place.digest != version.info.digest:
            raise DigestMismatchError(
                f"{there.reference} has other records than {version.name}, which has digest "
                f"sha256:{version.info.digest[:12]}: nothing is repaired"
            )
        return there
    if isinstance(place, (str, os.PathLike)):
        place = Storage(place)
    if not isinstance(place, Storage):
        raise InvalidTypeError(f"from_: expected a Storage, its URL or a version, not a {type(place).__name__}")
    folder = place._catalog.dataset(version.dataset_id)
    versions = place._catalog.head(Log(folder)).versions
    same = [info for info in versions.values() if info.digest == version.info.digest]
    if not same:
        known = ", ".join(f"{info.version} (sha256:{info.digest[:12]})" for info in versions.values())
        raise DigestMismatchError(
            f"{folder.url} has no version with digest sha256:{version.info.digest[:12]}, which {version.name} has: "
            f"there are {known or 'none'}. Nothing is repaired"
        )
    # Several versions may have the same records. One with the same name may have the same manifest too.
    same_name = [info for info in same if info.version == version.info.version]
    return StoredVersion(folder, same_name[0] if same_name else same[-1])


def damaged_copies(version: StoredVersion, copies: CacheFolder | None, *, dry_run: bool) -> tuple[str, ...]:
    """Remove the damaged local copies of the shards of a version, and return their paths."""
    manifest = manifest_of(version)
    if copies is None or manifest is None:
        return ()
    group = copies.group(version.folder.url)
    blobs = {replace(blob, name=Path(blob.name).name) for file in manifest.files for blob in file.blobs}
    wrong = damaged(LocalStore(group.path("")), [blob for blob in blobs if group.has(blob.name, blob.nbytes)])
    if not dry_run:
        for name in wrong:
            group.drop(name)
    return tuple(str(group.path(name)) for name in sorted(wrong))
