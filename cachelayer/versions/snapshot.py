"""Snapshots: the state of a dataset after an entry of its log, and every transition from one to the next."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cachelayer import json_values
from cachelayer.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidArgumentError,
    VersionNotFoundError,
)
from cachelayer.objects import paths

FORMAT = 1


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

    version: str
    manifest_sha256: str = field(repr=False)
    generation: int = field(repr=False)
    digest: str
    records: int
    nbytes: int
    time: str

    @property
    def file(self) -> str:
        """The name of its manifest without the suffix, relative to the dataset."""
        return paths.file(paths.MANIFESTS, self.manifest_sha256, self.generation)

    @property
    def manifest(self) -> str:
        """The name of its manifest, relative to the dataset."""
        return paths.manifest(self.file)

    @classmethod
    def from_json(cls, document: Any) -> VersionInfo:
        """Return the version that an entry of the log describes.

        Raises:
            ValueError, KeyError, TypeError: if the document is not what a log holds.
        """
        info = cls(**json_values.mapping("a version", document))
        paths.check_name("version", info.version)
        json_values.sha256("manifest_sha256", info.manifest_sha256)
        json_values.whole("generation", info.generation)
        json_values.sha256("digest", info.digest)
        json_values.whole("records", info.records)
        json_values.whole("nbytes", info.nbytes)
        json_values.text("time", info.time)
        return info


@dataclass(frozen=True)
class Deletion:
    """A deleted version. Its files stay for a while, for programs that still read them.

    Args:
        info: the version.
        sequence: the number of the log entry that deleted it; the store's own time of that object tells when.
        grace: seconds after which the files are collected.
    """

    info: VersionInfo
    sequence: int
    grace: float

    def to_json(self) -> dict[str, Any]:
        return {"version": asdict(self.info), "sequence": self.sequence, "grace": self.grace}

    @classmethod
    def from_json(cls, stored: Any) -> Deletion:
        """Return the deletion that :meth:`to_json` wrote."""
        document = json_values.mapping("a deletion", stored)
        grace = document["grace"]
        if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < math.inf:
            raise ValueError(f"a deletion has a grace of {grace!r} seconds")
        sequence = json_values.whole("the sequence of a deletion", document["sequence"], 1)
        return cls(VersionInfo.from_json(document["version"]), sequence, float(grace))


@dataclass(frozen=True)
class Superseded:
    """What became of a digest that records were erased from.

    Args:
        version: the version that had it.
        digest: the digest that it has now.
        reason: why the records were erased.
        time: when, in ISO 8601, UTC.
    """

    version: str
    digest: str
    reason: str
    time: str

    @classmethod
    def from_json(cls, document: Any) -> Superseded:
        """Return what a log says of a digest."""
        found = cls(**json_values.mapping("what is superseded", document))
        paths.check_name("version", found.version)
        json_values.sha256("digest", found.digest)
        json_values.text("reason", found.reason)
        json_values.text("time", found.time)
        return found


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

    sequence: int = 0
    versions: Mapping[str, VersionInfo] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    deleted: tuple[Deletion, ...] = ()
    sweeps: tuple[int, ...] = ()
    swept: frozenset[str] = frozenset()
    superseded: Mapping[str, Superseded] = field(default_factory=dict)
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
        """Return what became of a digest that begins so; None if no records were erased from it."""
        found = next((gone for old, gone in self.superseded.items() if old.startswith(digest)), None)
        while found is not None and found.digest in self.superseded:
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
            raise InvalidArgumentError(
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
        document = {
            "format": FORMAT,
            "sequence": self.sequence,
            "versions": [asdict(info) for info in self.versions.values()],
            "tags": dict(self.tags),
            "deleted": [each.to_json() for each in self.deleted],
            "sweeps": list(self.sweeps),
            "swept": sorted(self.swept),
            "superseded": {digest: asdict(gone) for digest, gone in self.superseded.items()},
            "event": dict(self.event),
            "token": token,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, raw: bytes, name: str, sequence: int) -> Snapshot:
        """Return the snapshot in the log entry of this number."""
        with json_values.decoding(name, "entry of a log"):
            document = json_values.parsed(raw)
            json_values.check_format(document, FORMAT, "log")
            versions = [VersionInfo.from_json(info) for info in json_values.items("versions", document["versions"])]
            if json_values.whole("sequence", document["sequence"], 1) != sequence:
                # A writer that continued from it would look for the newest entry in the wrong place, for ever.
                raise CorruptionError(
                    f"{name}: the entry says that it is number {document['sequence']}: it was copied or edited; "
                    "restore it, or delete it and the entries after it"
                )
            made = cls(
                sequence=sequence,
                versions={info.version: info for info in versions},
                tags=_names(json_values.mapping("tags", document["tags"])),
                deleted=tuple(map(Deletion.from_json, json_values.items("deleted", document["deleted"]))),
                sweeps=_sweeps(json_values.items("sweeps", document["sweeps"]), sequence),
                swept=frozenset(map(_file, json_values.items("swept", document["swept"]))),
                superseded={
                    json_values.sha256("a superseded digest", digest): Superseded.from_json(gone)
                    for digest, gone in json_values.mapping("superseded", document["superseded"]).items()
                },
                event=json_values.mapping("event", json_values.shallow("event", document["event"])),
            )
            if len(made.versions) != len(versions):
                raise ValueError("the entry lists a version twice")
            return made


def _names(tags: Mapping[str, Any]) -> dict[str, str]:
    return {paths.check_name("tag", tag): paths.check_name("version", version) for tag, version in tags.items()}


def _sweeps(sweeps: list[Any], sequence: int) -> tuple[int, ...]:
    numbers = tuple(json_values.whole("a sweep", number, 1, most=sequence) for number in sweeps)
    if list(numbers) != sorted(set(numbers)):
        raise ValueError("the numbers of sweeps do not ascend")
    return numbers


def _file(name: Any) -> str:
    if not paths.is_file(json_values.text("a deleted file", name)):
        raise ValueError(f"{name[:200]!r} is not the name of a file")
    return str(name)
