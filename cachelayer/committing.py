"""Publishing what a build attempt made: the manifest, then the entry of the log that makes it a version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from cachelayer.access.composition import Composition
from cachelayer.access.published import Published
from cachelayer.errors import AlreadyExistsError, BuildRevokedError, CacheLayerError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.versions.log import Log, Snapshot, VersionInfo
from cachelayer.versions.provenance import event
from cachelayer.versions.unfinished import Unfinished


def named_attempts(store: ObjectStore, dataset_id: str, head: Snapshot) -> set[str]:
    """Every attempt that wrote a manifest, a shard or another file of a version.

    Raises:
        CorruptionError, FormatError: where that is not known of some version.
    """
    named: set[str] = set()
    for info in head.versions.values():
        named |= attempts_named_by(store, dataset_id, info)
    return named


def attempts_named_by(store: ObjectStore, dataset_id: str, info: VersionInfo) -> set[str]:
    """The same of one version."""
    return {paths.attempt_of(info.manifest), *Published(store, dataset_id, info).manifest.attempts}


class Committer:
    """Makes what an attempt wrote a version, whole or not at all.

    Args:
        log: the log of the dataset.
        version: what is published.
        base: the version whose shards it shares, which must not be deleted before that; None for none.
    """

    def __init__(self, log: Log, version: str, base: VersionInfo | None = None) -> None:
        self._log = log
        self._store = log.store
        self._dataset_id = log.dataset_id
        self._version = version
        self._base = base
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

    def is_revoked(self, attempt: str) -> bool:
        """Whether an attempt cannot publish any more."""
        return attempt in self._log.head().revoked

    def revoke(self, attempt: str) -> Snapshot:
        """Keep an attempt from publishing, unless the version is there; the head of the log after that."""
        change = event("revoke", attempts=[attempt])
        return self._unless_settled(attempt, lambda head: head.without_attempts([attempt], change))

    def adopt(self, attempt: str, by: str) -> Snapshot:
        """The same, where what it has finished goes on to be another's."""
        change = event("adopt", attempts=[attempt], by=by)
        return self._unless_settled(attempt, lambda head: head.adopting([attempt], by, change))

    def _unless_settled(self, attempt: str, change: Callable[[Snapshot], Snapshot]) -> Snapshot:
        def unless_settled(head: Snapshot) -> Snapshot:
            return head if self._version in head.versions or attempt in head.revoked else change(head)

        return self._log.commit(unless_settled)

    def publish(
        self, attempt: str, made: Composition, details: Mapping[str, Any], adopted: Collection[str] = ()
    ) -> VersionInfo:
        """Write the manifest and what lies beside it, and publish it.

        Args:
            attempt: which wrote it.
            made: what the version consists of.
            details: what the log's event says of it.
            adopted: the interrupted attempts whose shards it goes on from.

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
        self._log.commit(lambda head: self._next(head, info, details, adopted))
        return info

    def _next(
        self, head: Snapshot, info: VersionInfo, details: Mapping[str, Any], adopted: Collection[str]
    ) -> Snapshot:
        base = self._base
        if base is not None and head.versions.get(base.version) != base:
            raise VersionNotFoundError(
                f"{self._dataset_id}@{base.version} was deleted while {self._version!r} was made of it"
            )
        attempt = paths.attempt_of(info.manifest)
        lost = sorted(name for name in adopted if head.adopted.get(name) != attempt)
        if lost:
            raise BuildRevokedError(
                f"{', '.join(lost)}, with which attempt {attempt} went on, was collected meanwhile: build again"
            )
        return head.with_version(info, event("publish", version=self._version, **details))

    def abandon(self, attempt: str, *, keep: bool) -> bool:
        """Delete what a failed attempt wrote, unless it failed after its publication; whether others had revoked it.

        Args:
            attempt: the attempt.
            keep: leave what another attempt can go on with.
        """
        with suppress(CacheLayerError):
            head = self._log.head()
            revoked = attempt in head.revoked
            if self._commits:
                # A put that failed may still arrive: it cannot after an entry that revokes the attempt.
                head = self.adopt(attempt, by=attempt) if keep else self.revoke(attempt)
            needed = keep and self._version not in head.versions and head.can_be_adopted(attempt)
            if not needed and attempt not in self._named(head, revoked):
                if keep:
                    Unfinished(self._store, self._dataset_id, self._version).forget(attempt)
                self._store.delete_folder(paths.build(self._dataset_id, attempt))
            return revoked
        return False

    def _named(self, head: Snapshot, revoked: bool) -> set[str]:
        """The attempts that versions name, as far as the attempt in question can be among them."""
        if revoked:
            # Who revoked it may go on with what it had finished, or have published that.
            return named_attempts(self._store, self._dataset_id, head) | set(head.adopted)
        return {paths.attempt_of(info.manifest) for info in head.versions.values()}
