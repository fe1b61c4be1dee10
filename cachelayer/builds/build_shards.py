"""Write the elements of a source into shards."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any, Protocol, Self

from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.batches import Batch, Elements, Rows, counted
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.encode import Encoder, LeftOut, marked
from cachelayer.builds.encode_workers import Workers
from cachelayer.builds.shard_pipeline import ShardPipeline, Shards
from cachelayer.builds.slow_records import Draw, Kept, KeptNotes, SlowRecords
from cachelayer.builds.source import Seekable, Skippable, Source, from_record
from cachelayer.builds.staging import Stage
from cachelayer.builds.uploads import ShardNotes, Uploads
from cachelayer.builds.writer_process import WritingProcess
from cachelayer.errors import InvalidArgumentError
from cachelayer.progress.meter import Progress
from cachelayer.records import spec_json
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import from_elements
from cachelayer.records.memory import keep_freed_memory
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn
from cachelayer.versions.kept_records import KeptRecords
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
        kept: the records that it kept beside its shards.
    """

    shards: Mapping[int, ShardFile] = field(default_factory=dict)
    element_spec: Tree | None = None
    nullable: frozenset[int] = frozenset()
    kept: Kept = field(default_factory=Kept)

    @classmethod
    def of(cls, finished: Finished, records: KeptRecords) -> Self:
        """Return what a build in one piece has finished; ``records`` reads what it kept beside its shards."""
        shards = {number: part.shards[0] for number, part in finished.parts.items()}
        kept = Kept(records, finished.kept)
        return cls(shards, spec_json.from_json(finished.element_spec), finished.nullable, kept)

    @property
    def records(self) -> int:
        """Number of records in the shards that are finished without a gap."""
        return sum(self.shards[number].stats.records for number in range(whole_shards(self.shards)))


NOTHING = EarlierShards()


class Notes(ShardNotes, KeptNotes, Protocol):
    """Notes what a build finishes, so that another build can resume it."""

    def expect_shards(self, spec: Tree) -> None:
        """Set the element spec of the shards that follow."""


def build(
    source: Source,
    stage: Stage,
    attempt: str,
    options: BuildOptions,
    progress: Progress,
    *,
    earlier: EarlierShards = NOTHING,
    notes: Notes | None = None,
    first_record: int = 0,
    files: int = 0,
    stores_lengths: bool = True,
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
        stores_lengths: whether to write a file of lengths beside each shard.

    Raises:
        ElementError: for an element that does not fit the spec.
        SourceError: if the source fails, or does not repeat what it gave to the earlier attempt.
        StorageError: if the disk is full or fails.
    """
    keep_freed_memory()
    first_shard, start = _start(source, options, earlier)

    def batches(first: int, stop: int | None) -> Iterator[Batch]:
        begun = from_record(source, first) if first and isinstance(source, (Seekable, Skippable)) else source
        limit = None if stop is None else stop - first
        return progress.waiting_for(
            "the source", counted(begun.batches(limit), begun.length, first_record + first, limit)
        )

    known = (options.element_spec, source.element_spec, earlier.element_spec)
    spec = next((each for each in known if each is not None), None)
    looked_at: Iterator[Batch] | None = None
    if spec is None:
        spec, looked_at = infer_spec(batches(start, options.max_records))
    codec = codec_for(spec)
    encoder = Encoder(codec, options.on_error, first_record + start, earlier.nullable)
    if notes is not None:
        notes.expect_shards(spec)
    progress.skip(start)
    cut = options.compression, options.shard_bytes, earlier.shards, first_shard, files
    shards = Shards(stage.folder, attempt, spec, *cut, stores_lengths)
    uploads = Uploads(stage.uploader, notes, options.shard_bytes)

    def drawn_here(first: int, stop: int | None) -> Iterator[Frames]:
        return map(encoder.encode, batches(first, stop) if looked_at is None else looked_at)

    with ExitStack() as stack:
        pipeline: ShardPipeline | WritingProcess
        draw: Draw = drawn_here
        if options.workers == 1 or isinstance(source, ArraySource):
            pipeline = stack.enter_context(ShardPipeline(shards, progress, uploads))
        elif isinstance(source, Seekable) and (length := options.expected(source.length)) is not None:
            pipeline = stack.enter_context(ShardPipeline(shards, progress, uploads))
            # The workers draw the first elements again, from which the spec was inferred.
            progress.drawn = 0
            workers = stack.enter_context(Workers(source, spec, options.on_error, options.workers))
            draw = _drawn_by(workers, encoder, length, progress)
        else:
            _warn_of_one_process(source, options)
            pipeline = stack.enter_context(WritingProcess(shards, progress, uploads))
        if notes is not None and can_take_up(source, options):
            draw = SlowRecords(notes, lambda: encoder.nullable).watching(draw)
        for frames in earlier.kept.with_drawn(draw, encoder.take, start, options.max_records):
            pipeline.write(frames, encoder.nullable)
        written = pipeline.finish(encoder.nullable)
    return Built(codec.name, spec, encoder.nullable, written, encoder.left_out)


def _drawn_by(workers: Workers, encoder: Encoder, length: int, progress: Progress) -> Draw:
    """Return a function that has worker processes make records of a source of this length."""

    def draw(first: int, stop: int | None) -> Iterator[Frames]:
        blocks = workers.blocks(first, length if stop is None else min(stop, length))
        waited = progress.waiting_for("the worker processes", blocks)
        return (frames for block in waited for frames in encoder.take(block))

    return draw


def can_take_up(source: Source, options: BuildOptions) -> bool:
    """Return whether a resumed build can go on in the middle of a shard: records are known by their numbers."""
    return isinstance(source, Seekable) and options.on_error == "raise"


def _warn_of_one_process(source: Source, options: BuildOptions) -> None:
    warn(
        f"workers={options.workers}: a source of {source.kind} cannot be divided: one process makes its elements, and "
        "another writes them. More processes can work on a sequence with a length, on most datasets, and on what "
        "cachelayer.sharded(function, count) returns"
    )


def _start(source: Source, options: BuildOptions, earlier: EarlierShards) -> tuple[int, int]:
    """Return the shard and record to begin with: the last shard that is done without a gap, if the source can seek.

    That shard is compared with the source, which shows whether the source repeats itself. If records were kept beside
    it, the source is slow: then this begins after it, and some of its records were compared before.
    """
    done = earlier.shards
    whole = whole_shards(done)
    if earlier.kept.pieces:
        return whole, earlier.records
    # The numbers in the source of elements that were left out are unknown.
    if whole < 2 or options.on_error == "skip" or not isinstance(source, (Seekable, Skippable)):
        return 0, 0
    return whole - 1, sum(done[number].stats.records for number in range(whole - 1))


def whole_shards(done: Container[int]) -> int:
    """Return how many shards are done without a gap."""
    return next(number for number in count() if number not in done)


def infer_spec(batches: Iterator[Batch]) -> tuple[Tree, Iterator[Batch]]:
    """Return the spec of the first elements, None if there are none, and an iterator over all batches."""
    seen: list[Batch] = []

    def elements() -> Iterator[Any]:
        looked_at = 0
        for batch in batches:
            batch = batch.elements() if isinstance(batch, Rows) else batch
            seen.append(batch)
            if not isinstance(batch, Elements):
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
