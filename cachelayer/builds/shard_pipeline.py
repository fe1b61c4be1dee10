"""Turn records into shards: write, hash, finish and put them at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.builds.shard_cuts import ShardCutter
from cachelayer.builds.shard_target import ShardTarget
from cachelayer.errors import CacheLayerError
from cachelayer.objects import paths
from cachelayer.progress import Progress
from cachelayer.records.codec import codec_for
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool
from cachelayer.versions.notes import PartResult
from cachelayer.versions.shard_table import ShardFile

# Enough uploads at once to use the link while some of them wait for replies.
_UPLOADS = 8
_FEWEST_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 12
_NBYTES_IN_FLIGHT = 1 << 30
_BATCHES_IN_FLIGHT = 4
LONG_NBYTES = 64 << 20
"""A record of at least so many bytes is copied as seldom as possible."""

Note = Callable[[int, PartResult], None]
"""Takes the number of a part and the part, once its shards were put; called from one thread, in the order of parts."""


class ShardPipeline:
    """Writes shards in the caller's thread; hashes records, finishes shards and puts them in other threads.

    ``ArrayRecordWriter`` holds the interpreter lock while it writes, so a thread for it would only make the source wait
    for the lock. Hashing, and making files durable, release the lock.

    Args:
        target: puts shards into the store.
        spec: the spec of the elements.
        compression, shard_bytes: options of the build.
        progress: counts what was written.
        note: notes finished parts.
    """

    def __init__(
        self,
        target: ShardTarget,
        spec: Tree,
        compression: Compression,
        shard_bytes: int,
        progress: Progress,
        note: Note,
    ) -> None:
        self._target = target
        self._compression = compression
        self._shard_bytes = shard_bytes
        self._cutter = ShardCutter(shard_bytes)
        self._codec = codec_for(spec)
        self._progress = progress
        self._note = note
        self._hashing = Pool(1, "cachelayer-hash")
        self._putting = Pool(_UPLOADS, "cachelayer-upload")
        self._noting = Pool(1, "cachelayer-notes")
        # Limit the queue: shards that wait for their upload take room on the disk.
        self._in_flight = min(max(_FEWEST_IN_FLIGHT, _NBYTES_IN_FLIGHT // shard_bytes), _MOST_IN_FLIGHT)
        self._hashes: deque[Future[None]] = deque()
        self._begun: deque[Future[ShardFile]] = deque()
        self._noted: deque[Future[None]] = deque()
        self._writer: ShardWriter | None = None
        self._written = 0
        self._part: list[Future[ShardFile]] = []
        """The shards of the part that is being written."""

    def __enter__(self) -> ShardPipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Another build can go on with what is noted, so a failed one finishes what it has begun; unless Ctrl-C asks not
        # to wait for a network that may not answer.
        is_abandoned = kind is KeyboardInterrupt and not self._target.is_local
        for threads in (self._hashing, self._putting, self._noting):
            threads.shutdown(wait=not is_abandoned, cancel_futures=is_abandoned)
        if self._writer is not None:
            # There is still a writer only after a failure, and that failure is the error to show.
            with suppress(CacheLayerError):
                self._writer.give_up()

    def write(self, batches: Iterator[Frames], begin: Callable[[], None] | None = None) -> None:
        """Append records; errors of earlier records may be raised here.

        Args:
            batches: the records. Each batch should be made when it is asked for: of a long record, as few copies as
                possible are in memory at any time.
            begin: called before each shard after the first of the part; it may end the part.
        """
        for frames in batches:
            if len(frames) == 1 and len(frames.buffer) >= LONG_NBYTES:
                lengths, [record] = frames.lengths, frames.to_list()
                # The record alone stays in memory.
                del frames
                for begins, _ in self._cutter.cut(lengths):
                    self._write_long(self._shard_for(begins, begin), record)
                del record
                continue
            for begins, rows in self._cutter.cut(frames.lengths):
                self._write(self._shard_for(begins, begin), frames[rows])

    def _shard_for(self, begins: bool, begin: Callable[[], None] | None) -> ShardWriter:
        """Return the writer of the next records, of a new shard if they begin one."""
        if self._writer is None or begins:
            if self._writer is not None and begin is not None:
                begin()
            self._end_shard()
            self._writer = self._begin_shard()
        return self._writer

    def _write(self, writer: ShardWriter, frames: Frames) -> None:
        self._target.room.take(frames.buffer.nbytes)
        self._hashes.append(self._hashing.submit(writer.hash, frames))
        writer.write(frames)
        self._progress.update(len(frames), int(frames.lengths.sum()))
        while len(self._hashes) > _BATCHES_IN_FLIGHT:
            self._hashes.popleft().result()

    def _write_long(self, writer: ShardWriter, record: bytes) -> None:
        """Append a record, and wait until it is hashed: each record that waits for that takes much memory."""
        self._target.room.take(len(record))
        self._hashes.append(self._hashing.submit(writer.hash_long, record))
        writer.write_long(record)
        self._progress.update(1, len(record))
        for hashed in self._hashes:
            hashed.result()

    @property
    def has_begun(self) -> bool:
        """Whether a shard has begun that has not ended."""
        return self._writer is not None

    def end_part(self, number: int, part: PartResult) -> None:
        """End the part, so that the next record begins a shard; it is noted when all of its shards were put.

        Args:
            number: the number of the part.
            part: what is known of it besides its shards.
        """
        self._cutter = ShardCutter(self._shard_bytes)
        self.end_shard(number, part)

    def end_shard(self, number: int, part: PartResult) -> None:
        """End a part where a shard ends anyway; see :meth:`end_part`."""
        self._end_shard()
        shards, self._part = self._part, []

        def note() -> None:
            self._note(number, replace(part, shards=tuple(shard.result() for shard in shards)))

        self._noted.append(self._noting.submit(note))
        while self._noted and self._noted[0].done():
            self._noted.popleft().result()

    def finish(self) -> None:
        """Wait until all parts are noted."""
        while self._noted:
            self._noted.popleft().result()

    def _begin_shard(self) -> ShardWriter:
        path = self._target.folder / f"{self._written:05}.array_record"
        self._written += 1
        index_path, lengths_path = Path(paths.index_of(str(path))), Path(paths.lengths_of(str(path)))
        return ShardWriter(path, index_path, self._compression, lengths_path, self._codec)

    def _end_shard(self) -> None:
        writer = self._writer
        if writer is None:
            return
        hashes = list(self._hashes)

        def wait_for_hashes() -> None:
            for hashed in hashes:
                hashed.result()

        def finish_and_put() -> ShardFile:
            return self._target.put(writer.path, writer.finish(wait_for_hashes))

        self._begun.append(self._putting.submit(finish_and_put))
        # Only now: a shard that nobody finishes is given up.
        self._writer = None
        self._part.append(self._begun[-1])
        while len(self._begun) > self._in_flight:
            self._begun.popleft().result()
