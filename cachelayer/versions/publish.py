"""Publish a version: put its manifest, then the entry of the log that makes it a version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cachelayer.errors import AlreadyExistsError, BuildRevokedError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.system_threads import Pool
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.snapshot import Deletion, Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion

_AT_ONCE = 16


def publish(
    log: Log,
    version: str,
    manifest: Manifest,
    change: Mapping[str, Any],
    base: StoredVersion | None = None,
    time: str | None = None,
    replaces: tuple[str, str] | None = None,
    read: Sequence[StoredVersion] = (),
    mends: VersionInfo | None = None,
) -> StoredVersion:
    """Publish a version and return it.

    Args:
        log: the log of the dataset.
        version: its name.
        manifest: its manifest; all of its shards were put.
        change: the event of the log.
        base: the version of the dataset whose shards it has: it must be there as it was; None for none.
        time: when it is published; by default the time in its provenance.
        replaces: the digest of a version of this name that it replaces, because records were erased from that one, and
            why they were; None for none.
        read: versions of any dataset whose records were copied into new shards: nothing may have been erased from them.
        mends: the version of this name that gets this manifest, of the same digest, for its own; None for none.

    Raises:
        AlreadyExistsError: if there is a version or a tag of this name.
        VersionNotFoundError: if the base was deleted or replaced meanwhile, or a version that was read.
        BuildRevokedError: if a shard was deleted meanwhile, because no version named it, or is not there.
    """
    _check_files(log, version, manifest, base)
    raw, stored = manifest.encode(), manifest.as_stored()
    info = VersionInfo(
        version=version,
        manifest_sha256=hashlib.sha256(raw).hexdigest(),
        generation=-1,
        digest=manifest.digest,
        records=manifest.records,
        nbytes=manifest.nbytes,
        time=time or manifest.provenance["time"],
    )

    def decide(head: Snapshot) -> Snapshot:
        nonlocal info
        found = head.versions.get(version)
        if found is not None and found.manifest_sha256 == info.manifest_sha256:
            # The reply to an earlier try was lost, and its entry arrived late.
            return head
        for each in (*read, *([] if base is None else [base])):
            _refuse_if_changed(each, log, head, version, needs_files=each is base)
        if mends is not None and found != mends:
            what = "deleted" if found is None else "replaced"
            raise VersionNotFoundError(f"{log.folder.name}@{version} was {what} while it was mended")
        _check(log, head, version, stored)
        info = put_manifest(log, head, info, manifest, raw)
        if replaces is not None and found is not None and found.digest == replaces[0]:
            gone = Deletion(found, head.sequence + 1, 0.0)
            return head.superseding([info], replaces[1], change, [*head.deleted, gone])
        return head.with_version(info, change) if mends is None else head.with_manifest_of(info, change)

    entry = log.change(decide)
    return StoredVersion.with_manifest(log.folder, entry.versions[version], stored)


def _check_files(log: Log, version: str, manifest: Manifest, base: StoredVersion | None) -> None:
    """Raise unless all files that the version does not share with its base are there, with their sizes."""
    shared = set() if base is None else {file.file for file in base.manifest.files}
    absent = absent_files((file for file in manifest.files if file.file not in shared), log)
    if absent:
        raise BuildRevokedError(
            f"{log.folder.name}@{version}: {len(absent)} of its files are not there as they were put, such as "
            f"{log.folder.url}/{min(absent)}: is there a rule that deletes old objects? Build again"
        )


def _refuse_if_changed(read: StoredVersion, log: Log, head: Snapshot, version: str, *, needs_files: bool) -> None:
    """Raise if a version that was read to make another is not there any more, or records were erased from it.

    Args:
        read: the version.
        log, head: those of the new version, which is published on this head.
        version: the new version.
        needs_files: whether the new version has the files of the one that was read.
    """
    is_here = read.folder.url == log.folder.url
    there = head if is_here else Log(read.folder).head()
    found = there.versions.get(read.info.version)
    if found == read.info or (found is not None and found.digest == read.info.digest and not needs_files):
        return
    gone = there.successor(read.info.digest)
    what = "was deleted" if found is None else "was replaced"
    if gone is not None:
        what = f"lost records to an erasure ({gone.reason})"
    raise VersionNotFoundError(
        f"{read.name} {what} while {version!r} was made from it: begin again with what is there now"
    )


def _check(log: Log, head: Snapshot, version: str, manifest: Manifest) -> None:
    """Raise if a version cannot be published on this head."""
    columns = [file.generation for group in manifest.columns for file in group.files]
    is_swept = min([*manifest.shards.generations, *columns], default=head.generation) < head.generation
    lost = lost_files((file.file for file in manifest.files) if is_swept else (), log, head)
    if lost:
        raise BuildRevokedError(
            f"{log.folder.name}@{version}: {len(lost)} of its shards were collected as garbage before it was "
            f"published, such as {min(lost)}: build again, and collect with a longer grace"
        )


def lost_files(files: Iterable[str], log: Log, head: Snapshot) -> set[str]:
    """Return those of some files that were deleted since the generations in their names."""
    by_generation: dict[int, set[str]] = {}
    for file in files:
        by_generation.setdefault(paths.generation_of(file), set()).add(file)
    lost = (names & log.deleted_since(head, generation) for generation, names in by_generation.items())
    return set().union(*lost)


def absent_files(files: Iterable[ShardFile | ColumnFile], log: Log) -> set[str]:
    """Return those of some files that the store does not have with their sizes."""
    owners = {name: (file.file, facts.nbytes) for file in files for name, facts in file.files.items()}
    with Pool(_AT_ONCE, "cachelayer-files") as threads:
        sizes = threads.map(lambda name: log.folder.size(name), owners)
        return {file for (file, nbytes), size in zip(owners.values(), sizes, strict=True) if size != nbytes}


def put_manifest(log: Log, head: Snapshot, info: VersionInfo, manifest: Manifest, raw: bytes) -> VersionInfo:
    """Put a manifest under the generation of a head, unless that was done, and return the version with it."""
    if info.generation == head.generation:
        return info
    placed = VersionInfo(**{**vars(info), "generation": head.generation})
    if manifest.numbers is not None:
        log.folder.put(paths.kept(placed.file), manifest.numbers)
    put_indices(StoredVersion.with_manifest(log.folder, placed, manifest))
    log.folder.put(placed.manifest, raw)
    return placed


def put_indices(version: StoredVersion) -> None:
    """Put the indices of all shards of a version as one object, if it is to have that."""
    if version.indices is not None:
        shards = version.manifest.shards
        ranges = [(paths.index_of(shard.name), 0, shard.stats.index_nbytes) for shard in shards]
        version.folder.put(version.indices, b"".join(version.folder.read_ranges(ranges)))


def refuse_if_taken(log: Log, version: str) -> None:
    """Raise if there is a version or a tag of this name."""
    head = log.head()
    if version in head.versions or version in head.tags:
        what = "is published" if version in head.versions else "is a tag"
        raise AlreadyExistsError(f"{log.folder.name}@{version} {what} already: choose another version")
