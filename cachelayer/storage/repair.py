"""Repair a version from another storage, or from its source; see :meth:`cachelayer.Storage.repair`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelayer.access.dataref import DataRef
from cachelayer.errors import DigestMismatchError, InvalidArgumentError, InvalidTypeError
from cachelayer.objects.local import file_crc32c
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.records import spec_json
from cachelayer.storage.catalog import Catalog
from cachelayer.temporary_files import working_folder
from cachelayer.versions.damage import manifest_of
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.reference import Reference, names_version
from cachelayer.versions.repair import RepairReport, repair
from cachelayer.versions.stored_version import StoredVersion

if TYPE_CHECKING:
    from cachelayer.storage.storage import Storage


def repair_version(
    catalog: Catalog,
    reference: Reference,
    place: Storage | DataRef[Any] | str | os.PathLike[str] | None,
    *,
    source: Any,
    dry_run: bool,
    options: Mapping[str, Any],
) -> RepairReport:
    """Find what is damaged of a version, and put it again from another place, or from its source."""
    if (place is not None and source is not None) or (place is source is None and not dry_run):
        raise InvalidArgumentError(
            "repair takes one of from_=, another storage that has the version, and source=, what it was built "
            "from; with dry_run=True none is needed"
        )
    unused = sorted(options.keys() - {"workers", "engine", "resume", "progress"})
    if source is None and unused:
        raise InvalidArgumentError(f"repair: {unused[0]}= says how source= is built: pass source=, or leave it out")
    version = catalog.resolve(reference)
    good_version: AbstractContextManager[StoredVersion] | None = None
    if place is not None:
        good_version = nullcontext(version_elsewhere(version, place))
    elif source is not None:
        good_version = built_again(version, source, options)
    copies = damaged_copies(version, catalog.copies, dry_run=dry_run)
    if dry_run:
        good_version = None
    return repair(version, good_version, local_copies=copies, progress=options.get("progress"))


def version_elsewhere(version: StoredVersion, place: Storage | DataRef[Any] | str | os.PathLike[str]) -> StoredVersion:
    """Return a version in another place that has the same records.

    Args:
        place: a storage or its URL, or a version there.

    Raises:
        DigestMismatchError: if the version there has another digest, or no version there has this digest.
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
        raise InvalidTypeError(
            f"from_: expected a Storage, its URL or a version, not a {type(place).__name__}; pass a source as source="
        )
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


@contextmanager
def built_again(version: StoredVersion, source: Any, options: Mapping[str, Any]) -> Iterator[StoredVersion]:
    """Build a version again from its source, in a working folder, and yield the version there.

    Args:
        version: the version. It says with which options it was built, unless its manifest is lost.
        options: the options of the build that differ from those of the version.

    Raises:
        DigestMismatchError: if the source gives other records.
    """
    from cachelayer.storage.storage import Storage

    manifest = manifest_of(version)
    known = {} if manifest is None else _options_of(manifest)
    with working_folder(version.folder.working_folder()) as folder:
        built = Storage(folder).submit(source, version.dataset_id, version.info.version, **{**known, **options})
        if not isinstance(built, DataRef):
            raise InvalidArgumentError(f"source has the splits {', '.join(built)}: pass that of {version.dataset_id}")
        again = built._base.version
        if manifest is None:
            digest = again.info.digest
            expected = version.info.digest
        else:
            # A build has no added columns.
            digest = again.manifest.shards_digest
            expected = manifest.shards_digest
        if digest != expected:
            raise DigestMismatchError(
                f"the source gives {again.info.records} records with digest sha256:{digest[:12]}, and "
                f"{version.name} has {version.info.records} with sha256:{expected[:12]}: nothing is repaired. "
                f"{_advice(manifest)}"
            )
        yield again


def _options_of(manifest: Manifest) -> dict[str, Any]:
    """Return the options that a version was built with, as far as its provenance says."""
    provenance = manifest.provenance
    options: dict[str, Any] = {"allow_empty": True}
    if _made_from(manifest) is not None:
        # Its options are those of adding columns, or of what was appended.
        return options
    known = provenance.get("options") or {}
    options |= {name: known[name] for name in ("max_records", "unbatch", "on_error", "validate") if name in known}
    if known.get("element_spec") is not None:
        options["element_spec"] = spec_json.from_json(known["element_spec"])
    if provenance.get("shard_bytes") is not None:
        options["shard_bytes"] = provenance["shard_bytes"]
    if "zstd" in manifest.shards.compressions:
        options["compression"] = "zstd"
    return options


def _advice(manifest: Manifest | None) -> str:
    """Return what to do if a source gives other records than those of a version."""
    base = None if manifest is None else _made_from(manifest)
    if base is None:
        return "Pass the source, and the options that it was built with, such as shard_bytes"
    return f"It was made from {base}: repair that from its source, and this version from a copy"


def _made_from(manifest: Manifest) -> str | None:
    """Return the name of the version that this one was made from; None if it was built from a source, even a ref."""
    version = (manifest.provenance.get("base") or {}).get("version")
    return None if version is None else str(version)


def damaged_copies(version: StoredVersion, copies: CacheFolder | None, *, dry_run: bool) -> tuple[str, ...]:
    """Remove the damaged local copies of the shards of a version, and return their paths."""
    manifest = manifest_of(version)
    if copies is None or manifest is None:
        return ()
    group = copies.group(version.folder.url)
    files = {Path(name).name: facts for file in manifest.files for name, facts in file.files.items()}
    damaged = [
        name
        for name, facts in files.items()
        if group.has(name, facts.nbytes) and file_crc32c(group.path(name)) != facts.crc32c
    ]
    if not dry_run:
        for name in damaged:
            group.drop(name)
    return tuple(str(group.path(name)) for name in damaged)
