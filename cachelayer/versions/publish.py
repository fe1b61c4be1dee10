"""Publish a version: put its manifest, then the entry of the log that makes it a version.

A build may have been slow: files may have been deleted meanwhile, by a rule of the bucket or as garbage, and versions
that were read may be gone. All of this is checked, the last part of it on the head that the entry follows.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
    base: StoredVersion | None = None
    """The version whose files it shares; None if all files are its own. It must be there as it was read."""
    sources: Sequence[StoredVersion] = ()
    """Versions, of any dataset, whose records were copied: they must be there with the same records."""
    known: Mapping[str, bytes] = field(default_factory=dict)
    """The indices of shards that the builder itself has put, by the names of the shards; empty if too large."""
    time: str = ""
    """When it was published, in ISO 8601, UTC; empty for the time of the event."""


Place = Callable[[Snapshot, VersionInfo, Sequence[str], Mapping[str, Any]], Snapshot]
"""Returns a snapshot with a version, given the names of its files and the event."""


def publish(log: Log, new: NewVersion, place: Place = Snapshot.with_version) -> StoredVersion:
    """Publish a version and return it."""
    manifest = new.manifest
    shared = set() if new.base is None else {file.file for file in new.base.manifest.files}
    files = [file.file for file in manifest.files]
    own_files = [file for file in manifest.files if file.file not in shared and file.name not in new.known]
    name = f"{log.folder.name}@{new.name}"
    _refuse_if_absent(log.folder, name, own_files)
    put: dict[int, StoredVersion] = {}
    """The version by the generation of its manifest, which is put once for each generation of the heads."""

    def prepare(head: Snapshot) -> Snapshot:
        if head.versions.get(new.name) in [version.info for version in put.values()]:
            # The reply to an earlier try was lost, and its entry arrived late.
            return head
        _refuse_if_changed(new, log, head)
        refuse_if_collected(log, head, new.name, files)
        if head.generation not in put:
            with revoked_if_absent(log.folder, name, own_files):
                put[head.generation] = put_version(log.folder, new, head.generation)
        return place(head, put[head.generation].info, files, new.event)

    published = log.commit(prepare).versions[new.name]
    return next(version for version in put.values() if version.info == published)


def put_version(folder: Store, new: NewVersion, generation: int) -> StoredVersion:
    """Put the manifest of a version and the files beside it, whose names end with a generation; return the version."""
    # With the token, no other manifest has these bytes.
    manifest = replace(new.manifest, token=uuid.uuid4().hex)
    raw = manifest.encode()
    info = VersionInfo(
        version=new.name,
        manifest_sha256=hashlib.sha256(raw).hexdigest(),
        generation=generation,
        digest=manifest.digest,
        records=manifest.records,
        nbytes=manifest.nbytes,
        time=new.time or new.event["time"],
    )
    version = StoredVersion.with_manifest(folder, info, manifest.as_stored())
    if manifest.kept_numbers is not None:
        folder.put(paths.kept_numbers(manifest_stem(info)), manifest.kept_numbers)
    put_indices(version, new.base, new.known)
    folder.put(manifest_name(info), raw)
    return version


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


def _refuse_if_changed(new: NewVersion, log: Log, head: Snapshot) -> None:
    """Raise if a version that a new one was made from is not there any more."""
    for read in [*new.sources, *([] if new.base is None else [new.base])]:
        there = head if read.folder.url == log.folder.url else head_of_dataset(read.folder)
        change = there.change_of(read.info, files_matter=read is new.base)
        if change:
            raise VersionNotFoundError(
                f"{read.name} {change} while {new.name!r} was made from it: begin again with what is there now"
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
