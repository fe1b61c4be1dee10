"""Copy a version to another storage: its shards, as far as they are not there yet, and its digest."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace

from cachelayer.errors import AlreadyExistsError, CacheLayerError, StorageError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.provenance.environment import event, now
from cachelayer.versions.claims import CLAIM, Claims
from cachelayer.versions.copy_files import copy_files, named_there
from cachelayer.versions.damage import damage_of
from cachelayer.versions.derive import stored_numbers
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.mend import mend
from cachelayer.versions.publish import publish
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion


class VersionCopy:
    """Copies one version, whole or not at all.

    Shards are named by what they hold, so what is there already is not copied again, whether it belongs to another
    version, to an interrupted copy, or to one that runs now.

    Args:
        source: the version.
        to: the folder of the dataset that the copy belongs to.
        version: its name there.
        progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True does
            so from the start; False shows nothing.
    """

    def __init__(self, source: StoredVersion, to: Store, version: str, progress: bool | None) -> None:
        self._source = source
        self._to = to
        self._version = version
        self._log = Log(to)
        self._shows = progress

    def copy(self) -> VersionInfo:
        """Copy the version; if the destination has it already with this digest, only what is damaged there."""
        found = self._existing(self._log.head())
        title, records = f"copy {self._source.name}", self._source.manifest.rows.records
        claims = Claims(self._to.folder(paths.builds(self._version)))
        try:
            # Each copy has a claim of its own, which shows gc that it is at work.
            with Progress(title, records, self._shows) as progress, claims.hold(f"{uuid.uuid4().hex}.{CLAIM}"):
                if found is not None:
                    there = StoredVersion(self._to, found)
                    return mend(there, self._source, damage_of(there, progress), progress)[0]
                files = self._source.manifest.files
                copies = named_there(files, self._log)
                copy_files(self._source.folder, self._to, zip(files, copies, strict=True), progress)
                return self._publish(self._source.manifest.with_files(copies))
        except AlreadyExistsError:
            # Another copy was first.
            found = self._existing(self._log.head())
            if found is None:
                raise
            return found
        except CacheLayerError as error:
            self._check_source(error)
            raise

    def _existing(self, head: Snapshot) -> VersionInfo | None:
        name = f"{self._to.url}@{self._version}"
        if self._version in head.tags:
            raise AlreadyExistsError(f"{name} is a tag: choose another version")
        found = head.versions.get(self._version)
        if found is not None and self._replaced(found) is not None:
            return None
        if found is not None and found.digest != self._source.info.digest:
            raise AlreadyExistsError(
                f"{name} exists with digest sha256:{found.digest[:12]}, not sha256:{self._source.info.digest[:12]}: "
                "versions never change, choose another name"
            )
        return found

    def _replaced(self, found: VersionInfo | None) -> tuple[str, str] | None:
        """Return the digest of the version there and why records were erased, if the source is what is left of it."""
        log = Log(self._source.folder)
        gone = None if found is None else log.head().successor(found.digest)
        if found is None or gone is None or gone.digest != self._source.info.digest:
            return None
        return found.digest, gone.reason

    def _publish(self, manifest: Manifest) -> VersionInfo:
        source = self._source
        has_file = manifest.kept is not None and manifest.kept.has_file
        numbers = stored_numbers(source.selection) if has_file else None
        manifest = replace(manifest, token=uuid.uuid4().hex, numbers=numbers)
        change = event("copy", version=self._version, source=source.reference)
        replaces = self._replaced(self._log.head().versions.get(self._version))
        return publish(self._log, self._version, manifest, change, time=now(), replaces=replaces, read=[source]).info

    def _check_source(self, error: CacheLayerError) -> None:
        """Raise if the source was deleted meanwhile: that explains missing files."""
        with suppress(StorageError):
            head = Log(self._source.folder).head()
            if head.versions.get(self._source.info.version) != self._source.info:
                raise VersionNotFoundError(
                    f"{self._source.folder.url}@{self._source.info.version} was deleted while it was copied"
                ) from error
