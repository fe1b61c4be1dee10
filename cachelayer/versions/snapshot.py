"""Snapshots: the state of a dataset after an entry of its log, and every transition from one to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from cachelayer import json_values
from cachelayer.errors import (
    AlreadyExistsError,
    CorruptionError,
    RefusedError,
    VersionNotFoundError,
)
from cachelayer.json_values import Count, Sha256
from cachelayer.objects import paths

FORMAT = 1
Name = Annotated[str, paths.check_name]


@dataclass(frozen=True)
class VersionInfo:
    """A published version.

    Args:
        version: its name.
        manifest_sha256: hex digest of the manifest's bytes.
        generation: that of the log when the manifest was put.
        digest: hex digest of the data.
        records: number of records.
        nbytes: bytes of its shards.
        time: when it was published, in ISO 8601, UTC.
    """

    version: Name
    manifest_sha256: Sha256 = field(repr=False)
    generation: Count = field(repr=False)
    digest: Sha256
    records: Count
    nbytes: Count
    time: str

    @property
    def file(self) -> str:
        """The name of its manifest without the suffix, relative to the dataset."""
        return paths.file(paths.MANIFESTS, self.manifest_sha256, self.generation)

    @property
    def manifest(self) -> str:
        """The name of its manifest, relative to the dataset."""
        return paths.manifest(self.file)


@dataclass(frozen=True)
class Deletion:
    """A deleted version. Its files stay for a while, for programs that still read them.

    Args:
        info: the version.
        sequence: the number of the log entry that deleted it; the store's own time of that object tells when.
        grace: seconds after which the files are collected.
    """

    info: VersionInfo
    sequence: Count
    grace: Annotated[float, json_values.seconds]


@dataclass(frozen=True)
class Superseded:
    """What became of a digest that records were erased from.

    Args:
        version: the version that had it.
        digest: the digest that it has now.
        reason: why the records were erased.
        time: when, in ISO 8601, UTC.
    """

    version: Name
    digest: Sha256
    reason: str
    time: str


def _file(what: str, name: Any) -> str:
    if not paths.is_file(json_values.text(what, name)):
        raise ValueError(f"{what} has {name[:200]!r}, which is not the name of a file")
    return str(name)


@dataclass(frozen=True)
class Snapshot:
    """The state of a dataset after one entry of its log.

    Args:
        sequence: number of the entry; 0 before the first.
        versions: by name, in the order in which they were published.
        tags: the version that each tag names.
        deleted: the deleted versions whose files are not collected yet.
        sweeps: the numbers of the entries that deleted files; each began a generation.
        swept: the files that this entry deleted, without their suffixes, relative to the dataset.
        superseded: what became of the digests that records were erased from.
        event: what the entry changed, by whom and when.
    """

    sequence: Count = 0
    versions: Mapping[Name, VersionInfo] = field(default_factory=dict)
    tags: Mapping[Name, Name] = field(default_factory=dict)
    deleted: tuple[Deletion, ...] = ()
    sweeps: tuple[Count, ...] = ()
    swept: frozenset[Annotated[str, _file]] = frozenset()
    superseded: Mapping[Sha256, Superseded] = field(default_factory=dict)
    event: Mapping[str, Any] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        """The number of entries up to this one that deleted files. Files are put under the present generation."""
        return len(self.sweeps)

    @property
    def with_files(self) -> list[VersionInfo]:
        """The versions whose files have to stay: the published ones, and deleted ones that are not collected yet."""
        return [*self.versions.values(), *(each.info for each in self.deleted)]

    def without_deletions(self, deletions: Collection[Deletion]) -> Snapshot:
        """Return the snapshot in which these deletions no longer keep any files."""
        return replace(self, deleted=tuple(each for each in self.deleted if each not in deletions))

    def with_version(self, info: VersionInfo, event: Mapping[str, Any]) -> Snapshot:
        if info.version in self.versions or info.version in self.tags:
            what = "version" if info.version in self.versions else "tag"
            raise AlreadyExistsError(
                f"{what} {info.version!r} exists already, and versions never change: choose another name"
            )
        return replace(self, versions={**self.versions, info.version: info}, event=event)

    def with_manifest_of(self, info: VersionInfo, event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot in which a version has another manifest, with the same digest."""
        return replace(self, versions={**self.versions, info.version: info}, event=event)

    def superseding(
        self,
        infos: Collection[VersionInfo],
        reason: str,
        event: Mapping[str, Any],
        deletions: Collection[Deletion] = (),
    ) -> Snapshot:
        """Return the snapshot in which versions replace those of their names, from which records were erased.

        Args:
            infos: the versions.
            reason: why the records were erased.
            event: what the log says of it.
            deletions: how long files stay, of the versions that are replaced and of those that were deleted before.
        """
        changed = {info.version: info for info in infos}
        gone = {
            self.versions[info.version].digest: Superseded(info.version, info.digest, reason, info.time)
            for info in infos
        }
        return replace(
            self,
            versions={**self.versions, **changed},
            deleted=tuple(deletions),
            superseded={**self.superseded, **gone},
            event=event,
        )

    def successor(self, digest: str) -> Superseded | None:
        """Return what became of a digest that begins so; None if no records were erased from it.

        Raises:
            CorruptionError: if a digest has itself among its successors.
        """
        found = next((gone for old, gone in self.superseded.items() if old.startswith(digest)), None)
        followed: set[str] = set()
        while found is not None and found.digest in self.superseded:
            if found.digest in followed:
                raise CorruptionError(f"entry {self.sequence} of the log: the digest {found.digest} supersedes itself")
            followed.add(found.digest)
            found = self.superseded[found.digest]
        return found

    def with_tag(self, version: str, tag: str, event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot in which a tag names a version."""
        if tag in self.versions:
            raise AlreadyExistsError(f"{tag!r} is a version: tags and versions share their names, choose another")
        return replace(self, tags={**self.tags, tag: version}, event={**event, "version": version})

    def without_tag(self, tag: str, event: Mapping[str, Any]) -> Snapshot:
        if tag not in self.tags:
            hint = "it is a version" if tag in self.versions else f"there are {', '.join(self.tags) or 'none'}"
            raise VersionNotFoundError(f"no tag {tag!r}: {hint}")
        kept = {name: version for name, version in self.tags.items() if name != tag}
        return replace(self, tags=kept, event={**event, "version": self.tags[tag]})

    def without_version(self, version: str, event: Mapping[str, Any], *, force: bool, grace: float) -> Snapshot:
        """Return the snapshot without a version. Its files stay for ``grace`` seconds. ``force`` removes its tags too.

        The grace also shortens that of versions of the same name that were deleted before.
        """
        deleted = [
            replace(each, grace=min(grace, each.grace)) if each.info.version == version else each
            for each in self.deleted
        ]
        if version in self.versions:
            deleted.append(Deletion(self.versions[version], self.sequence + 1, grace))
        tags = {tag: named for tag, named in self.tags.items() if named == version}
        if tags and not force:
            raise RefusedError(
                f"version {version!r} has the tag {', '.join(map(repr, tags))}: move it first, or delete it too: "
                "force=True"
            )
        versions = {name: info for name, info in self.versions.items() if name != version}
        others = {tag: named for tag, named in self.tags.items() if tag not in tags}
        what = {**event, "tags": list(tags), "grace": grace}
        return replace(self, versions=versions, tags=others, deleted=tuple(deleted), event=what)

    def sweeping(self, files: Collection[str], event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that deletes files, and so begins a generation, if there are any."""
        sweeps = (*self.sweeps, self.sequence + 1) if files else self.sweeps
        return replace(self, sweeps=sweeps, swept=frozenset(files), event=event)

    def encode(self, token: str) -> bytes:
        return json_values.sealed({"format": FORMAT, **json_values.encoded(self), "token": token})

    @classmethod
    def decode(cls, raw: bytes, name: str, sequence: int) -> Snapshot:
        """Return the snapshot in the log entry of this number."""
        with json_values.decoding(name, "entry of a log"):
            document = json_values.unsealed(raw)
            json_values.check_format(document, FORMAT, "log")
            del document["format"], document["token"]
            entry: Snapshot = json_values.decoded(cls, "entry", document)
            if entry.sequence != sequence:
                # A writer that continued from it would look for the newest entry in the wrong place, for ever.
                raise CorruptionError(
                    f"{name}: the entry says that it is number {entry.sequence}: it was copied or edited; "
                    "restore it, or delete it and the entries after it"
                )
            if not all(info.version == key for key, info in entry.versions.items()):
                raise ValueError("the entry lists a version under another name")
            if list(entry.sweeps) != sorted({*entry.sweeps} - {0}) or max(entry.sweeps, default=0) > entry.sequence:
                raise ValueError("the numbers of sweeps do not ascend, or are those of later entries")
            return entry
