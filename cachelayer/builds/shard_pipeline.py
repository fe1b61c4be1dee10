"""Turn records into shards: write, hash, finish and upload at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.writer import ShardStats, ShardWriter
from cachelayer.builds.shard_cuts import ShardCutter
from cachelayer.errors import CacheLayerError, SourceError
from cachelayer.objects import paths
from cachelayer.progress import Progress
from cachelayer.records.codec import codec_for
from cachelayer.records.record_buffers import Frames
from cachelayer.records.shard_digest import ShardDigest
from cachelayer.records.tree import Tree
from cachelayer.records.varying_leaves import VaryingLeaves
from cachelayer.system_threads import Pool
from cachelayer.versions.shard_table import ShardFile

# Enough uploads at once to use the link while some of them wait for replies.
_UPLOADS = 8
_FEWEST_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 12
_NBYTES_IN_FLIGHT = 1 << 30
_BATCHES_IN_FLIGHT = 4

Upload = Callable[[Path], None]
"""Uploads a finished shard and the files beside it; called from several threads."""


class ShardNotes(Protocol):
    """Notes which shards are in the store, so that another build can resume after them."""

    def expect_shards(self, spec: Tree) -> None:
        """Set the element spec of the shards that follow."""

    def add_shard(self, number: int, shard: ShardFile, nullable: frozenset[int]) -> None:
        """Note a shard; called from several threads.

        Args:
            number: its number in the build.
            shard: the shard.
            nullable: the numbers of the leaves that were None in some element up to its end.
        """


class Uploads:
    """Uploads finished shards in threads of its own, and notes those that are in the store.

    Args:
        uploader: uploads a shard; None if shards are written to the store directly.
        notes: notes shards; None if no build could resume from them.
        shard_bytes: about the size of a shard.
    """

    def __init__(self, uploader: Upload | None, notes: ShardNotes | None, shard_bytes: int) -> None:
        self._uploader = uploader
        self._notes = notes
        # Limit the queue: shards that wait for their upload take room on the disk.
        self._in_flight = min(max(_FEWEST_IN_FLIGHT, _NBYTES_IN_FLIGHT // shard_bytes), _MOST_IN_FLIGHT)
        self._threads = Pool(_UPLOADS, "cachelayer-upload")
        self._begun: deque[Future[None]] = deque()

    def add(self, number: int, path: Path, shard: Future[ShardFile], nullable: frozenset[int]) -> None:
        """Upload and note a shard as soon as it is finished; errors of earlier ones may be raised here.

        Args:
            number: its number in the build.
            path: where it is written.
            shard: the shard, once it is finished.
            nullable: the numbers of the leaves that were None in some element up to its end.
        """
        if self._uploader is None and self._notes is None:
            return
        self._begun.append(self._threads.submit(self._upload, number, path, shard, nullable))
        while len(self._begun) > self._in_flight:
            self._begun.popleft().result()

    def _upload(self, number: int, path: Path, shard: Future[ShardFile], nullable: frozenset[int]) -> None:
        finished = shard.result()
        if self._uploader is not None:
            self._uploader(path)
        if self._notes is not None:
            self._notes.add_shard(number, finished, nullable)

    def finish(self) -> None:
        """Wait until all shards are uploaded and noted."""
        for future in self._begun:
            future.result()

    def gives_up(self, kind: type[BaseException] | None) -> bool:
        """Return whether a build that ends with this exception leaves what is not finished yet as it is.

        Another build can go on with what is noted, so a failed one finishes that, unless Ctrl-C asks not to wait.
        """
        return kind is not None and (self.is_abandoned(kind) or self._notes is None)

    def is_abandoned(self, kind: type[BaseException] | None) -> bool:
        """Return True on Ctrl-C: uploads are abandoned instead of waiting for a network that may not answer."""
        return kind is KeyboardInterrupt and self._uploader is not None

    def close(self, kind: type[BaseException] | None) -> None:
        """End the threads; ``kind`` is the exception that ends the build, None for none."""
        self._threads.shutdown(wait=not self.is_abandoned(kind), cancel_futures=self.gives_up(kind))


@dataclass(frozen=True)
class ShardWriters:
    """The shards that a build writes.

    Args:
        folder: the folder that they are written to.
        attempt: the build attempt that the folder belongs to.
        spec: the spec of the elements.
        compression, shard_bytes: options of the build.
        earlier: existing shards by number; their records are compared instead of written.
        first: the number of the shard that begins with the first record.
        files: the number in the file name of shard 0.
    """

    folder: Path
    attempt: str
    spec: Tree
    compression: Compression
    shard_bytes: int
    earlier: Mapping[int, ShardFile]
    first: int
    files: int

    def path(self, number: int) -> Path:
        return self.folder / Path(paths.shard(self.attempt, self.files + number)).name

    def file(self, number: int, stats: ShardStats) -> ShardFile:
        return ShardFile(self.attempt, self.files + number, stats)


class ShardPipeline:
    """Writes shards in the caller's thread; hashes records and finishes shards in other threads.

    ``ArrayRecordWriter`` holds the interpreter lock while it writes, so a thread for it would only make the source wait
    for the lock. Hashing, and making files durable, release the lock.

    Args:
        shards: the shards to write.
        progress: counts what was written.
        uploads: uploads and notes finished shards.
    """

    def __init__(self, shards: ShardWriters, progress: Progress, uploads: Uploads) -> None:
        self._of = shards
        self._cutter = ShardCutter(shards.shard_bytes)
        self._varying = VaryingLeaves(codec_for(shards.spec))
        self._progress = progress
        self._hashing = Pool(1, "cachelayer-hash")
        self._finishing = Pool(1, "cachelayer-finish")
        self._uploads = uploads
        self._hashes: deque[Future[None]] = deque()
        self._writer: ShardWriter | _ShardChecker | None = None
        before = [shards.earlier[number] for number in range(shards.first)]
        self._shards: list[ShardFile | Future[ShardFile]] = [*before]
        self._records = sum(shard.stats.records for shard in before)

    def __enter__(self) -> ShardPipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for executor in (self._hashing, self._finishing):
            executor.shutdown(cancel_futures=self._uploads.gives_up(kind))
        self._uploads.close(kind)
        if isinstance(self._writer, ShardWriter):
            # There is still a writer only after a failure, and that failure is the error to show.
            with suppress(CacheLayerError):
                self._writer.give_up()

    def write(self, frames: Frames, nullable: frozenset[int]) -> None:
        """Append records; errors of earlier records may be raised here.

        Args:
            frames: the records.
            nullable: the numbers of the leaves that were None in some element up to these.
        """
        for begins, rows in self._cutter.cut(frames.lengths):
            if begins or self._writer is None:
                self._finish_shard(nullable)
                self._writer = self._begin_shard()
            piece = frames[rows]
            self._hashes.append(self._hashing.submit(self._writer.hash, piece))
            self._writer.write(piece)
            self._records += len(piece)
            self._progress.update(len(piece), int(piece.lengths.sum()))
        while len(self._hashes) > _BATCHES_IN_FLIGHT:
            self._hashes.popleft().result()

    def _begin_shard(self) -> ShardWriter | _ShardChecker:
        number = len(self._shards)
        if number in self._of.earlier:
            return _ShardChecker(self._of.earlier[number], self._records)
        path = self._of.path(number)
        index_path, lengths_path = Path(paths.index_of(str(path))), Path(paths.lengths_of(str(path)))
        return ShardWriter(path, index_path, self._of.compression, lengths_path, self._varying)

    def _finish_shard(self, nullable: frozenset[int]) -> None:
        writer = self._writer
        if writer is None:
            return
        number, last_hash = len(self._shards), self._hashes[-1]
        if isinstance(writer, _ShardChecker):
            last_hash.result()
            writer.check()
            self._shards.append(writer.shard)
            self._writer = None
            return

        def finish() -> ShardFile:
            return self._of.file(number, writer.finish(last_hash.result))

        finished = self._finishing.submit(finish)
        # Only now: a shard that nobody finishes is given up.
        self._writer = None
        self._shards.append(finished)
        self._uploads.add(number, writer.path, finished, nullable)

    def settle(self) -> list[ShardFile]:
        """Wait until all closed shards are durable, and return them."""
        shards = [shard.result() if isinstance(shard, Future) else shard for shard in self._shards]
        self._uploads.finish()
        return shards

    def finish(self, nullable: frozenset[int]) -> list[ShardFile]:
        """Close the last shard, wait until all are durable, and return them."""
        self._finish_shard(nullable)
        shards = self.settle()
        if any(number >= len(shards) for number in self._of.earlier):
            raise SourceError(f"the source ended after {self._records} records; {_CANNOT_RESUME}")
        return shards


_CANNOT_RESUME = (
    "the interrupted build read other records, or more of them. A source that does not repeat itself cannot be "
    "resumed: build with resume=False, or make it repeat itself, for example with a fixed seed"
)


class _ShardChecker:
    """Compares records with those of an existing shard.

    Args:
        shard: the shard.
        first: the number of its first record.
    """

    def __init__(self, shard: ShardFile, first: int) -> None:
        self.shard = shard
        self._first = first
        self._records = 0
        self._digest = ShardDigest()

    def hash(self, frames: Frames) -> None:
        """Add the records to the digest."""
        self._digest.add(frames)

    def write(self, frames: Frames) -> None:
        """Count the records."""
        self._records += len(frames)

    def check(self) -> None:
        """Raise if the records are not those of the shard."""
        stats = self.shard.stats
        if self._records != stats.records or self._digest.hexdigest() != stats.sha256:
            last = self._first + max(self._records, stats.records) - 1
            raise SourceError(f"records {self._first} to {last} of the source have changed: {_CANNOT_RESUME}")
