"""From a source to shards: encode, hash and write beside each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cachelayer.arrayrecord.writer import ShardStats, ShardWriter
from cachelayer.building.cuts import ShardCutter
from cachelayer.building.encode import Encoder
from cachelayer.building.options import BuildOptions
from cachelayer.building.source import Batch, Elements, Source
from cachelayer.codec import Frames, codec_for
from cachelayer.elements.infer import from_elements
from cachelayer.elements.tree import Tree
from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.progress import Progress
from cachelayer.versions.shard_table import ShardFile

_BATCHES_IN_FLIGHT = 4
_LOOK_AHEAD = 10_000
_DELIVERIES = 4
_SHARDS_IN_FLIGHT = 6


Deliver = Callable[[Path], None]
"""Takes a finished shard on, by its path; its index lies beside it."""


@dataclass(frozen=True)
class Built:
    """What a build made.

    Args:
        codec: name of the codec.
        element_spec: the spec of the elements, with leaves marked nullable that are None in some.
        shards: the shards, durable on disk.
        left_out: for the provenance, what was left out.
    """

    codec: str
    element_spec: Tree
    shards: list[ShardFile]
    left_out: Mapping[str, Any]


def build(
    source: Source,
    folder: Path,
    attempt: str,
    options: BuildOptions,
    progress: Progress,
    deliver: Deliver | None = None,
) -> Built:
    """Write the elements of a source into shards.

    Args:
        source: what to write.
        folder: an existing folder for the shards.
        attempt: the build attempt that the folder belongs to.
        options: how; an element spec in them goes before the source's.
        progress: is told of what was written.
        deliver: is called with each finished shard, beside the writing of later ones, and may raise.

    Raises:
        ElementError: for an element that does not fit the spec.
        SourceError: where the source fails.
        StorageError: where the disk is full or fails.
    """
    batches = source.batches(options.max_records)
    spec = options.element_spec if options.element_spec is not None else source.element_spec
    if spec is None:
        spec, batches = _inferred(batches)
    codec = codec_for(spec)
    encoder = Encoder(codec, options.on_error)
    with _ShardPipeline(folder, attempt, options, progress, deliver) as pipeline:
        for batch in batches:
            pipeline.write(encoder.encode(batch))
        shards = pipeline.finish()
    encoder.warn_of_left_out()
    return Built(codec.name, encoder.element_spec, shards, encoder.left_out)


def _inferred(batches: Iterator[Batch]) -> tuple[Tree, Iterator[Batch]]:
    """The spec of the first elements, and all batches again."""
    seen: list[Batch] = []
    elements: list[Any] = []
    for batch in batches:
        seen.append(batch)
        if not isinstance(batch, Elements):
            raise InvalidArgumentError("a source without an element spec gives elements, not batches")
        elements.extend(batch.items)
        try:
            return from_elements(elements), chain(seen, batches)
        except ElementError as error:
            # None so far: a later element may tell what the leaf is.
            if error.record is not None or len(elements) >= _LOOK_AHEAD:
                raise
    return (from_elements(elements) if elements else None), iter(seen)


def _deliver(deliver: Deliver, shard: Path, finished: Future[ShardStats]) -> None:
    finished.result()
    deliver(shard)


class _ShardPipeline:
    """Writes shards in the caller's thread; hashes records, and finishes shards, in threads beside it.

    ``ArrayRecordWriter`` holds the interpreter lock while it writes, so that a thread for it would only make the source
    wait for the lock. Hashing and bringing files to the disk let the lock go.
    """

    def __init__(
        self, folder: Path, attempt: str, options: BuildOptions, progress: Progress, deliver: Deliver | None
    ) -> None:
        self._folder = folder
        self._attempt = attempt
        self._compression = options.compression
        self._cutter = ShardCutter(options.shard_bytes)
        self._progress = progress
        self._hashing = ThreadPoolExecutor(1, "cachelayer-hash")
        self._finishing = ThreadPoolExecutor(1, "cachelayer-finish")
        self._delivering = ThreadPoolExecutor(_DELIVERIES, "cachelayer-deliver")
        self._deliver = deliver
        self._delivered: deque[Future[None]] = deque()
        self._hashes: deque[Future[None]] = deque()
        self._writer: ShardWriter | None = None
        self._shards: list[Future[ShardStats]] = []

    def __enter__(self) -> _ShardPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        for executor in (self._hashing, self._finishing, self._delivering):
            executor.shutdown(wait=True, cancel_futures=True)
        if self._writer is not None:
            # Reached with a writer only after a failure, which is the error to be shown.
            with suppress(CacheLayerError):
                self._writer.close()

    def write(self, frames: Frames) -> None:
        """Append records; errors of earlier ones may be raised here."""
        for begins, rows in self._cutter.cut(frames.lengths):
            if begins or self._writer is None:
                self._finish_shard()
                path = self._folder / Path(paths.shard(self._attempt, len(self._shards))).name
                self._writer = ShardWriter(path, Path(paths.index_of(str(path))), self._compression)
            piece = frames[rows]
            self._hashes.append(self._hashing.submit(self._writer.hash, piece))
            self._writer.write(piece)
            self._progress.update(len(piece), int(piece.lengths.sum()))
        while len(self._hashes) > _BATCHES_IN_FLIGHT:
            self._hashes.popleft().result()

    def _finish_shard(self) -> None:
        writer = self._writer
        if writer is None:
            return
        last_hash = self._hashes[-1]

        def finish() -> ShardStats:
            last_hash.result()
            return writer.finish()

        finished = self._finishing.submit(finish)
        self._shards.append(finished)
        self._writer = None
        if self._deliver is not None:
            self._delivered.append(self._delivering.submit(_deliver, self._deliver, writer.path, finished))
            # Shards that wait to be delivered take room on the disk.
            while len(self._delivered) > _SHARDS_IN_FLIGHT:
                self._delivered.popleft().result()

    def finish(self) -> list[ShardFile]:
        """The shards, all of them durable."""
        self._finish_shard()
        stats = [future.result() for future in self._shards]
        for future in self._delivered:
            future.result()
        return [ShardFile(self._attempt, number, stat) for number, stat in enumerate(stats)]
