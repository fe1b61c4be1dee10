"""Records into shards: write, hash, finish and deliver beside each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.writer import ShardStats, ShardWriter
from cachelayer.builds.shard_cuts import ShardCutter
from cachelayer.builds.uploads import Deliver, Deliveries, OnFinished, leaves
from cachelayer.errors import CacheLayerError, SourceError
from cachelayer.objects import paths
from cachelayer.progress.meter import Progress
from cachelayer.records.record_buffers import Frames
from cachelayer.records.shard_digest import ShardDigest
from cachelayer.versions.shard_table import ShardFile

_BATCHES_IN_FLIGHT = 4


@dataclass(frozen=True)
class Shards:
    """The shards that a build writes.

    Args:
        folder: where they are written.
        attempt: the build attempt that the folder belongs to.
        compression, shard_bytes: how.
        earlier: shards that are there already, by their numbers: their records are compared, and not written.
        first: the number of the shard that the first record begins.
        files: the number in the name of the first shard of all.
    """

    folder: Path
    attempt: str
    compression: Compression
    shard_bytes: int
    earlier: Mapping[int, ShardFile]
    first: int
    files: int

    def path(self, number: int) -> Path:
        """Where a shard is written."""
        return self.folder / Path(paths.shard(self.attempt, self.files + number)).name

    def file(self, number: int, stats: ShardStats) -> ShardFile:
        """A shard that was written."""
        return ShardFile(self.attempt, self.files + number, stats)


class ShardPipeline:
    """Writes shards in the caller's thread; hashes records, and finishes shards, in threads beside it.

    ``ArrayRecordWriter`` holds the interpreter lock while it writes, so that a thread for it would only make the source
    wait for the lock. Hashing and bringing files to the disk let the lock go.

    Args:
        shards: what is written.
        progress: is told of what was written.
        deliver: takes finished shards on; None where they lie where they belong.
    """

    def __init__(self, shards: Shards, progress: Progress, deliver: Deliver | None) -> None:
        self._of = shards
        self._cutter = ShardCutter(shards.shard_bytes)
        self._progress = progress
        self._deliver = deliver
        self._hashing = ThreadPoolExecutor(1, "cachelayer-hash")
        self._finishing = ThreadPoolExecutor(1, "cachelayer-finish")
        self._deliveries = Deliveries(deliver, shards.shard_bytes)
        self._hashes: deque[Future[None]] = deque()
        self._writer: ShardWriter | _ShardChecker | None = None
        self._resumable = False
        before = [shards.earlier[number] for number in range(shards.first)]
        self._shards: list[ShardFile | Future[ShardStats]] = [*before]
        self._records = sum(shard.stats.records for shard in before)

    def __enter__(self) -> ShardPipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Whoever resumes is glad of what was written.
        gives_up = kind is not None and (leaves(kind, self._deliver) or not self._resumable)
        for executor in (self._hashing, self._finishing):
            executor.shutdown(cancel_futures=gives_up)
        self._deliveries.close(kind, is_resumable=self._resumable)
        if isinstance(self._writer, ShardWriter):
            # Reached with a writer only after a failure, which is the error to be shown.
            with suppress(CacheLayerError):
                self._writer.close()

    def write(self, frames: Frames, on_finished: OnFinished | None = None) -> None:
        """Append records; errors of earlier ones may be raised here.

        Args:
            frames: the records.
            on_finished: is told of the shards that these records, or the end, close.
        """
        self._resumable = on_finished is not None
        for begins, rows in self._cutter.cut(frames.lengths):
            if begins or self._writer is None:
                self._finish_shard(on_finished)
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
        return ShardWriter(path, Path(paths.index_of(str(path))), self._of.compression)

    def _finish_shard(self, on_finished: OnFinished | None) -> None:
        writer = self._writer
        if writer is None:
            return
        last_hash, self._writer = self._hashes[-1], None
        if isinstance(writer, _ShardChecker):
            last_hash.result()
            writer.check()
            self._shards.append(writer.shard)
            return

        def finish() -> ShardStats:
            last_hash.result()
            return writer.finish()

        number, finished = len(self._shards), self._finishing.submit(finish)
        self._shards.append(finished)
        self._deliveries.add(number, writer.path, lambda: self._of.file(number, finished.result()), on_finished)

    def settle(self) -> None:
        """Wait until the shards that are closed are durable."""
        for shard in self._shards:
            if isinstance(shard, Future):
                shard.result()
        self._deliveries.finish()

    def finish(self, on_finished: OnFinished | None = None) -> list[ShardFile]:
        """The shards, all of them durable.

        Raises:
            SourceError: where there are fewer than there were.
        """
        self._finish_shard(on_finished)
        there = len(self._shards)
        stats = [shard if isinstance(shard, ShardFile) else shard.result() for shard in self._shards]
        self._deliveries.finish()
        shards = [
            stat if isinstance(stat, ShardFile) else self._of.file(number, stat) for number, stat in enumerate(stats)
        ]
        if any(number >= there for number in self._of.earlier):
            raise SourceError(f"the source ended after {self._records} records; {_OTHERWISE}")
        return shards


_OTHERWISE = (
    "an attempt that was interrupted had more or other ones. A source that does not repeat itself cannot be gone on "
    "with: build with resume=False, or make it repeat itself, as with a fixed seed"
)


class _ShardChecker:
    """Compares records with those of a shard that is there.

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
        """Take the records into the digest."""
        self._digest.add(frames)

    def write(self, frames: Frames) -> None:
        """Count the records."""
        self._records += len(frames)

    def check(self) -> None:
        """Compare.

        Raises:
            SourceError: where they differ.
        """
        stats = self.shard.stats
        if self._records != stats.records or self._digest.hexdigest() != stats.sha256:
            last = self._first + max(self._records, stats.records) - 1
            raise SourceError(f"records {self._first} to {last} of the source are not what they were: {_OTHERWISE}")
