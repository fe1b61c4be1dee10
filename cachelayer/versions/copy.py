"""Copy a version to another storage: its shards, as far as they are not there yet, and its digest."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import replace

from cachelayer.errors import (
    AlreadyExistsError,
    CacheLayerError,
    CorruptionError,
    StorageError,
    VersionNotFoundError,
)
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.provenance.environment import event, now
from cachelayer.system_threads import Pool
from cachelayer.versions.claims import CLAIM, Claims
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.derive import stored_numbers
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.publish import is_stored, lost_files, publish
from cachelayer.versions.shard_table import FileChecksum, ShardFile
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion

_FILES_AT_ONCE = 4


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
                    return self._mend(found, progress)
                there, present = self._generations_there(), self._log.head().generation
                generations = [there.get(file.content, present) for file in self._source.manifest.files]
                manifest = self._source.manifest.of_generations(generations)
                self._copy_files(manifest.files, progress)
                return self._publish(manifest)
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

    def _mend(self, found: VersionInfo, progress: Progress) -> VersionInfo:
        """Copy again what is damaged of a version that is there."""
        self._copy_files(StoredVersion(self._to, found).manifest.files, progress)
        kept = self._source.manifest.kept
        if kept is not None and kept.has_file:
            name, numbers = paths.kept(found.file), stored_numbers(self._source.kept)
            if self._to.read(name) != numbers:
                self._to.put(name, numbers)
        return found

    def _copy_files(self, files: Iterable[ShardFile | ColumnFile], progress: Progress) -> None:
        """Copy what is not there, or damaged there, of the files that the destination shall have."""
        sources = {file.content: file for file in self._source.manifest.files}
        threads = Pool(_FILES_AT_ONCE, "cachelayer-copy")
        is_interrupted = False
        try:
            work: dict[Future[bool], ShardFile | ColumnFile] = {}
            for file in {file.name: file for file in files}.values():
                work[threads.submit(self._copy_files_of, sources.get(file.content), file)] = file
            for done in as_completed(work):
                file = work[done]
                records = file.stats.records if isinstance(file, ShardFile) else 0
                if done.result():
                    progress.update(records, sum(facts.nbytes for facts in file.files.values()))
                else:
                    progress.skip(records)
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            # On Ctrl-C, do not wait for a network that may not answer.
            threads.shutdown(wait=not is_interrupted, cancel_futures=True)

    def _generations_there(self) -> dict[str, int]:
        """Return the last generation of each shard that is there and good, by what it holds."""
        names = self._to.names(paths.SHARDS)
        files = {f"{paths.SHARDS}/{name.removesuffix('.array_record').removesuffix('.npy')}" for name in names}
        found = set(filter(paths.is_file, files))
        good = found - lost_files(found, self._log, self._log.head())
        return {paths.content_of(file): paths.generation_of(file) for file in sorted(good, key=paths.generation_of)}

    def _copy_files_of(self, source: ShardFile | ColumnFile | None, copy: ShardFile | ColumnFile) -> bool:
        """Copy the files of a shard, in their order: the shard comes last. Or copy a column file.

        Return whether that was needed: they may be there, with all of their bytes.
        """
        if is_stored(copy, self._log):
            return False
        if source is None:
            raise CorruptionError(
                f"{self._to.url}/{copy.name}: it is damaged, and {self._source.name} has its "
                "records in other files: delete the version there, and copy again"
            )
        for (name, facts), new_name in zip(source.files.items(), copy.files, strict=True):
            self._copy_file(name, facts, new_name)
        return True

    def _copy_file(self, name: str, facts: FileChecksum, target: str) -> None:
        source = self._source.folder
        local = source.local_path(name)

        def check(checksum: int | None) -> None:
            if checksum != facts.crc32c:
                raise CorruptionError(
                    f"{source.url}/{name}: what was read does not match its checksum: restore it, or build again"
                )

        if local is None:
            self._to.receive(target, lambda path: check(source.download(name, path, facts.nbytes)))
        else:
            check(source.crc32c(name))
            self._to.upload(local, target)

    def _publish(self, manifest: Manifest) -> VersionInfo:
        source = self._source
        has_file = source.manifest.kept is not None and source.manifest.kept.has_file
        numbers = stored_numbers(source.kept) if has_file else None
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
