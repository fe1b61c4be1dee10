"""Publishing what a build attempt made: the manifest, then the entry of the log that makes it a version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cachelayer.access.composition import Composition
from cachelayer.errors import AlreadyExistsError, CacheLayerError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.versions.log import Log, Snapshot, VersionInfo
from cachelayer.versions.provenance import event


class Committer:
    """Makes what an attempt wrote a version, whole or not at all.

    Args:
        store: where it is kept.
        dataset_id, version: what is published.
        base: the version whose shards it shares, which must not be deleted before that; None for none.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, version: str, base: VersionInfo | None = None) -> None:
        self._store = store
        self._dataset_id = dataset_id
        self._version = version
        self._base = base
        self._log = Log(store, dataset_id)
        self._commits = False

    def refuse_if_published(self) -> None:
        """See to it that the name is free.

        Raises:
            AlreadyExistsError: where it is published already, or a tag has its name.
        """
        head = self._log.head()
        if self._version in head.versions or self._version in head.tags:
            what = "is published" if self._version in head.versions else "is a tag"
            name = f"{self._dataset_id}@{self._version}"
            raise AlreadyExistsError(f"{name} {what} already: choose another version")

    def revoke(self, attempt: str) -> Snapshot:
        """Keep an attempt from publishing, unless the version is there; the head of the log after that."""

        def revoked(head: Snapshot) -> Snapshot:
            return replace(head, revoked=head.revoked | {attempt}, event=event("revoke", attempts=[attempt]))

        head = self._log.head()
        settled = self._version in head.versions or attempt in head.revoked
        return head if settled else self._log.commit(revoked)

    def publish(self, attempt: str, made: Composition, details: Mapping[str, Any]) -> VersionInfo:
        """Write the manifest and what lies beside it, and publish it.

        Args:
            attempt: which wrote it.
            made: what the version consists of.
            details: what the log's event says of it.

        Raises:
            AlreadyExistsError: where another published the version first.
            BuildRevokedError: where the attempt was revoked.
            VersionNotFoundError: where the base was deleted meanwhile.
        """
        manifest = made.manifest
        raw = manifest.encode()
        name = paths.manifest(attempt)
        # On a local disk this brings the names of the shards to the disk as well: they lie in the same folder.
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
        self._log.commit(lambda head: self._next(head, info, details))
        return info

    def _next(self, head: Snapshot, info: VersionInfo, details: Mapping[str, Any]) -> Snapshot:
        base = self._base
        if base is not None and head.versions.get(base.version) != base:
            raise VersionNotFoundError(
                f"{self._dataset_id}@{base.version} was deleted while {self._version!r} was made of it"
            )
        return head.with_version(info, event("publish", version=self._version, **details))

    def abandon(self, attempt: str) -> bool:
        """Delete what a failed attempt wrote, unless it failed after its publication; whether others had revoked it."""
        with suppress(CacheLayerError):
            head = self._log.head()
            revoked = attempt in head.revoked
            if self._commits:
                # A put that failed may still arrive: it cannot after an entry that revokes the attempt.
                head = self.revoke(attempt)
            if attempt not in {paths.attempt_of(info.manifest) for info in head.versions.values()}:
                self._store.delete_folder(paths.build(self._dataset_id, attempt))
            return revoked
        return False
