"""Copy a version to another storage: its shards, as far as they are not there yet, and its digest."""

from __future__ import annotations

import stat
import uuid
from collections.abc import Callable
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.lengths import LengthsFile
from cachelayer.arrayrecord.writer import ShardStats, file_checksum
from cachelayer.errors import (
    AlreadyExistsError,
    CacheLayerError,
    CorruptionError,
    StorageError,
    VersionNotFoundError,
)
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.progress import Progress
from cachelayer.provenance.environment import event, now
from cachelayer.system_threads import Pool
from cachelayer.temporary_files import scratch_folder
from cachelayer.versions.claims import CLAIM, claims_of
from cachelayer.versions.log import Log
from cachelayer.versions.publish import lost_files, publish
from cachelayer.versions.shard_table import ShardFile, ShardTable
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion, copy_plans

_FILES_AT_ONCE = 4


@dataclass(frozen=True)
class CopiedFile:
    """A file of a version.

    Args:
        name: relative to the dataset.
        nbytes: its size.
        is_right: returns True if the file at a path is this one, byte for byte.
    """

    name: str
    nbytes: int
    is_right: Callable[[Path], bool]


def files_of_shard(shard: ShardFile) -> list[CopiedFile]:
    """Return the files of a shard, in the order in which they are put."""
    stats, lengths_file = shard.stats, shard.stats.lengths_file
    checks = [] if lengths_file is None else [_are_lengths(lengths_file)]
    checks += [_is_index(stats), _is_shard(stats)]
    return [CopiedFile(*file, check) for file, check in zip(shard.files.items(), checks, strict=True)]


def _is_shard(stats: ShardStats) -> Callable[[Path], bool]:
    return lambda path: file_checksum(path) == stats.crc32c


def _is_index(stats: ShardStats) -> Callable[[Path], bool]:
    def is_right(path: Path) -> bool:
        with path.open("rb") as file:
            header = file.read(index.HEADER_NBYTES)
        right = index.header_checksum(header) == stats.index_crc32c
        return right and file_checksum(path, index.HEADER_NBYTES) == index.rows_checksum(header)

    return is_right


def _are_lengths(file: LengthsFile) -> Callable[[Path], bool]:
    def are_right(path: Path) -> bool:
        try:
            file.check(np.fromfile(path, np.uint8), str(path))
        except CorruptionError:
            return False
        return True

    return are_right


class VersionCopy:
    """Copies one version, whole or not at all.

    Shards are named by what they hold, so what is there already is not copied again, whether it belongs to another
    version, to an interrupted copy, or to one that runs now.

    Args:
        source: the version.
        to: the destination.
        dataset_id, version: its names there.
        progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True does
            so from the start; False shows nothing.
    """

    def __init__(
        self, source: StoredVersion, to: ObjectStore, dataset_id: str, version: str, progress: bool | None
    ) -> None:
        self._source = source
        self._to = to
        self._dataset_id = dataset_id
        self._version = version
        self._log = Log(to, dataset_id)
        self._shows = progress

    def copy(self) -> VersionInfo:
        """Copy the version, unless the destination has it already with this digest."""
        found = self._existing(self._log.head())
        if found is not None:
            return found
        title, records = f"copy {self._source.name}", self._source.manifest.shard_records
        claims = claims_of(self._to, paths.builds(self._dataset_id, self._version))
        try:
            # Each copy has a claim of its own, which shows gc that it is at work.
            with (
                Progress(title, records, self._shows) as progress,
                claims.hold(f"{uuid.uuid4().hex}.{CLAIM}", lambda: str(progress)),
            ):
                shards = self._copy_files(progress)
                copy_plans(self._source, self._to, self._dataset_id)
                return self._publish(shards)
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
        name = f"{self._to.url}/{self._dataset_id}@{self._version}"
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
        log = Log(self._source.store, self._source.dataset_id)
        gone = None if found is None else log.head().successor(found.digest)
        if found is None or gone is None or gone.digest != self._source.info.digest:
            return None
        return found.digest, gone.reason

    def _copy_files(self, progress: Progress) -> ShardTable:
        """Copy what is not there, and return the shards under the names that they have there."""
        shards = self._source.manifest.shards
        generations = self._generations_there(shards)
        threads = Pool(_FILES_AT_ONCE, "cachelayer-copy")
        try:
            work: dict[Future[Any], ShardStats] = {}
            for shard, generation in zip(shards, generations, strict=True):
                copy = replace(shard, generation=self._head.generation if generation is None else generation)
                if generation is None:
                    work[threads.submit(self._copy_shard, shard, copy)] = shard.stats
                else:
                    progress.skip(shard.stats.records)
            for done in as_completed(work):
                done.result()
                progress.update(work[done].records, work[done].nbytes)
        except KeyboardInterrupt:
            # On Ctrl-C, do not wait for a network that may not answer.
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
        threads.shutdown()
        present = self._head.generation
        return shards.of_generations([present if each is None else each for each in generations])

    def _generations_there(self, shards: ShardTable) -> list[int | None]:
        """Return under which generation each shard is there; None for one that is not."""
        names = self._to.names(f"{self._dataset_id}/{paths.SHARDS}")
        self._head = self._log.head()
        files = (f"{paths.SHARDS}/{name.removesuffix('.array_record')}" for name in names)
        found = set(filter(paths.is_file, files))
        there: dict[str, int] = {}
        for file in found - lost_files(found, self._log, self._head):
            content, _, generation = file.rpartition("-")
            there[content] = max(int(generation), there.get(content, -1))
        return [there.get(shard.file.rpartition("-")[0]) for shard in shards]

    def _copy_shard(self, shard: ShardFile, copy: ShardFile) -> None:
        """Copy the files of a shard, in their order: the shard comes last."""
        for file, new_name in zip(files_of_shard(shard), copy.files, strict=True):
            self._copy_file(file, new_name)

    def _copy_file(self, file: CopiedFile, new_name: str) -> None:
        name, target = f"{self._source.dataset_id}/{file.name}", f"{self._dataset_id}/{new_name}"
        # Objects are written whole or not at all, so comparing the size is enough.
        if self._to.size(target) == file.nbytes:
            return
        store = self._source.store
        if isinstance(self._to, LocalStore):
            self._to.receive(target, lambda path: self._fetch(file, path))
        elif isinstance(store, LocalStore):
            self._check(file, store.path(name))
            self._to.upload(store.path(name), target)
        else:
            with scratch_folder() as folder:
                self._fetch(file, folder / "file")
                self._to.upload(folder / "file", target)

    def _fetch(self, file: CopiedFile, path: Path) -> None:
        self._source.store.download(f"{self._source.dataset_id}/{file.name}", path, file.nbytes)
        self._check(file, path)

    def _check(self, file: CopiedFile, path: Path) -> None:
        name = f"{self._source.store.url}/{self._source.dataset_id}/{file.name}"
        try:
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size == file.nbytes and file.is_right(path):
                return
        except FileNotFoundError:
            raise CorruptionError(f"{name}: the file is missing") from None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        raise CorruptionError(f"{name}: what was read does not match its checksum: restore it, or build again")

    def _publish(self, shards: ShardTable) -> VersionInfo:
        source = self._source
        kept = source.kept if source.manifest.kept is not None and source.manifest.kept.has_file else None
        numbers = None if kept is None else b"".join(piece.astype("<i8").tobytes() for piece in kept.pieces())
        manifest = replace(source.manifest, shards=shards, token=uuid.uuid4().hex)
        change = event("copy", version=self._version, source=source.reference)
        replaces = self._replaced(self._log.head().versions.get(self._version))
        return publish(self._log, self._version, manifest, numbers, change, time=now(), replaces=replaces).info

    def _check_source(self, error: CacheLayerError) -> None:
        """Raise if the source was deleted meanwhile: that explains missing files."""
        with suppress(StorageError):
            head = Log(self._source.store, self._source.dataset_id).head()
            if head.versions.get(self._source.info.version) != self._source.info:
                raise VersionNotFoundError(
                    f"{self._source.name} in {self._source.store.url} was deleted while it was copied"
                ) from error
