"""The destination of the shards of a build: a working folder, while its disk has room, and then the store."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.errors import BuildRevokedError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, CopyGroup
from cachelayer.objects.store import Store
from cachelayer.records.codec import Codec
from cachelayer.support.logs import logger_of
from cachelayer.support.temporary_files import working_folder
from cachelayer.support.user_warnings import warn
from cachelayer.versions.blobs import put_files
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import INDICES_NBYTES

_log = logger_of("builds")
_FREE_SHARE = 100
"""One of so many bytes of a disk stays free."""
_UNSYNCED_NBYTES = 16 << 20
"""Bytes that may have been written and are not on the disk yet: the writers of shards have threads."""


@dataclass(frozen=True)
class ShardTarget:
    """The destination of the shards of a build: they are written in a working folder, then put into the store."""

    dataset: Store
    """The folder of the dataset."""
    parts: Store
    """The folder of the shards that are built: the dataset, unless their records are put again into other files."""
    generation: int
    """The generation of the log when the build began, which the names of the shards end with."""
    folder: Path
    """The working folder; it was empty."""
    room: DiskRoom
    """The room on the disk of the working folder: whoever writes there takes it first."""
    copies: CopyGroup | None
    """Keeps local copies of the shards; None for none."""
    known: dict[str, bytes] = field(default_factory=dict)
    """The indices of the shards that were put into a bucket, by the names of the shards. They are empty if all are too
    large to be put beside a manifest."""

    def with_own_parts(self) -> ShardTarget:
        """Return the same destination, with the parts in the working folder."""
        return replace(self, parts=LocalStore(self.folder / "parts"))

    def for_parts(self) -> ShardTarget:
        """Return the destination of the shards that are built."""
        return replace(self, dataset=self.parts)

    @property
    def is_local(self) -> bool:
        return self.dataset.local_path(paths.SHARDS) is not None

    def begin_shard(self, compression: Compression, codec: Codec) -> ShardWriter:
        """Return the writer of a new shard, of its index and of its lengths."""
        path = self.folder / f"{uuid.uuid4().hex}.array_record"
        index_path = Path(paths.index_of(str(path)))
        lengths_path = Path(paths.lengths_of(str(path)))
        return ShardWriter(path, index_path, compression, lengths_path, codec)

    def put(self, writer: ShardWriter) -> ShardFile:
        """Finish a shard and move its files into the store. Several threads may call this at the same time."""
        shard = ShardFile(writer.finish(), self.generation)
        files = {writer.path.with_suffix(Path(blob.name).suffix): blob for blob in shard.blobs}
        index = b"" if self.is_local else writer.index_path.read_bytes()
        put_files(self.dataset, files)
        if not self.is_local:
            has_room = len(index) + sum(map(len, [*self.known.values()])) <= INDICES_NBYTES
            self.known[shard.name] = index if has_room else b""
        stats = shard.stats
        _log.debug(
            "%(object)s: put, %(records)d records in %(nbytes)d bytes",
            {"object": f"{self.dataset.url}/{shard.name}", "records": stats.records, "nbytes": stats.nbytes},
        )
        if self.copies is not None:
            self.copies.move_in({file: Path(blob.name).name for file, blob in files.items()})
        for file in files:
            file.unlink(missing_ok=True)
        return shard


@contextmanager
def shard_target(
    dataset: Store, copies: CacheFolder | None, generation: int, parts: Store | None = None
) -> Iterator[ShardTarget]:
    """Yield where the shards of a build go; remove the working folder at the end."""
    group = None if copies is None else _group(copies, dataset)
    parent = dataset.local_path(paths.WORKING) if copies is None or group is None else copies.path
    with working_folder(parent) as folder:
        try:
            yield ShardTarget(dataset, parts or dataset, generation, folder, DiskRoom(folder), group)
        except OSError as error:
            if folder.exists():
                raise
            raise BuildRevokedError(
                f"{dataset.name}: the folder in which it was built, {folder}, was deleted meanwhile: does a program "
                "clean up there, or was this process stopped for a day, so that gc took it for dead? Build again"
            ) from error


def _group(copies: CacheFolder, dataset: Store) -> CopyGroup | None:
    """Return the local copies of a dataset; None if they are root's, or, with a warning, if they cannot be used."""
    try:
        group = copies.group(dataset.url)
    except StorageError as error:
        warn(f"no local copy is kept of what is built: {error}", logger="copies")
        return None
    return None if group.is_read_only else group


class DiskRoom:
    """The room on a disk for work that writes much.

    One percent of the disk stays free; or as much as the work has written, if that is less, so that small work goes on
    on a large disk that is nearly full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Count bytes that are about to be written; raise StorageError if they would fill the disk."""
        self._taken += nbytes
        disk = os.statvfs(self._folder)
        total = disk.f_blocks * disk.f_frsize
        free = disk.f_bavail * disk.f_frsize
        # A network file system that does not know its size says 0.
        if total and free < nbytes + min(total // _FREE_SHARE + _UNSYNCED_NBYTES, self._taken):
            raise StorageError(
                f"there is no space left for what is written to {self._folder}: {free / 1e6:,.0f} MB of "
                f"{total / 1e6:,.0f} MB are free, after {self._taken / 1e6:,.0f} MB were written. Make room, or write "
                "to another disk; if the source never ends, pass max_records="
            )
