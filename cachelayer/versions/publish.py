"""Publish a version: put its manifest, then the entry of the log that makes it a version.

A build may have been slow: files may have been deleted meanwhile, by a rule of the bucket or as garbage, and versions
that were read may be gone. All of this is checked, the last part of it on the head that the entry follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cachelayer.errors import AlreadyExistsError, BuildRevokedError, CorruptionError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import Buffer, Store
from cachelayer.versions.blobs import missing
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.snapshot import Snapshot, VersionInfo, manifest_name, manifest_stem
from cachelayer.versions.stored_version import StoredVersion, head_of_dataset


@dataclass(frozen=True)
class NewVersion:
    """A version that can be published: all of its files were put."""

    name: str
    manifest: Manifest
    event: Mapping[str, Any]
    """What the log says about the change."""
    time: str
    """When it is published, in ISO 8601, UTC."""
    known: Mapping[str, bytes] = field(default_factory=dict)
    """The indices of shards that the builder itself has put, by the names of the shards; empty if too large."""


@dataclass(frozen=True)
class Reliance:
    """A version, of any dataset, that a new one was made from: it must be there when that is published."""

    version: StoredVersion
    shares_files: bool = False
    """Whether the new version has files of it; else its records were copied."""


Place = Callable[[Snapshot, VersionInfo, Sequence[str], Mapping[str, Any]], Snapshot]
"""Returns a snapshot with a version, given the names of its files and the event."""


def publish(
    log: Log, new: NewVersion, relies_on: Sequence[Reliance] = (), place: Place = Snapshot.with_version
) -> StoredVersion:
    """Publish a version and return it."""
    manifest = new.manifest
    base = next((each.version for each in relies_on if each.shares_files), None)
    shared = set() if base is None else {file.file for file in base.manifest.files}
    files = [file.file for file in manifest.files]
    own_files = [file for file in manifest.files if file.file not in shared and file.name not in new.known]
    name = f"{log.folder.name}@{new.name}"
    _refuse_if_absent(log.folder, name, own_files)
    raw = manifest.encode()

    @cache
    def put(generation: int) -> StoredVersion:
        """Put the manifest once for each generation, which its name ends with."""
        version = StoredVersion.with_manifest(log.folder, info_of(new, raw, generation), manifest)
        with revoked_if_absent(log.folder, name, own_files):
            put_manifest(version, raw, base, new.known)
        return version

    def decide(head: Snapshot) -> Snapshot:
        published = head.versions.get(new.name)
        if published is not None and published.manifest_sha256 == hashlib.sha256(raw).hexdigest():
            # The reply to an earlier try was lost, and its entry arrived late.
            return head
        for each in relies_on:
            _refuse_if_changed(each, log, head, new.name)
        refuse_if_collected(log, head, new.name, files)
        return place(head, put(head.generation).info, files, new.event)

    entry = log.change(decide)
    return StoredVersion.with_manifest(log.folder, entry.versions[new.name], manifest.as_stored())


def info_of(new: NewVersion, raw: bytes, generation: int) -> VersionInfo:
    """Return the facts about a version in the log, given the bytes of its manifest."""
    return VersionInfo(
        version=new.name,
        manifest_sha256=hashlib.sha256(raw).hexdigest(),
        generation=generation,
        digest=new.manifest.digest,
        records=new.manifest.records,
        nbytes=new.manifest.nbytes,
        time=new.time,
    )


@contextmanager
def revoked_if_absent(store: Store, version: str, files: Collection[ShardFile | ColumnFile]) -> Iterator[None]:
    """Raise a BuildRevokedError in place of an error of reading files of a build again, if they are gone."""
    try:
        yield
    except CorruptionError:
        _refuse_if_absent(store, version, files)
        raise


def _refuse_if_absent(store: Store, version: str, files: Iterable[ShardFile | ColumnFile]) -> None:
    """Raise unless all files of a build are there, with their sizes."""
    absent = missing(store, [blob for file in files for blob in file.blobs])
    if absent:
        first = min(blob.name for blob in absent)
        raise BuildRevokedError(
            f"{version}: {len(absent)} of its files are not there as they were put, such as "
            f"{store.url}/{first}: is there a rule that deletes old objects? Build again"
        )


def _refuse_if_changed(reliance: Reliance, log: Log, head: Snapshot, version: str) -> None:
    """Raise if a version was deleted or erased from since it was read to make a new one, perhaps of its files."""
    read = reliance.version
    is_here = read.folder.url == log.folder.url
    there = head if is_here else head_of_dataset(read.folder)
    now = there.versions.get(read.info.version)
    if now == read.info:
        return
    if now is not None and now.digest == read.info.digest and not reliance.shares_files:
        return
    successor = there.successor(read.info.digest)
    if successor is not None:
        what = f"lost records to an erasure ({successor.reason})"
    else:
        what = "was deleted" if now is None else "was replaced"
    raise VersionNotFoundError(
        f"{read.name} {what} while {version!r} was made from it: begin again with what is there now"
    )


def refuse_if_collected(log: Log, head: Snapshot, version: str, names: Iterable[str]) -> None:
    """Raise if the log says that a file of the version was deleted as garbage."""
    lost = lost_files(names, log, head)
    if lost:
        raise BuildRevokedError(
            f"{log.folder.name}@{version}: {len(lost)} of its shards were collected as garbage before it was "
            f"published, such as {min(lost)}: build again, and collect with a longer grace"
        )


def lost_files(names: Iterable[str], log: Log, head: Snapshot) -> set[str]:
    """Return the files that entries of the log deleted since the generations in their names.

    What a version of the head names was not deleted: only other files are looked for in entries.
    """
    by_generation: dict[int, set[str]] = {}
    for name in set(names) - head.files:
        by_generation.setdefault(paths.generation_of(name), set()).add(name)
    lost: set[str] = set()
    for generation, names in by_generation.items():
        lost |= names & log.deleted_since(head, generation)
    return lost


def put_manifest(
    version: StoredVersion, raw: bytes, base: StoredVersion | None = None, known: Mapping[str, bytes] | None = None
) -> None:
    """Put the manifest of a version, in these bytes, and the files beside it; see :func:`put_indices`."""
    if version.manifest.kept_numbers is not None:
        version.folder.put(paths.kept_numbers(manifest_stem(version.info)), version.manifest.kept_numbers)
    put_indices(version, base, known)
    version.folder.put(manifest_name(version.info), raw)


def put_indices(
    version: StoredVersion, base: StoredVersion | None = None, known: Mapping[str, bytes] | None = None
) -> None:
    """Put the indices of all shards of a version as one object, if the version is to have such an object.

    Those of its first shards are read from the object of a base, if that has the same: this is one request. Those that
    are known, by the names of the shards, are not read.
    """
    if version.indices is None:
        return
    shards = list(version.manifest.shards)
    indices = b""
    if base is not None and base.indices is not None and shards[: len(base.manifest.shards)] == [*base.manifest.shards]:
        raw = version.folder.read(base.indices) or b""
        if base.manifest.shards.has_indices(raw):
            indices = raw
            shards = shards[len(base.manifest.shards) :]
    by_shard: dict[str, Buffer] = {name: index for name, index in (known or {}).items() if index}
    unread = [shard for shard in shards if shard.name not in by_shard]
    ranges = [(paths.index_of(shard.name), 0, shard.stats.index_nbytes) for shard in unread]
    by_shard |= zip([shard.name for shard in unread], version.folder.read_ranges(ranges), strict=True)
    version.folder.put(version.indices, b"".join([indices, *(by_shard[shard.name] for shard in shards)]))


def refuse_if_taken(log: Log, version: str) -> None:
    """Raise if there is a version or a tag of this name."""
    head = log.head()
    if version in head.versions or version in head.tags:
        what = "is published" if version in head.versions else "is a tag"
        raise AlreadyExistsError(f"{log.folder.name}@{version} {what} already: choose another version")
