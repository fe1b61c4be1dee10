"""Copy a version to another storage: the shards that are not there yet, and the manifest. The digest stays the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachelayer.errors import AlreadyExistsError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.provenance.environment import event, now
from cachelayer.support.progress import Progress
from cachelayer.versions.copy_files import copy_files, named_there
from cachelayer.versions.derive import with_new_token
from cachelayer.versions.lease import Leases
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.publish import NewVersion, Reliance, publish
from cachelayer.versions.repair import mend
from cachelayer.versions.snapshot import Deletion, Snapshot, Superseded, VersionInfo
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import damaged_objects


class VersionCopy:
    """Copies one version, whole or not at all.

    Shards are named by their content, so a shard that is there already is not copied again, whether it belongs to
    another version, to an interrupted copy, or to a copy that runs now.

    ``to`` is the folder of the dataset that gets the copy.
    """

    def __init__(self, source: StoredVersion, to: Store, version: str, progress: bool | None) -> None:
        self._source = source
        self._to = to
        self._version = version
        self._log = Log(to)
        self._shows = progress

    def copy(self) -> VersionInfo:
        """Copy the version. If the destination has it already, copy only what is damaged there."""
        existing = self._existing(self._log.head())
        records = self._source.manifest.rows.records
        leases = Leases(self._to.folder(paths.builds(self._version)))
        try:
            # Each copy has a lease of its own, which shows gc that it is at work.
            with Progress(f"copy {self._source.name}", records, self._shows) as progress, leases.hold():
                if existing is not None:
                    there = StoredVersion(self._to, existing)
                    return mend(there, self._source, damaged_objects(there, progress, trusts_sent=True), progress)[0]
                files = self._source.manifest.files
                copies = named_there(files, self._log)
                with self._source.reporting_deletion():
                    copy_files(self._source, self._to, zip(files, copies, strict=True), progress)
                return self._publish(self._source.manifest.with_files(copies))
        except AlreadyExistsError:
            # Another copy was first.
            existing = self._existing(self._log.head())
            if existing is None:
                raise
            return existing

    def _existing(self, head: Snapshot) -> VersionInfo | None:
        """Return the version of this name; None if there is none, or it is to be replaced. Raise if it is another."""
        name = f"{self._to.url}@{self._version}"
        if self._version in head.tags:
            raise AlreadyExistsError(f"{name} is a tag: choose another version")
        existing = head.versions.get(self._version)
        if existing is None or self._erasure(existing) is not None:
            return None
        if existing.digest != self._source.info.digest:
            raise AlreadyExistsError(
                f"{name} exists with digest sha256:{existing.digest[:12]}, not sha256:{self._source.info.digest[:12]}: "
                "versions never change, choose another name"
            )
        return existing

    def _erasure(self, existing: VersionInfo) -> Superseded | None:
        """Return the erasure that made the source from what is there; None if none did."""
        successor = Log(self._source.folder).head().successor(existing.digest)
        return successor if successor is not None and successor.digest == self._source.info.digest else None

    def _publish(self, manifest: Manifest) -> VersionInfo:
        source = self._source
        change = event("copy", version=self._version, source=source.reference)
        new = NewVersion(self._version, with_new_token(manifest, source), change, now())
        return publish(self._log, new, [Reliance(source)], self._place).info

    def _place(self, head: Snapshot, info: VersionInfo, files: Sequence[str], change: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot with the copy, in the place of the version before an erasure if that is there."""
        before = head.versions.get(info.version)
        erasure = None if before is None else self._erasure(before)
        if before is None or erasure is None:
            return head.with_version(info, files, change)
        replaced = Deletion(before, head.sequence + 1, grace=0.0)
        return head.superseding([info], files, erasure.reason, change, [*head.deleted, replaced])
