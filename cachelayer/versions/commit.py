"""Publish what a build attempt made: write the manifest, then the log entry that makes it a version."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from cachelayer.errors import AlreadyExistsError, BuildRevokedError, CacheLayerError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.provenance.environment import event
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Composition
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.unfinished import Unfinished


def named_attempts(store: ObjectStore, dataset_id: str, head: Snapshot) -> set[str]:
    """Return every attempt that wrote a file which some version still needs."""
    named: set[str] = set()
    for info in head.with_files:
        named |= attempts_named_by(store, dataset_id, info)
    return named


def attempts_named_by(store: ObjectStore, dataset_id: str, info: VersionInfo) -> set[str]:
    """Return every attempt that wrote a file of a version."""
    return {paths.attempt_of(info.manifest), *StoredVersion(store, dataset_id, info).manifest.attempts}


class Committer:
    """Turns what an attempt wrote into a version, whole or not at all.

    Args:
        log: the log of the dataset.
        version: the name of the version.
        base: the version whose shards it shares, if any; publishing fails if it was deleted.
    """

    def __init__(self, log: Log, version: str, base: VersionInfo | None = None) -> None:
        self._log = log
        self._store = log.store
        self._dataset_id = log.dataset_id
        self._version = version
        self._base = base
        self._commits = False

    def is_published(self) -> bool:
        """Return whether there is a version, or a tag, of this name."""
        head = self._log.head()
        return head.tags.get(self._version, self._version) in head.versions

    def refuse_if_published(self) -> None:
        """Raise if the name is taken."""
        head = self._log.head()
        if self._version in head.versions or self._version in head.tags:
            what = "is published" if self._version in head.versions else "is a tag"
            name = f"{self._dataset_id}@{self._version}"
            raise AlreadyExistsError(f"{name} {what} already: choose another version")

    def is_revoked(self, attempt: str) -> bool:
        """Return whether an attempt may no longer publish."""
        return attempt in self._log.head().revoked

    def revoke(self, attempt: str) -> None:
        """Keep an attempt from publishing, unless the version is published."""
        for head in self._log.heads():
            if self._is_settled(head, attempt) or self._log.append(_revoking(head, attempt)):
                break

    def adopt(self, attempt: str, by: str) -> None:
        """Keep an attempt from publishing, unless the version is published, and give what it finished to another."""
        for head in self._log.heads():
            if self._is_settled(head, attempt) or self._log.append(_adopting(head, attempt, by)):
                break

    def _is_settled(self, head: Snapshot, attempt: str) -> bool:
        """Return whether an attempt is revoked, or the version is published."""
        return self._version in head.versions or attempt in head.revoked

    def publish(
        self, attempt: str, made: Composition, details: Mapping[str, Any], adopted: Collection[str] = ()
    ) -> StoredVersion:
        """Write the manifest and the objects beside it, publish them, and return the version with its manifest.

        Args:
            attempt: the attempt that wrote the shards.
            made: the manifest, and the objects beside it.
            details: what to say in the log's event.
            adopted: the interrupted attempts whose shards it uses.
        """
        raw, manifest = made.manifest.encode(), made.manifest.as_stored()
        name = paths.manifest(attempt)
        # On a local disk this also makes the names of the shards durable: they are in the same folder.
        for each, data in [*made.objects.items(), (name, raw)]:
            self._store.put(f"{self._dataset_id}/{each}", data)
        info = VersionInfo(
            version=self._version,
            manifest=name,
            manifest_sha256=hashlib.sha256(raw).hexdigest(),
            digest=manifest.digest,
            records=manifest.records,
            nbytes=manifest.nbytes,
            time=manifest.provenance["time"],
        )
        self._commits = True
        for head in self._log.heads():
            if self._log.append(self._next(head, info, details, adopted)):
                break
        return StoredVersion.with_manifest(self._store, self._dataset_id, info, manifest)

    def _next(
        self, head: Snapshot, info: VersionInfo, details: Mapping[str, Any], adopted: Collection[str]
    ) -> Snapshot:
        base = self._base
        if base is not None and head.versions.get(base.version) != base:
            raise VersionNotFoundError(
                f"{self._dataset_id}@{base.version} was deleted while {self._version!r} was made from it"
            )
        attempt = paths.attempt_of(info.manifest)
        lost = sorted(name for name in adopted if head.adopted.get(name) != attempt)
        if lost:
            raise BuildRevokedError(
                f"{', '.join(lost)}, which attempt {attempt} resumed, was collected meanwhile: build again"
            )
        return head.with_version(info, event("publish", version=self._version, **details))

    def abandon(self, attempt: str, *, keep: bool, is_known: bool) -> bool:
        """Give up a failed attempt: delete what nothing needs, and return whether others had revoked it.

        It may have failed after publishing, or its last put may still arrive. So files are deleted only after a log
        entry keeps the attempt from publishing, and only if no version names one of them by then.

        Args:
            attempt: the attempt.
            keep: leave what another attempt can resume.
            is_known: True if others may know of its files, from its notes.
        """
        with suppress(CacheLayerError):
            head = self._log.head()
            revoked, keep = attempt in head.revoked, keep and self._version not in head.versions
            if self._commits or (is_known and not keep):
                head = self._give_up(attempt, keep=keep)
            elif not revoked:
                # Only this process knows of it, or its files stay anyway.
                if not keep:
                    self._store.delete_folder(paths.build(self._dataset_id, attempt))
                return False
            if self._is_free(head, attempt):
                Unfinished(self._store, self._dataset_id, self._version).forget(attempt)
                self._store.delete_folder(paths.build(self._dataset_id, attempt))
            return revoked
        return False

    def _give_up(self, attempt: str, *, keep: bool) -> Snapshot:
        """Keep an attempt from publishing unless it has; return the head of the log."""
        for head in self._log.heads():
            if attempt in head.revoked or head.has_published(attempt):
                break
            keeps = keep and self._version not in head.versions
            if self._log.append(_adopting(head, attempt, attempt) if keeps else _revoking(head, attempt)):
                break
        return self._log.head()

    def _is_free(self, head: Snapshot, attempt: str) -> bool:
        """Return whether nothing needs the files of an attempt, now or later."""
        if attempt not in head.revoked or attempt in head.adopted:
            return False
        return attempt not in named_attempts(self._store, self._dataset_id, head)


def _adopting(head: Snapshot, attempt: str, by: str) -> Snapshot:
    return head.adopting([attempt], by, event("adopt", attempts=[attempt], by=by))


def _revoking(head: Snapshot, attempt: str) -> Snapshot:
    return head.without_attempts([attempt], event("revoke", attempts=[attempt]))
