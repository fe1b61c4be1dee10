"""Snapshots: the state of a dataset after an entry of its log, and every transition from one to the next."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cachelayer import json_values
from cachelayer.errors import (
    AlreadyExistsError,
    BuildRevokedError,
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
        manifest: name of its manifest, relative to the dataset.
        manifest_sha256: hex digest of the manifest's bytes.
        digest: hex digest of the data.
        records: number of records.
        nbytes: bytes of its shards.
        time: when it was published, in ISO 8601, UTC.
    """

    version: str
    manifest: str = field(repr=False)
    manifest_sha256: str = field(repr=False)
    digest: str
    records: int
    nbytes: int
    time: str

    @classmethod
    def from_json(cls, document: Any) -> VersionInfo:
        """Return the version that an entry of the log describes.

        Raises:
            ValueError, KeyError, TypeError: if the document is not what a log holds.
        """
        info = cls(**json_values.mapping("a version", document))
        paths.check_name("version", info.version)
        if info.manifest != paths.manifest(paths.attempt_of(json_values.text("manifest", info.manifest))):
            raise ValueError(f"{info.manifest[:200]!r} is not the name of a manifest")
        json_values.sha256("manifest_sha256", info.manifest_sha256)
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
class Snapshot:
    """The state of a dataset after one entry of its log.

    Args:
        sequence: number of the entry; 0 before the first.
        versions: by name, in the order in which they were published.
        tags: the version that each tag names.
        revoked: build attempts that may not publish any more.
        adopted: for each revoked attempt that another attempt resumed, the attempt that owns its files now.
        deleted: the deleted versions whose files are not collected yet.
        event: what the entry changed, by whom and when.
    """

    sequence: int = 0
    versions: Mapping[str, VersionInfo] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    adopted: Mapping[str, str] = field(default_factory=dict)
    deleted: tuple[Deletion, ...] = ()
    event: Mapping[str, Any] = field(default_factory=dict)

    @property
    def with_files(self) -> list[VersionInfo]:
        """The versions whose files have to stay: the published ones, and deleted ones that are not collected yet."""
        return [*self.versions.values(), *(each.info for each in self.deleted)]

    def has_published(self, attempt: str) -> bool:
        """Return whether this attempt wrote the manifest of a version that still has its files."""
        return any(paths.attempt_of(info.manifest) == attempt for info in self.with_files)

    def without_deletions(self, deletions: Collection[Deletion]) -> Snapshot:
        """Return the snapshot in which these deletions no longer keep any files."""
        return replace(self, deleted=tuple(each for each in self.deleted if each not in deletions))

    def with_version(self, info: VersionInfo, event: Mapping[str, Any]) -> Snapshot:
        if info.version in self.versions or info.version in self.tags:
            what = "version" if info.version in self.versions else "tag"
            raise AlreadyExistsError(
                f"{what} {info.version!r} exists already, and versions never change: choose another name"
            )
        attempt = paths.attempt_of(info.manifest)
        if attempt in self.revoked:
            raise BuildRevokedError(f"build attempt {attempt} of version {info.version!r} was revoked: build again")
        adopted = {name: owner for name, owner in self.adopted.items() if owner != attempt}
        return replace(self, versions={**self.versions, info.version: info}, adopted=adopted, event=event)

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

    def adopting(self, attempts: Collection[str], owner: str, event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that revokes these attempts and gives their files to another attempt.

        An attempt that owns itself here has given up, and left its files for another.
        """
        # An attempt that had adopted one of them has died too: take over everything else that it had.
        dead = {*attempts, *({self.adopted[name] for name in attempts if name in self.adopted} - {owner})}
        taken = {*dead, *(name for name, of in self.adopted.items() if of in dead)}
        adopted = {**self.adopted, **dict.fromkeys(sorted(taken), owner)}
        return replace(self, revoked=self.revoked | taken, adopted=adopted, event=event)

    def without_attempts(self, attempts: Iterable[str], event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that revokes these attempts and lets no other attempt resume them."""
        gone = frozenset(attempts)
        adopted = {name: owner for name, owner in self.adopted.items() if name not in gone}
        return replace(self, revoked=self.revoked | gone, adopted=adopted, event=event)

    def can_be_adopted(self, attempt: str) -> bool:
        """Return whether another attempt can resume this one, which did not publish."""
        return attempt not in self.revoked or attempt in self.adopted

    def owner_of(self, attempt: str) -> str:
        """Return the attempt that owns the files of this one: itself, or the one that adopted it."""
        return self.adopted.get(attempt, attempt)

    def encode(self, token: str) -> bytes:
        document = {
            "format": FORMAT,
            "sequence": self.sequence,
            "versions": [asdict(info) for info in self.versions.values()],
            "tags": dict(self.tags),
            "revoked": sorted(self.revoked),
            "adopted": dict(self.adopted),
            "deleted": [each.to_json() for each in self.deleted],
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
                revoked=frozenset(map(paths.check_attempt, json_values.items("revoked", document["revoked"]))),
                adopted=_attempts(json_values.mapping("adopted", document["adopted"])),
                deleted=tuple(map(Deletion.from_json, json_values.items("deleted", document["deleted"]))),
                event=json_values.mapping("event", json_values.shallow("event", document["event"])),
            )
            if len(made.versions) != len(versions):
                raise ValueError("the entry lists a version twice")
            return made


def _names(tags: Mapping[str, Any]) -> dict[str, str]:
    return {paths.check_name("tag", tag): paths.check_name("version", version) for tag, version in tags.items()}


def _attempts(adopted: Mapping[str, Any]) -> dict[str, str]:
    return {paths.check_attempt(name): paths.check_attempt(owner) for name, owner in adopted.items()}
