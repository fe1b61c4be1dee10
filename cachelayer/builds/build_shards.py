"""Write the elements of a source into shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, count, islice, takewhile
from typing import Any, Self

from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.batches import Batch, ElementBatch, RowBatch, counted
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.encode import Encoder, LeftOut, encode_with_workers, marked
from cachelayer.builds.shard_pipeline import ShardNotes, ShardPipeline, ShardWriters, Uploads
from cachelayer.builds.source import Seekable, Skippable, Source, from_record
from cachelayer.builds.staging import Stage
from cachelayer.errors import InvalidArgumentError
from cachelayer.progress import Progress
from cachelayer.records import spec_json
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import from_elements
from cachelayer.records.memory import keep_freed_memory
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import Finished

_LOOK_AHEAD = 10_000


@dataclass(frozen=True)
class Built:
    """The result of a build, before it is published.

    Args:
        codec: name of the codec.
        spec: the spec that the elements were encoded with.
        nullable: the numbers of its leaves that are None in some element.
        shards: the shards, durable.
        left_out: the elements that were left out.
    """

    codec: str
    spec: Tree
    nullable: frozenset[int]
    shards: list[ShardFile]
    left_out: LeftOut

    @property
    def element_spec(self) -> Tree:
        """The spec of the elements; leaves that are None in some element are nullable."""
        return marked(self.spec, self.nullable)


@dataclass(frozen=True)
class EarlierShards:
    """The shards that an interrupted attempt wrote: this build compares them instead of writing them again.

    Args:
        shards: its shards, by their numbers in the build.
        element_spec: the spec of their elements, if it is known.
        nullable: the numbers of the leaves that were None in some element.
    """

    shards: Mapping[int, ShardFile] = field(default_factory=dict)
    element_spec: Tree | None = None
    nullable: frozenset[int] = frozenset()

    @classmethod
    def of(cls, finished: Finished) -> Self:
        """Return what a build in one piece has finished."""
        shards = {number: part.shards[0] for number, part in finished.parts.items()}
        return cls(shards, spec_json.from_json(finished.element_spec), finished.nullable)

    @property
    def whole(self) -> list[ShardFile]:
        """The shards that are finished without a gap."""
        return [self.shards[number] for number in takewhile(self.shards.__contains__, count())]


NOTHING = EarlierShards()


def build(
    source: Source,
    stage: Stage,
    attempt: str,
    options: BuildOptions,
    progress: Progress,
    *,
    earlier: EarlierShards = NOTHING,
    notes: ShardNotes | None = None,
    first_record: int = 0,
    files: int = 0,
) -> Built:
    """Write the elements of a source into shards.

    Args:
        source: the source.
        stage: where to write them.
        attempt: the build attempt that the shards belong to.
        options: the options; an element spec among them overrides the source's.
        progress: counts what was written.
        earlier: the shards that an interrupted attempt wrote.
        notes: notes each finished shard; None if the build is not to be resumed.
        first_record: the number of the first element in error messages.
        files: the number in the name of the first shard.
    """
    keep_freed_memory()
    first_shard, start = _start(source, options, earlier)

    def batches() -> Iterator[Batch]:
        begun = from_record(source, start) if start and isinstance(source, (Seekable, Skippable)) else source
        limit = None if options.max_records is None else options.max_records - start
        return progress.waiting_for(
            "the source", counted(begun.batches(limit), begun.length, first_record + start, limit)
        )

    known = (options.element_spec, source.element_spec, earlier.element_spec)
    spec = next((each for each in known if each is not None), None)
    looked_at: Iterator[Batch] | None = None
    if spec is None:
        spec, looked_at = infer_spec(batches())
    codec = codec_for(spec)
    encoder = Encoder(codec, options.on_error, first_record + start, earlier.nullable)
    if notes is not None:
        notes.expect_shards(spec)
    progress.skip(start)
    cut = options.compression, options.shard_bytes, earlier.shards, first_shard, files
    shards = ShardWriters(stage.folder, attempt, spec, *cut)
    uploads = Uploads(stage.uploader, notes, options.shard_bytes)
    with ExitStack() as stack:
        pipeline = stack.enter_context(ShardPipeline(shards, progress, uploads))
        length = options.expected(source.length)
        frames: Iterator[Frames]
        if options.workers > 1 and isinstance(source, Seekable) and length is not None and not _is_quick(source):
            # The workers draw the first elements again, from which the spec was inferred.
            progress.drawn = 0
            blocks = encode_with_workers(source, spec, options.on_error, options.workers, start, length)
            stack.callback(blocks.close)
            waited = progress.waiting_for("the worker processes", blocks)
            frames = (each for block in waited for each in encoder.take(block))
        else:
            _warn_of_one_process(source, options)
            frames = map(encoder.encode, batches() if looked_at is None else looked_at)
        for each in frames:
            pipeline.write(each, encoder.nullable)
        written = pipeline.finish(encoder.nullable)
    return Built(codec.name, spec, encoder.nullable, written, encoder.left_out)


def _is_quick(source: Source) -> bool:
    """Return whether one process makes the elements of a source as quickly as several would."""
    return isinstance(source, ArraySource)


def _warn_of_one_process(source: Source, options: BuildOptions) -> None:
    if options.workers > 1 and not _is_quick(source):
        warn(
            f"workers={options.workers}: a source of {source.kind} cannot be divided, so one process makes and writes "
            "its elements. More processes can work on a sequence with a length, on most datasets, and on what "
            "cachelayer.sharded(function, count) returns"
        )


def _start(source: Source, options: BuildOptions, earlier: EarlierShards) -> tuple[int, int]:
    """Return the shard and record to begin with, after the shards that are done without a gap.

    A source that can begin at any record was compared with them. One that can skip records once is compared with the
    last of them, which shows whether the source repeats itself; any other one with all of them.
    """
    done = earlier.whole
    # The numbers in the source of elements that were left out are unknown.
    if options.on_error == "skip" or not isinstance(source, (Seekable, Skippable)):
        return 0, 0
    if not isinstance(source, Seekable):
        done = done[:-1]
    return len(done), sum(shard.stats.records for shard in done)


def infer_spec(batches: Iterator[Batch]) -> tuple[Tree, Iterator[Batch]]:
    """Return the spec of the first elements, None if there are none, and an iterator over all batches."""
    seen: list[Batch] = []

    def elements() -> Iterator[Any]:
        looked_at = 0
        for batch in batches:
            batch = batch.elements() if isinstance(batch, RowBatch) else batch
            seen.append(batch)
            if not isinstance(batch, ElementBatch):
                raise InvalidArgumentError("a source without an element spec must yield elements, not batches")
            yield from batch.items
            # None so far: a later element may show what the leaf is.
            looked_at += len(batch)
            if looked_at >= _LOOK_AHEAD:
                return

    found = elements()
    first = list(islice(found, 1))
    spec = from_elements(chain(first, found)) if first else None
    return spec, chain(seen, batches)
