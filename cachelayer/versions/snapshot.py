"""Snapshots: the state of a dataset after an entry of its log, and every transition from one state to the next.

::

    versions    v1: VersionInfo, v2: VersionInfo    in the order in which they were published
    tags        best: v2
    deleted     v0, until its grace is over         its files stay for programs that still read them
    sweeps      4, 9                                the entries that deleted files: the generation is 2
    superseded  old digest: v1, new digest          records were erased from the version that had the old digest
    files       shards/1f..-0, shards/a0..-1        what the manifests of all these versions name

Each transition is a method that returns a new snapshot: ``with_version``, ``with_tag``, ``without_version``, and so on.

An entry says what changed since an earlier one, :func:`base_of`: the number of that has the last 1 of the number of
this in binary as 0. So a snapshot is read from one entry for each 1 of its number, and each change is written again in
one entry for each digit at most::

    entry      1  2  3  4  5  6  7  8  ...  12  13      13 = 0b1101 is read from 8 = 0b1000, 12 = 0b1100 and 13
    since      0  0  2  0  4  4  6  0        8  12
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Annotated, Any, TypeVar

from cachelayer.errors import AlreadyExistsError, CorruptionError, RefusedError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.support import json_values
from cachelayer.support.json_values import Count, Sha256

FORMAT = 1
Name = Annotated[str, paths.check_name]
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def base_of(sequence: int) -> int:
    """Return the number of the entry since which an entry says what changed; 0 for the state before all entries."""
    return sequence & (sequence - 1)


def chain_of(sequence: int) -> list[int]:
    """Return the numbers of the entries from which the snapshot of an entry is read, the first one first."""
    chain = []
    while sequence:
        chain.append(sequence)
        sequence = base_of(sequence)
    return chain[::-1]


@dataclass(frozen=True)
class VersionInfo:
    """A published version, as the log lists it.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> info = storage.versions("numbers")["v1"]
        >>> info.version, info.records, info.digest == ref.digest, info.nbytes == ref.nbytes
        ('v1', 3, True, True)
    """

    version: Name
    """The name of the version."""
    manifest_sha256: Sha256 = field(repr=False)
    """SHA-256 of the bytes of its manifest, in hexadecimal."""
    generation: Count = field(repr=False)
    """The generation of the log when the manifest was put."""
    digest: Sha256
    """SHA-256 of its records, in hexadecimal."""
    records: Count
    """Number of records."""
    nbytes: Count
    """Bytes of its shards."""
    time: str
    """When it was published, in ISO 8601, UTC."""


def manifest_stem(info: VersionInfo) -> str:
    """Return the name of the manifest of a version, without its suffix, relative to the dataset."""
    return paths.file(paths.MANIFESTS, info.manifest_sha256, info.generation)


def manifest_name(info: VersionInfo) -> str:
    """Return the name of the manifest of a version, relative to the dataset."""
    return paths.manifest(manifest_stem(info))


def manifest_objects(info: VersionInfo) -> list[str]:
    """Return the names of a manifest and of the objects beside it, which not every version has."""
    stem = manifest_stem(info)
    return [paths.manifest(stem), paths.kept_numbers(stem), paths.indices(stem)]


@dataclass(frozen=True)
class Deletion:
    """A deleted version whose files were not collected yet."""

    info: VersionInfo
    sequence: Count
    """The number of the log entry that deleted it. The store's own time of that entry says when."""
    grace: Annotated[float, json_values.seconds]
    """Seconds after which the files are collected."""


@dataclass(frozen=True)
class Superseded:
    """The successor of a version from which records were erased."""

    version: Name
    digest: Sha256
    """The digest of the version since then."""
    reason: str
    """Why the records were erased."""
    time: str
    """When, in ISO 8601, UTC."""


def _file(what: str, name: Any) -> str:
    if not paths.is_file(json_values.text(what, name)):
        raise ValueError(f"{what} has {name[:200]!r}, which is not the name of a file")
    return str(name)


@dataclass(frozen=True)
class Snapshot:
    """The state of a dataset after one entry of its log."""

    sequence: Count = 0
    """Number of the entry; 0 before the first."""
    versions: Mapping[Name, VersionInfo] = field(default_factory=dict)
    """The published versions by name, in the order in which they were published."""
    tags: Mapping[Name, Name] = field(default_factory=dict)
    """The version that each tag names."""
    deleted: tuple[Deletion, ...] = ()
    sweeps: tuple[Count, ...] = ()
    """The numbers of the entries that deleted files. Each of them began a generation."""
    swept: frozenset[Annotated[str, _file]] = frozenset()
    """The files that this entry deleted, without their suffixes, relative to the dataset."""
    superseded: Mapping[Sha256, Superseded] = field(default_factory=dict)
    """The successors of versions from which records were erased, by the digests that these versions had."""
    files: frozenset[str] = frozenset()
    """The shards and column files that the manifests of its versions name, also of deleted ones; without suffixes."""
    event: Mapping[str, Any] = field(default_factory=dict)
    """What the entry changed, by whom and when."""

    @property
    def generation(self) -> int:
        """The number of entries that have deleted files. The names of files that are put now end with it."""
        return len(self.sweeps)

    @property
    def versions_with_files(self) -> list[VersionInfo]:
        """The versions whose files have to stay: the published ones, and the deleted ones."""
        return [*self.versions.values(), *(deletion.info for deletion in self.deleted)]

    def without_deletions(self, deletions: Collection[Deletion], files: Collection[str]) -> Snapshot:
        """Return the snapshot in which these deleted versions need no files, and no version needs ``files``."""
        deleted = tuple(deletion for deletion in self.deleted if deletion not in deletions)
        return replace(self, deleted=deleted, files=self.files.difference(files))

    def with_version(self, info: VersionInfo, files: Iterable[str], event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot with a new version, whose manifest names files."""
        if info.version in self.versions or info.version in self.tags:
            what = "version" if info.version in self.versions else "tag"
            raise AlreadyExistsError(
                f"{what} {info.version!r} exists already, and versions never change: choose another name"
            )
        return replace(self, versions={**self.versions, info.version: info}, files=self.files.union(files), event=event)

    def replacing(
        self, info: VersionInfo, files: Iterable[str], event: Mapping[str, Any], *, reason: str = "", grace: float = 0.0
    ) -> Snapshot:
        """Return the snapshot in which a version has another manifest, which names files.

        The files of the old manifest stay for the grace. A version that has another digest then lost records to an
        erasure, for this reason.
        """
        before = self.versions[info.version]
        superseded = dict(self.superseded)
        if before.digest != info.digest:
            superseded[before.digest] = Superseded(info.version, info.digest, reason, info.time)
        return replace(
            self,
            versions={**self.versions, info.version: info},
            deleted=(*self.deleted, Deletion(before, self.sequence + 1, grace)),
            superseded=superseded,
            files=self.files.union(files),
            event=event,
        )

    def change_of(self, info: VersionInfo, *, files_matter: bool = True) -> str:
        """Return what happened to a version since it was as ``info`` says, in words; an empty text for nothing.

        If its files do not matter, another manifest with the same records is no change.
        """
        now = self.versions.get(info.version)
        if now == info or (now is not None and now.digest == info.digest and not files_matter):
            return ""
        successor = self.successor(info.digest)
        if successor is not None:
            return f"lost records to an erasure ({successor.reason})"
        if now is None:
            return "was deleted"
        return "was repaired" if now.digest == info.digest else "was replaced"

    def successor(self, digest: str) -> Superseded | None:
        """Return the successor of a version from which records were erased, by its digest, or a prefix; or None."""
        successor = next((after for before, after in self.superseded.items() if before.startswith(digest)), None)
        followed: set[str] = set()
        while successor is not None and successor.digest in self.superseded:
            if successor.digest in followed:
                raise CorruptionError(
                    f"entry {self.sequence} of the log: the digest {successor.digest} supersedes itself"
                )
            followed.add(successor.digest)
            successor = self.superseded[successor.digest]
        return successor

    def with_tag(self, version: str, tag: str, event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot in which a tag names a version."""
        if tag in self.versions:
            raise AlreadyExistsError(f"{tag!r} is a version: tags and versions share their names, choose another")
        return replace(self, tags={**self.tags, tag: version}, event={**event, "version": version})

    def without_tag(self, tag: str, event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot without a tag."""
        if tag not in self.tags:
            hint = "it is a version" if tag in self.versions else f"there are {', '.join(self.tags) or 'none'}"
            raise VersionNotFoundError(f"no tag {tag!r}: {hint}")
        tags = {name: version for name, version in self.tags.items() if name != tag}
        return replace(self, tags=tags, event={**event, "version": self.tags[tag]})

    def without_version(self, version: str, event: Mapping[str, Any], *, force: bool, grace: float) -> Snapshot:
        """Return the snapshot without a version, whose files stay for the grace.

        If it is deleted already, the new grace counts if it is shorter. Its tags are removed by ``force``, or refused.
        """
        deleted = []
        for deletion in self.deleted:
            if deletion.info.version == version:
                deletion = replace(deletion, grace=min(grace, deletion.grace))
            deleted.append(deletion)
        if version in self.versions:
            deleted.append(Deletion(self.versions[version], self.sequence + 1, grace))
        its_tags = [tag for tag, named in self.tags.items() if named == version]
        if its_tags and not force:
            raise RefusedError(
                f"version {version!r} has the tag {', '.join(map(repr, its_tags))}: move it first, or delete it too: "
                "force=True"
            )
        return replace(
            self,
            versions={name: info for name, info in self.versions.items() if name != version},
            tags={tag: named for tag, named in self.tags.items() if named != version},
            deleted=tuple(deleted),
            event={**event, "tags": its_tags, "grace": grace},
        )

    def sweeping(self, files: Collection[str], event: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot whose entry deletes files. It begins a generation, unless there are no files."""
        sweeps = (*self.sweeps, self.sequence + 1) if files else self.sweeps
        swept = frozenset(files)
        return replace(self, sweeps=sweeps, swept=swept, files=self.files - swept, event=event)

    def encode(self, token: str, base: Snapshot | None = None) -> bytes:
        """Return the bytes of a log entry, with a token that tells it from another writer's entry.

        ``base`` is the snapshot of the entry :func:`base_of`; None for the state before all entries.
        """
        base = base or Snapshot()
        changes = {name: _changes(before, after) for name, before, after in _mappings(base, self)}
        entry = _Entry(
            sequence=self.sequence,
            versions=tuple(changes["versions"][1].values()),
            tags=changes["tags"][1],
            deleted=tuple(changes["deleted"][1].values()),
            sweeps=self.sweeps[len(base.sweeps) :],
            swept=self.swept,
            superseded=changes["superseded"][1],
            files=_joined(self.files - base.files),
            removed=_Removed(
                versions=tuple(changes["versions"][0]),
                tags=tuple(changes["tags"][0]),
                deleted=tuple(changes["deleted"][0]),
                files=_joined(base.files - self.files),
            ),
            event=self.event,
        )
        document = json_values.encoded(entry)
        document["versions"] = list(map(row_of, entry.versions))
        return json_values.sealed({"format": FORMAT, **document, "token": token})

    @classmethod
    def decode(cls, raw: bytes, name: str, sequence: int, base: Snapshot | None = None) -> Snapshot:
        """Return the snapshot in the bytes of a log entry, with the URL and the number of that for errors.

        Without ``base``, see :meth:`encode`, the snapshot has only what changed since then.
        """
        base = base or Snapshot()
        with json_values.decoding(name, "entry of a log"):
            document = json_values.unsealed(raw)
            json_values.check_format(document, FORMAT, "log")
            del document["format"], document["token"]
            entry: _Entry = json_values.decoded(_Entry, "entry", document)
            if entry.sequence != sequence:
                # A writer that continued from it would look for the newest entry in the wrong place, for ever.
                raise CorruptionError(
                    f"{name}: the entry says that it is number {entry.sequence}: it was copied or edited; "
                    "restore it, or delete it and the entries after it"
                )
            sweeps = (*base.sweeps, *entry.sweeps)
            if not all(low < high for low, high in pairwise((0, *sweeps))):
                raise ValueError("the numbers of sweeps do not ascend")
            if max(sweeps, default=0) > entry.sequence:
                raise ValueError("sweeps has the number of a later entry")
            removed = entry.removed
            versions = {info.version: info for info in entry.versions}
            deleted = {_key_of(deletion): deletion for deletion in entry.deleted}
            if len(versions) < len(entry.versions) or len(deleted) < len(entry.deleted):
                raise ValueError("the entry lists a version twice")
            return cls(
                sequence=sequence,
                versions=_changed(base.versions, removed.versions, versions),
                tags=_changed(base.tags, removed.tags, entry.tags),
                deleted=tuple(_changed(_deletions_by_key(base), removed.deleted, deleted).values()),
                sweeps=sweeps,
                swept=entry.swept,
                superseded={**base.superseded, **entry.superseded},
                files=base.files - _split(removed.files) | _split(entry.files),
                event=entry.event,
            )


_HASHES = ("manifest_sha256", "digest")


def row_of(info: VersionInfo) -> list[Any]:
    """Return a version as entries list it: the values of its fields, hashes in base64. That is half of a dict."""
    values = json_values.encoded(info)
    hashes = {name: b64encode(bytes.fromhex(values[name])).decode().rstrip("=") for name in _HASHES}
    return list({**values, **hashes}.values())


def info_of_row(what: str, row: Any) -> VersionInfo:
    """Return the version that :func:`row_of` returned as a row."""
    names = [each.name for each in fields(VersionInfo)]
    values = dict(zip(names, json_values.items(what, row), strict=True))
    hashes = {name: b64decode(f"{values[name]}=", validate=True).hex() for name in _HASHES}
    info: VersionInfo = json_values.decoded(VersionInfo, what, {**values, **hashes})
    return info


@dataclass(frozen=True)
class _Removed:
    """What an earlier snapshot has and a later one has not."""

    versions: tuple[Name, ...]
    tags: tuple[Name, ...]
    deleted: tuple[str, ...]
    files: str


@dataclass(frozen=True)
class _Entry:
    """What an entry of the log holds: the changes since an earlier one, and two facts of its own."""

    sequence: Count
    versions: tuple[Annotated[VersionInfo, info_of_row], ...]
    """Those that are new, or have another manifest. New ones follow those that were there."""
    tags: Mapping[Name, Name]
    deleted: tuple[Deletion, ...]
    sweeps: tuple[Count, ...]
    swept: frozenset[Annotated[str, _file]]
    superseded: Mapping[Sha256, Superseded]
    files: str
    removed: _Removed
    event: Mapping[str, Any]


def _key_of(deletion: Deletion) -> str:
    return f"{deletion.sequence}/{deletion.info.version}"


def _deletions_by_key(snapshot: Snapshot) -> dict[str, Deletion]:
    return {_key_of(deletion): deletion for deletion in snapshot.deleted}


def _mappings(*snapshots: Snapshot) -> Iterable[tuple[Any, ...]]:
    """Yield the name of each mapping, and this mapping of each snapshot."""
    for name in ("versions", "tags", "superseded"):
        yield (name, *(getattr(snapshot, name) for snapshot in snapshots))
    yield ("deleted", *map(_deletions_by_key, snapshots))


def _changes(before: Mapping[Key, Value], after: Mapping[Key, Value]) -> tuple[list[Key], dict[Key, Value]]:
    """Return the keys that are removed, and the items that are new or changed; :func:`_changed` undoes this.

    What was removed and is there again, behind others, is in both.
    """
    places = {key: place for place, key in enumerate(before)}
    last = -1
    kept: set[Key] = set()
    for key in after:
        if places.get(key, -1) <= last:
            break
        last = places[key]
        kept.add(key)
    changed = {key: value for key, value in after.items() if key not in kept or before[key] != value}
    return [key for key in before if key not in kept], changed


def _changed(before: Mapping[Key, Value], removed: Collection[Key], changed: Mapping[Key, Value]) -> dict[Key, Value]:
    without = frozenset(removed)
    return {**{key: value for key, value in before.items() if key not in without}, **changed}


def _joined(files: Collection[str]) -> str:
    """Return the names of files as one text, in which they take a fifth less than in a list."""
    return " ".join(sorted(name.removeprefix(f"{paths.SHARDS}/") for name in files))


def _split(text: str) -> frozenset[str]:
    return frozenset(_file("files", f"{paths.SHARDS}/{name}") for name in text.split())
