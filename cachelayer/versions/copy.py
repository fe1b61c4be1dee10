"""Copy a version to another storage: with its shards, their names, and its digest."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.lengths import LengthsFile
from cachelayer.arrayrecord.writer import ShardStats, file_checksum
from cachelayer.errors import (
    AlreadyExistsError,
    BuildRevokedError,
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
from cachelayer.records.selection import Selection
from cachelayer.system_threads import Pool
from cachelayer.temporary_files import scratch_folder
from cachelayer.versions.attempts import attempts_of
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardTable
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
        records: how many records it holds.
    """

    name: str
    nbytes: int
    is_right: Callable[[Path], bool]
    records: int = 0


def files_of(source: StoredVersion) -> Iterator[CopiedFile]:
    """Yield every file of a version except its manifest."""
    for shard in source.manifest.shards:
        yield CopiedFile(shard.name, shard.stats.nbytes, _is_shard(shard.stats), shard.stats.records)
        yield CopiedFile(paths.index_of(shard.name), shard.stats.index_nbytes, _is_index(shard.stats))
        file = shard.stats.lengths_file
        if file is not None:
            yield CopiedFile(paths.lengths_of(shard.name), file.nbytes, _are_lengths(file))
    whole, kept = source.manifest, source.manifest.kept
    if kept is not None and kept.file is not None:
        yield CopiedFile(
            kept.file,
            8 * kept.records,
            _is_selection(whole.shards_digest, whole.shard_records, kept.digest),
        )


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


def _is_selection(base: str, records: int, digest: str) -> Callable[[Path], bool]:
    return lambda path: Selection(np.fromfile(path, "<i8").astype(np.int64)).digest(base, records) == digest


@dataclass(frozen=True)
class _Names:
    """The names of a version's build attempts at the destination.

    Args:
        attempts: the name there of each attempt that wrote files.
        manifest: the manifest as it is stored there.
        manifest_attempt: the attempt there that holds the manifest.
    """

    attempts: dict[str, str]
    manifest: bytes
    manifest_attempt: str

    @property
    def all(self) -> set[str]:
        return {self.manifest_attempt, *self.attempts.values()}

    def of(self, name: str) -> str:
        """Return the name there of a file; both are relative to the dataset."""
        attempt = paths.attempt_of(name)
        return name.replace(f"/{attempt}/", f"/{self.attempts[attempt]}/", 1)


class VersionCopy:
    """Copies one version, whole or not at all.

    Files keep their names, which are unique: what is there already is not copied again, whether it belongs to
    another version, to an interrupted copy, or to one that runs now. If a build attempt was
    revoked there, its files get another name, derived from the first.

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
        while True:
            head = self._log.head()
            found = self._existing(head)
            if found is not None:
                return found
            names: _Names | None = None
            try:
                names = self._names(self._gone(head))
                return self._copy(names)
            except CacheLayerError as error:
                self._check_source(error)
                # If a version there that had these files was deleted, their names are revoked: try again with others.
                if names is None or not names.all & self._gone(self._log.head()):
                    raise

    def _existing(self, head: Snapshot) -> VersionInfo | None:
        name = f"{self._to.url}/{self._dataset_id}@{self._version}"
        if self._version in head.tags:
            raise AlreadyExistsError(f"{name} is a tag: choose another version")
        found = head.versions.get(self._version)
        if found is not None and found.digest != self._source.info.digest:
            raise AlreadyExistsError(
                f"{name} exists with digest sha256:{found.digest[:12]}, not sha256:{self._source.info.digest[:12]}: "
                "versions never change, choose another name"
            )
        return found

    def _gone(self, head: Snapshot) -> frozenset[str]:
        """Return the names that no attempt can use at the destination: they are revoked, and their files deleted."""
        source = self._source
        is_here = (source.store.url, source.dataset_id) == (self._to.url, self._dataset_id)
        if is_here and head.versions.get(source.info.version) == source.info:
            # An attempt that another build adopted is revoked too, but its files are in use.
            return head.revoked - {paths.attempt_of(file.name) for file in files_of(source)}
        return head.revoked

    def _names(self, revoked: frozenset[str]) -> _Names:
        manifest, raw = self._source.manifest, self._manifest_bytes()
        attempts = {paths.attempt_of(file.name) for file in files_of(self._source)}
        names = {attempt: _free_name(attempt, "", revoked) for attempt in attempts}
        own, salt = paths.attempt_of(self._source.info.manifest), ""
        if any(attempt != name for attempt, name in names.items()):
            raw = _renamed(manifest, names).encode()
            # Each manifest has a name of its own: a late copy must not overwrite what another has published.
            salt = hashlib.sha256(raw).hexdigest()
        return _Names(names, raw, _free_name(own, salt, revoked))

    def _manifest_bytes(self) -> bytes:
        name = f"{self._source.dataset_id}/{self._source.info.manifest}"
        raw = self._source.store.read(name)
        if raw is None or hashlib.sha256(raw).hexdigest() != self._source.info.manifest_sha256:
            raise CorruptionError(f"{self._source.store.url}/{name}: not the manifest that was published")
        return raw

    def _copy(self, names: _Names) -> VersionInfo:
        there = self._files_in(names.all)
        targets = (names.of(file.name) for file in files_of(self._source))
        missing = {paths.attempt_of(target) for target in targets if target not in there}
        running = attempts_of(self._to, self._dataset_id)
        title, records = f"copy {self._source.name}", self._source.manifest.shard_records
        with Progress(title, records, self._shows) as progress, ExitStack() as shown:
            for attempt in sorted({*missing, names.manifest_attempt}):
                shown.enter_context(running.running(attempt, lambda: str(progress)))
                if isinstance(self._to, LocalStore):
                    # The lease is ours: nobody else writes there now.
                    self._to.drop_unfinished(paths.build(self._dataset_id, attempt))
            # Another copy may have added files while this one waited for its turn.
            self._copy_files(names, there | self._files_in(missing), progress)
            copy_plans(self._source, self._to, self._dataset_id, names.manifest_attempt)
            return self._publish(names)

    def _files_in(self, attempts: set[str]) -> set[str]:
        """Return the files of these attempts at the destination, relative to the dataset."""
        return {
            f"{paths.BUILDS}/{attempt}/{name}"
            for attempt in attempts
            for name in self._to.names(paths.build(self._dataset_id, attempt))
        }

    def _copy_files(self, names: _Names, there: set[str], progress: Progress) -> None:
        threads = Pool(_FILES_AT_ONCE, "cachelayer-copy")
        try:
            work = {
                threads.submit(self._copy_file, file, names.of(file.name), names.of(file.name) in there): file
                for file in files_of(self._source)
            }
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

    def _copy_file(self, file: CopiedFile, new_name: str, is_there: bool) -> None:
        name, target = f"{self._source.dataset_id}/{file.name}", f"{self._dataset_id}/{new_name}"
        # Objects are written whole or not at all, so comparing the size is enough.
        if is_there and self._to.size(target) == file.nbytes:
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

    def _publish(self, names: _Names) -> VersionInfo:
        manifest = paths.manifest(names.manifest_attempt)
        self._to.put(f"{self._dataset_id}/{manifest}", names.manifest)
        info = replace(
            self._source.info,
            version=self._version,
            manifest=manifest,
            manifest_sha256=hashlib.sha256(names.manifest).hexdigest(),
            time=now(),
        )

        with suppress(AlreadyExistsError):
            for head in self._log.heads():
                lost = sorted(names.all & self._gone(head))
                if lost:
                    raise BuildRevokedError(f"{', '.join(lost)} of {self._version!r} was revoked while it was copied")
                change = event("copy", version=self._version, source=self._source.reference)
                if self._log.append(head.with_version(info, change)):
                    return info
        # Another copy was first.
        found = self._existing(self._log.head())
        return self._publish(names) if found is None else found

    def _check_source(self, error: CacheLayerError) -> None:
        """Raise if the source was deleted meanwhile: that explains missing files."""
        with suppress(StorageError):
            head = Log(self._source.store, self._source.dataset_id).head()
            if head.versions.get(self._source.info.version) != self._source.info:
                raise VersionNotFoundError(
                    f"{self._source.name} in {self._source.store.url} was deleted while it was copied"
                ) from error


def _free_name(attempt: str, salt: str, revoked: frozenset[str]) -> str:
    """Return the first name that is not revoked: the attempt's own if there is no salt, then derived ones."""
    base = attempt.partition(".")[0]
    for number in count():
        name = attempt
        if salt or number:
            name = f"{base}.{hashlib.sha256(f'{attempt}/{salt}/{number}'.encode()).hexdigest()[:12]}"
        if name not in revoked:
            return name
    raise AssertionError("numbers never end")


def _renamed(manifest: Manifest, names: dict[str, str]) -> Manifest:
    """Return the manifest with the attempts renamed."""
    shards = ShardTable.of(replace(shard, attempt=names[shard.attempt]) for shard in manifest.shards)
    kept = manifest.kept
    if kept is not None and kept.file is not None:
        attempt = paths.attempt_of(kept.file)
        kept = replace(kept, file=kept.file.replace(f"/{attempt}/", f"/{names[attempt]}/", 1))
    return replace(manifest, shards=shards, kept=kept)
