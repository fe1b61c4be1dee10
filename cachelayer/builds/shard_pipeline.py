"""Turn records into shards: several are written, finished and put at the same time.

::

    the caller's thread    write_part(frames) ──> ShardCutter ──> ShardWriter, a file in the working folder
                                                                 │ the shard is full, or the part ends
    8 upload threads                                             v
                           ShardTarget.put: finish the file, name it by its content, move it into the store
                                                                 │ all shards of a part are put
    1 noting thread                                              v
                           Notes.add: from now on, another build need not build this part

Only so many shards wait for their upload that the disk and the memory are enough: then
:meth:`ShardPipeline.write_part` waits.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.builds.build_options import RECORD_OVERHEAD, BuildOptions
from cachelayer.builds.encode import Encoder
from cachelayer.errors import BuildRevokedError, CacheLayerError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, CopyGroup
from cachelayer.objects.store import Store
from cachelayer.protocols import T
from cachelayer.records.codec import Codec
from cachelayer.records.frames import Frames
from cachelayer.support.logs import logger_of
from cachelayer.support.memory import Ints
from cachelayer.support.progress import current
from cachelayer.support.system_threads import Pool
from cachelayer.support.temporary_files import working_folder
from cachelayer.support.user_warnings import warn
from cachelayer.support.waits import Wait
from cachelayer.versions.blobs import put_files
from cachelayer.versions.notes import Notes, PartResult
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import INDICES_NBYTES

_log = logger_of("builds")
_UPLOADS = 8
"""How many shards are uploaded at once: enough to use the link while some wait for replies."""
_NBYTES_IN_FLIGHT = 1 << 30
"""About the bytes of all shards that are begun and not put yet, within the two bounds below."""
_FEWEST_IN_FLIGHT = 4
_MOST_IN_FLIGHT = 12
LONG_NBYTES = 64 << 20
"""A record of at least so many bytes is copied as seldom as possible."""
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
    """The room on the disk of the working folder: a writer takes some before it writes there."""
    copies: CopyGroup | None
    """Keeps local copies of the shards; None for none."""
    known: dict[str, bytes] = field(default_factory=dict)
    """The indices of the shards that were put into a bucket, by the names of the shards. They are empty if all are too
    large to be put beside a manifest."""

    def begin_shard(self, compression: Compression, codec: Codec) -> ShardWriter:
        """Return the writer of a new shard, of its index and of its lengths."""
        return ShardWriter(self.folder / f"{uuid.uuid4().hex}.array_record", compression, codec)

    def put(self, writer: ShardWriter, store: Store) -> ShardFile:
        """Finish a shard and move its files into a store. Several threads may call this at the same time."""
        shard = ShardFile(writer.finish(), self.generation)
        files = {writer.path.with_suffix(Path(blob.name).suffix): blob for blob in shard.blobs}
        is_local = store.local_path("") is not None
        index = b"" if is_local else writer.index_path.read_bytes()
        put_files(store, files)
        if not is_local:
            has_room = len(index) + sum(map(len, [*self.known.values()])) <= INDICES_NBYTES
            self.known[shard.name] = index if has_room else b""
        stats = shard.stats
        _log.debug(
            "%(object)s: put, %(records)d records in %(nbytes)d bytes",
            {"object": f"{store.url}/{shard.name}", "records": stats.records, "nbytes": stats.nbytes},
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
    """Yield where the shards of a build go; remove the working folder at the end.

    ``parts`` is the folder of the shards that are built, or None for one that goes with the working folder. Of shards
    that are not put into the dataset, which no version names, no copies are kept: nobody would remove these when
    records are erased.
    """
    group = None if copies is None or parts is not dataset else _group(copies, dataset)
    parent = dataset.local_path(paths.WORKING) if copies is None or group is None else copies.path
    with working_folder(parent) as folder:
        try:
            parts = parts or LocalStore(folder / "parts")
            yield ShardTarget(dataset, parts, generation, folder, DiskRoom(folder), group)
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


@dataclass
class DiskRoom:
    """The room on a disk for work that writes much.

    One percent of the disk stays free; or as much as the work has written, if that is less, so that small work goes on
    on a large disk that is nearly full.
    """

    folder: Path
    taken: int = 0

    def take(self, nbytes: int) -> None:
        """Count bytes that are about to be written; raise StorageError if they would fill the disk."""
        self.taken += nbytes
        disk = os.statvfs(self.folder)
        total = disk.f_blocks * disk.f_frsize
        free = disk.f_bavail * disk.f_frsize
        # A network file system that does not know its size says 0.
        if total and free < nbytes + min(total // _FREE_SHARE + _UNSYNCED_NBYTES, self.taken):
            raise StorageError(
                f"there is no space left for what is written to {self.folder}: {free / 1e6:,.0f} MB of "
                f"{total / 1e6:,.0f} MB are free, after {self.taken / 1e6:,.0f} MB were written. Make room, or write "
                "to another disk; if the source never ends, pass max_records="
            )


class ShardPipeline:
    """Writes records as shards, part after part, and puts and notes these in other threads."""

    def __init__(self, target: ShardTarget, store: Store, options: BuildOptions, notes: Notes | None = None) -> None:
        self._target = target
        self._store = store
        self._compression = options.compression
        self._shard_bytes = options.shard_bytes
        self._cutter = ShardCutter(options.shard_bytes)
        self._notes = notes
        self._progress = current()
        self._putting = Pool(_UPLOADS, "cachelayer-upload")
        self._noting = Pool(1, "cachelayer-notes")
        self._in_flight = min(max(_FEWEST_IN_FLIGHT, _NBYTES_IN_FLIGHT // options.shard_bytes), _MOST_IN_FLIGHT)
        self._writer: ShardWriter | None = None
        """Writes the shard that is not full yet."""
        self._shards_of_part: list[Future[ShardFile]] = []
        """The full shards of the part that is being written."""
        self._uploads: deque[Future[ShardFile]] = deque()
        """The shards that may not be put yet, of all parts."""
        self._ended: deque[tuple[int, Future[PartResult]]] = deque()
        """The parts that are written and may not be noted yet, by number."""
        self._finished: dict[int, PartResult] = {}
        """The parts that are noted since the last call of :meth:`finish`."""

    def __enter__(self) -> ShardPipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A build that fails still finishes the shards and notes that it has begun: another build goes on after them.
        # Only after Ctrl-C it does not wait for a network that may not answer.
        is_abandoned = kind is KeyboardInterrupt and self._store.local_path("") is None
        for threads in (self._putting, self._noting):
            threads.shutdown(wait=not is_abandoned, cancel_futures=is_abandoned)
        if self._writer is not None:
            # There is a writer here only after a failure, and that failure is the error to show.
            with suppress(CacheLayerError):
                self._writer.give_up()

    def write_part(self, number: int, encoder: Encoder, batches: Iterator[Frames]) -> None:
        """Write the records of a part, which is noted when its shards are put. Earlier shards may raise errors here.

        ``batches`` should make each batch when it is asked for, so that few copies of a long record are in memory.
        ``encoder`` makes them, and has the result in the end.
        """
        codec = encoder.codec
        self._cutter = ShardCutter(self._shard_bytes)
        for frames in batches:
            if len(frames) == 1 and len(frames.buffer) >= LONG_NBYTES:
                lengths = frames.lengths
                record = frames.to_list()[0]
                # The record is a copy: without this, the buffer that it was copied from would stay in memory too.
                del frames
                for begins, _ in self._cutter.cut(lengths):
                    self._shard_for(codec, begins, len(record)).write_long(record)
                    self._progress.update(1, len(record))
                del record
                continue
            for begins, rows in self._cutter.cut(frames.lengths):
                piece = frames[rows]
                self._shard_for(codec, begins, piece.buffer.nbytes).write(piece)
                self._progress.update(len(piece), int(piece.lengths.sum()))
        self._end_shard()
        self._end_part(number, encoder.result)

    def _shard_for(self, codec: Codec, begins: bool, nbytes: int) -> ShardWriter:
        """Return the writer of the next records, whose bytes then have room on the disk."""
        if self._writer is None or begins:
            self._end_shard()
            self._writer = self._target.begin_shard(self._compression, codec)
        self._target.room.take(nbytes)
        return self._writer

    def _end_part(self, number: int, result: PartResult) -> None:
        shards = self._shards_of_part
        self._shards_of_part = []
        self._ended.append((number, self._noting.submit(self._note, number, result, shards)))
        while self._ended and self._ended[0][1].done():
            noted, part = self._ended.popleft()
            self._finished[noted] = part.result()

    def _note(self, number: int, result: PartResult, shards: Sequence[Future[ShardFile]]) -> PartResult:
        """Note a part when its shards are put, and return its result."""
        part = replace(result, shards=tuple(shard.result() for shard in shards))
        if self._notes is not None:
            self._notes.add(number, part)
        return part

    def finish(self) -> dict[int, PartResult]:
        """Wait until all parts are noted; return the results of those since the last call, by number."""
        while self._ended:
            number, part = self._ended.popleft()
            self._finished[number] = self._awaited(part)
        finished = self._finished
        self._finished = {}
        return finished

    def _awaited(self, put: Future[T]) -> T:
        """Wait for what puts shards, and return its result."""
        shards = f"{self._store.url}: shards that are put into the store"
        with Wait(shards, "builds", self._progress) as awaited:
            awaited.until(lambda seconds: bool(wait([put], seconds).done))
        return put.result()

    def _end_shard(self) -> None:
        writer = self._writer
        if writer is None:
            return
        self._uploads.append(self._putting.submit(self._target.put, writer, self._store))
        # Not before the upload is submitted: if that fails, __exit__ still has the writer to give up.
        self._writer = None
        self._shards_of_part.append(self._uploads[-1])
        while len(self._uploads) > self._in_flight:
            self._awaited(self._uploads.popleft())


@dataclass
class ShardCutter:
    """Cuts a sequence of records into shards of at most ``shard_nbytes``, but of at least one record each.

    It remembers how full the last shard is, so the cuts do not depend on how records come in batches::

        shard_nbytes=1000     batches, in bytes with overhead     300 300 | 300 300 300 | 2000 100
                              shards                              [300 300 300][300 300][2000][100
    """

    shard_nbytes: int
    """The bytes of a shard's records, each with its overhead, that are not exceeded."""
    _filled: int = 0
    """The bytes of the records in the last shard; 0 if the next record begins a shard."""

    def cut(self, lengths: Ints) -> Iterator[tuple[bool, slice]]:
        """Cut records of these lengths into pieces that lie in one shard each; yield whether a piece begins a shard,
        and its rows.
        """
        ends = np.cumsum(lengths + RECORD_OVERHEAD)
        start = 0
        while start < len(lengths):
            before = int(ends[start - 1]) if start else 0
            # The records up to ``stop`` fit into what is left of the shard.
            stop = int(np.searchsorted(ends, before + self.shard_nbytes - self._filled, side="right"))
            begins = self._filled == 0
            if stop <= start:
                if not begins:
                    # The shard is full: look again, with a new one.
                    self._filled = 0
                    continue
                # The record is longer than a shard, and gets one of its own.
                stop = start + 1
            self._filled += int(ends[stop - 1]) - before
            yield begins, slice(start, stop)
            if stop < len(lengths):
                self._filled = 0
            start = stop
