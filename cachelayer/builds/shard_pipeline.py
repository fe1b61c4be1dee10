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

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.builds.build_options import RECORD_OVERHEAD, BuildOptions
from cachelayer.builds.shard_target import ShardTarget
from cachelayer.errors import CacheLayerError
from cachelayer.protocols import T
from cachelayer.records.codec import Codec
from cachelayer.records.frames import Frames
from cachelayer.support.memory import Ints
from cachelayer.support.progress import current
from cachelayer.support.system_threads import Pool
from cachelayer.versions.notes import Notes, PartResult
from cachelayer.versions.shard_table import ShardFile

_UPLOADS = 8
"""How many shards are uploaded at once: enough to use the link while some wait for replies."""
_NBYTES_IN_FLIGHT = 1 << 30
"""About the bytes of all shards that are begun and not put yet, within the two bounds below."""
_FEWEST_IN_FLIGHT = 4
_MOST_IN_FLIGHT = 12
LONG_NBYTES = 64 << 20
"""A record of at least so many bytes is copied as seldom as possible."""


class ShardPipeline:
    """Writes records as shards, part after part, and puts and notes these in other threads."""

    def __init__(self, target: ShardTarget, options: BuildOptions, notes: Notes | None = None) -> None:
        self._target = target
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
        is_abandoned = kind is KeyboardInterrupt and not self._target.is_local
        for threads in (self._putting, self._noting):
            threads.shutdown(wait=not is_abandoned, cancel_futures=is_abandoned)
        if self._writer is not None:
            # There is a writer here only after a failure, and that failure is the error to show.
            with suppress(CacheLayerError):
                self._writer.give_up()

    def write_part(
        self, number: int, codec: Codec, batches: Iterator[Frames], result: Callable[[], PartResult]
    ) -> None:
        """Write the records of a part, which is noted when its shards are put. Earlier shards may raise errors here.

        ``batches`` should make each batch when it is asked for, so that few copies of a long record are in memory.
        ``result`` is called once all records are written.
        """
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
        self._end_part(number, result())

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

        def finish() -> PartResult:
            part = replace(result, shards=tuple(shard.result() for shard in shards))
            if self._notes is not None:
                self._notes.add(number, part)
            return part

        self._ended.append((number, self._noting.submit(finish)))
        while self._ended and self._ended[0][1].done():
            self._finish_part()

    def finish(self) -> dict[int, PartResult]:
        """Wait until all parts are noted; return the results of those since the last call, by number."""
        while self._ended:
            self._finish_part()
        finished = self._finished
        self._finished = {}
        return finished

    def _finish_part(self) -> None:
        number, part = self._ended.popleft()
        self._finished[number] = self._awaited(part)

    def _awaited(self, put: Future[T]) -> T:
        """Wait for what puts shards, and return its result."""
        with self._progress.waiting(f"{self._target.dataset.url}: shards that are put into the store") as awaited:
            awaited.until(lambda seconds: bool(wait([put], seconds).done))
        return put.result()

    def _end_shard(self) -> None:
        writer = self._writer
        if writer is None:
            return
        self._uploads.append(self._putting.submit(self._target.put, writer))
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
