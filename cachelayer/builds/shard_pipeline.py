"""Turn records into shards: cut, write, hash, finish and put them at the same time; read them to write them anew."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.builds.build_options import RECORD_OVERHEAD, BuildOptions
from cachelayer.errors import CacheLayerError, StorageError
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder, CopyGroup
from cachelayer.objects.store import Store
from cachelayer.progress import current
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import PackedRecords
from cachelayer.stalls import Wait
from cachelayer.system_threads import Pool
from cachelayer.temporary_files import DiskRoom, working_folder
from cachelayer.user_warnings import warn
from cachelayer.versions.notes import Notes, PartResult
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import StoredVersion

_log = logger_of("builds")
# Enough uploads at once to use the link while some of them wait for replies.
_UPLOADS = 8
_FEWEST_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 12
_NBYTES_IN_FLIGHT = 1 << 30
LONG_NBYTES = 64 << 20
"""A record of at least so many bytes is copied as seldom as possible."""


class ShardPipeline:
    """Writes shards in the caller's thread; finishes them, puts them and notes their parts in other threads.

    Args:
        target: puts shards into the store.
        options: those of the build, with the spec of the elements.
        notes: where finished parts are noted; None for nowhere.
    """

    def __init__(self, target: ShardTarget, options: BuildOptions, notes: Notes | None = None) -> None:
        self._target = target
        self._compression = options.compression
        self._shard_bytes = options.shard_bytes
        self._cutter = ShardCutter(options.shard_bytes)
        self._codec = codec_for(options.element_spec)
        self._notes = notes
        self._progress = current()
        self._putting = Pool(_UPLOADS, "cachelayer-upload")
        self._noting = Pool(1, "cachelayer-notes")
        # Limit the queue: shards that wait for their upload take room on the disk.
        self._in_flight = min(max(_FEWEST_IN_FLIGHT, _NBYTES_IN_FLIGHT // options.shard_bytes), _MOST_IN_FLIGHT)
        self._begun: deque[Future[ShardFile]] = deque()
        self._writer: ShardWriter | None = None
        self._part: list[Future[ShardFile]] = []
        """The shards of the part that is being written."""
        self._ended: deque[tuple[int, Future[PartResult]]] = deque()
        self._finished: dict[int, PartResult] = {}

    def __enter__(self) -> ShardPipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Another build can go on with what is noted, so a failed one finishes what it has begun; unless Ctrl-C asks not
        # to wait for a network that may not answer.
        is_abandoned = kind is KeyboardInterrupt and not self._target.is_local
        for threads in (self._putting, self._noting):
            threads.shutdown(wait=not is_abandoned, cancel_futures=is_abandoned)
        if self._writer is not None:
            # There is still a writer only after a failure, and that failure is the error to show.
            with suppress(CacheLayerError):
                self._writer.give_up()

    def write(self, batches: Iterator[Frames]) -> None:
        """Append records; errors of earlier records may be raised here.

        Args:
            batches: the records. Each batch should be made when it is asked for: of a long record, as few copies as
                possible are in memory at any time.
        """
        for frames in batches:
            if len(frames) == 1 and len(frames.buffer) >= LONG_NBYTES:
                lengths, [record] = frames.lengths, frames.to_list()
                # The record alone stays in memory.
                del frames
                for begins, _ in self._cutter.cut(lengths):
                    self._shard_for(begins, len(record)).write_long(record)
                    self._progress.update(1, len(record))
                del record
                continue
            for begins, rows in self._cutter.cut(frames.lengths):
                piece = frames[rows]
                self._shard_for(begins, piece.buffer.nbytes).write(piece)
                self._progress.update(len(piece), int(piece.lengths.sum()))

    def _shard_for(self, begins: bool, nbytes: int) -> ShardWriter:
        """Return the writer of the next records, of a new shard if they begin one; there is room for their bytes."""
        if self._writer is None or begins:
            self._end_shard()
            self._writer = self._target.begin_shard(self._compression, self._codec)
        self._target.room.take(nbytes)
        return self._writer

    def end_part(self, number: int, result: PartResult) -> None:
        """End the part, so that the next record begins a shard; it is noted when all of its shards were put.

        Args:
            number: the number of the part.
            result: what is known of it besides its shards.
        """
        self._end_shard()
        self._cutter = ShardCutter(self._shard_bytes)
        shards, self._part = self._part, []

        def finish() -> PartResult:
            part = replace(result, shards=tuple(shard.result() for shard in shards))
            if self._notes is not None:
                self._notes.add(number, part)
            return part

        self._ended.append((number, self._noting.submit(finish)))
        while self._ended and self._ended[0][1].done():
            self._finish_part()

    def finish(self) -> dict[int, PartResult]:
        """Wait until all parts are noted, and return them by number."""
        while self._ended:
            self._finish_part()
        return self._finished

    def _finish_part(self) -> None:
        number, part = self._ended.popleft()
        with Wait("builds", self._awaited):
            self._finished[number] = part.result()

    def _awaited(self) -> str:
        return f"{self._target.dataset.url}: shards that are put into the store"

    def _end_shard(self) -> None:
        writer = self._writer
        if writer is None:
            return
        self._begun.append(self._putting.submit(self._target.put, writer))
        # Only now: a shard that nobody finishes is given up.
        self._writer = None
        self._part.append(self._begun[-1])
        while len(self._begun) > self._in_flight:
            with Wait("builds", self._awaited):
                self._begun.popleft().result()


@dataclass
class ShardCutter:
    """Cuts a sequence of records into shards of at most ``shard_nbytes``, but at least one record.

    Args:
        shard_nbytes: the most bytes of a shard's records, with their overhead.
    """

    shard_nbytes: int
    _filled: int = 0

    def cut(self, lengths: Ints) -> Iterator[tuple[bool, slice]]:
        """Cut a batch of records of these lengths: yield for each piece whether it begins a shard, and its rows."""
        ends = np.cumsum(lengths + RECORD_OVERHEAD)
        start = 0
        while start < len(lengths):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + self.shard_nbytes - self._filled, side="right"))
            begins = self._filled == 0
            if stop <= start:
                if not begins:
                    self._filled = 0
                    continue
                stop = start + 1
            self._filled += int(ends[stop - 1]) - before
            yield begins, slice(start, stop)
            if stop < len(lengths):
                self._filled = 0
            start = stop


@dataclass(frozen=True)
class ShardTarget:
    """Puts the shards of a build into the store.

    Args:
        dataset: the folder of the dataset.
        generation: that of the log when the build began.
        folder: an empty folder to write them in.
        room: the room on its disk, which whoever writes there takes first.
        copies: the local copies of the dataset's shards; None to keep none.
    """

    dataset: Store
    generation: int
    folder: Path
    room: DiskRoom
    copies: CopyGroup | None

    @property
    def is_local(self) -> bool:
        return self.dataset.local_path(paths.SHARDS) is not None

    def begin_shard(self, compression: Compression, codec: Codec) -> ShardWriter:
        """Return the writer of a new shard, with its index and its lengths beside it."""
        path = self.folder / f"{uuid.uuid4().hex}.array_record"
        index_path, lengths_path = Path(paths.index_of(str(path))), Path(paths.lengths_of(str(path)))
        return ShardWriter(path, index_path, compression, lengths_path, codec)

    def put(self, writer: ShardWriter) -> ShardFile:
        """Finish a shard and put it, with what stands beside it; the files are gone then. Threads may share this."""
        shard = ShardFile(writer.finish(), self.generation)
        names = {writer.path.with_suffix(Path(name).suffix): name for name in shard.files}
        self.dataset.move_in(names)
        stats = shard.stats
        _log.debug("%s/%s: put, %d records in %d bytes", self.dataset.url, shard.name, stats.records, stats.nbytes)
        if self.copies is not None:
            self.copies.adopt({file: Path(name).name for file, name in names.items()})
        for file in names:
            file.unlink(missing_ok=True)
        return shard


@contextmanager
def shard_target(dataset: Store, copies: CacheFolder | None, generation: int) -> Iterator[ShardTarget]:
    """Yield where the shards of a build go; what is left in its working folder is removed in the end.

    Args:
        dataset: the folder of the dataset.
        copies: keeps local copies; None for none.
        generation: the present generation of the log.
    """
    group = None if copies is None else _group(copies, dataset)
    parent = dataset.working_folder() if copies is None or group is None else copies.path
    with working_folder(parent) as folder:
        yield ShardTarget(dataset, generation, folder, DiskRoom(folder), group)


def _group(copies: CacheFolder, dataset: Store) -> CopyGroup | None:
    """Return the local copies of a dataset; None, with a warning, if the folder cannot be used."""
    try:
        return copies.of_dataset(dataset.url)
    except StorageError as error:
        warn(f"no local copy is kept of what is built: {error}", room="copies")
        return None


def records_of_shard(version: StoredVersion, shard: ShardFile) -> Iterator[tuple[Ints, PackedRecords]]:
    """Yield the numbers of all records of a shard, and the records, some MiB at a time.

    Args:
        version: a version of the dataset.
        shard: a shard of the dataset. Each record is compared with its checksum: damage must not get one of its own.

    Raises:
        CorruptionError: if the shard is not what was put.
    """
    with version.shard_file(shard) as path:
        files = ShardFiles(path, Path(paths.index_of(str(path))), shard.stats)
        for numbers, records in LocalShards.of_file(nullcontext(files), shard.stats, "always").in_order():
            yield numbers, records.packed()
