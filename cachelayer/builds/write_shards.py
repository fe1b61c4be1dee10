"""Write the elements of a source into shards: of one that begins at the beginning, or of any parts of a divided one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import reduce
from itertools import count, groupby, takewhile
from operator import itemgetter

from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.batches import counted
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.encode import Encoder, encode_with_workers
from cachelayer.builds.parts import Part, Parts, Ranges, errors_of, infer_spec
from cachelayer.builds.shard_pipeline import Note, ShardPipeline
from cachelayer.builds.shard_target import ShardTarget
from cachelayer.builds.source import Skippable, Source
from cachelayer.errors import SourceError
from cachelayer.progress import Progress
from cachelayer.records.codec import codec_for
from cachelayer.records.memory import keep_freed_memory
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn
from cachelayer.versions.notes import Notes, PartResult

_LOOK_AHEAD = 10_000


def write_parts(
    parts: Parts,
    numbers: Iterable[int],
    target: ShardTarget,
    options: BuildOptions,
    progress: Progress,
    note: Note,
) -> None:
    """Write parts of a source, in this order, and note each.

    Args:
        parts: the source.
        numbers: the numbers of the parts.
        target: where shards go.
        options: the options, with the element spec.
        progress: counts what is written.
        note: notes a finished part.
    """
    keep_freed_memory()
    how = options.element_spec, options.compression, options.shard_bytes
    # One process makes the rows of arrays as quickly as several would.
    if options.workers > 1 and isinstance(parts, Ranges) and not isinstance(parts.source, ArraySource):
        encoded = _encoded_by_workers(parts, numbers, options, progress)
    else:
        encoded = _encoded_here(parts, numbers, options, progress)
    with ShardPipeline(target, *how, progress, note) as pipeline, closing(encoded) as sequence:
        for number, part, encoder, frames in sequence:
            with errors_of(part):
                pipeline.write(frames)
            done = encoder.result
            if part.name:
                done = replace(done, first_left_out=tuple(f"{part.name}: {text}" for text in done.first_left_out))
            pipeline.end_part(number, done)
        pipeline.finish()


_Encoded = Generator[tuple[int, Part, Encoder, Iterator[Frames]], None, None]


def _encoded_here(parts: Parts, numbers: Iterable[int], options: BuildOptions, progress: Progress) -> _Encoded:
    """Yield each part with its encoder, and its records as they are made in this process."""
    for number in numbers:
        part = parts.part(number)
        encoder = Encoder(codec_for(options.element_spec), options.on_error, part.first)
        batches = counted(part.source.batches(part.records), part.source.length, part.first, part.records)
        yield number, part, encoder, map(encoder.encode, progress.waiting_for("the source", batches))


def _encoded_by_workers(parts: Ranges, numbers: Iterable[int], options: BuildOptions, progress: Progress) -> _Encoded:
    """Yield each part with its encoder, and its records as worker processes make them."""
    ranges = {number: parts.range(number) for number in numbers}
    chunks = encode_with_workers(parts.source, options.element_spec, options.on_error, options.workers, ranges)
    with closing(chunks):
        waited = progress.waiting_for("the worker processes", chunks)
        for number, group in groupby(waited, itemgetter(0)):
            part = parts.part(number)
            encoder = Encoder(codec_for(options.element_spec), options.on_error, part.first)
            yield number, part, encoder, (frames for _, chunk in group for frames in encoder.take(chunk))


class Noting:
    """Notes the parts that this process finishes. The first waits for the second: small versions need no notes.

    Args:
        notes: the notes of the build.
        is_kept: whether anybody may go on after this build.
    """

    def __init__(self, notes: Notes, *, is_kept: bool) -> None:
        self.notes = notes
        self._is_kept = is_kept
        self._spec: Tree | None = None
        self._noted = 0
        self.parts: dict[int, PartResult] = {}

    def begin(self, spec: Tree) -> None:
        """Set the spec of the elements."""
        self._spec = spec

    def add(self, number: int, part: PartResult) -> None:
        """Note a part."""
        self.parts[number] = part
        if not self._is_kept or len(self.parts) == 1:
            return
        if not self._noted:
            self.notes.begin(self._spec)
        for each in list(self.parts)[self._noted :]:
            self.notes.add(each, self.parts[each])
            self._noted += 1


def write_whole(
    source: Source,
    target: ShardTarget,
    options: BuildOptions,
    progress: Progress,
    noting: Noting,
    finished: Mapping[int, PartResult],
) -> tuple[Tree, PartResult]:
    """Write a source that is not divided. Each of its shards is noted as a part.

    A source that can leave out its first records goes on before the last shard that is noted. This shard is made again
    to see that the source repeats itself.

    Args:
        source: the source.
        target, options, progress: see :func:`write_parts`; an element spec among the options overrides the source's.
        noting: notes finished shards.
        finished: the shards that are noted, by number, each as a part.

    Returns:
        The spec of the elements, and the result.
    """
    keep_freed_memory()
    _warn_of_one_process(source, options)
    done = _unbroken(finished) if isinstance(source, Skippable) and options.on_error == "raise" else []
    done, compared = done[:-1], done[-1:]
    start = sum(part.records for part in done)
    begun = source.rest(start) if done and isinstance(source, Skippable) else source
    limit = None if options.max_records is None else options.max_records - start
    batches = progress.waiting_for("the source", counted(begun.batches(limit), begun.length, start, limit))
    known = (options.element_spec, source.element_spec, noting.notes.spec() if done else None)
    spec = next((each for each in known if each is not None), None)
    if spec is None:
        spec, batches = infer_spec(batches)
    before = reduce(PartResult.then, done, PartResult())
    encoder = Encoder(codec_for(spec), options.on_error, start)
    noting.begin(spec)
    progress.skip(start)
    parts = dict(enumerate(done))

    def add(number: int, part: PartResult) -> None:
        if compared and number == len(done) and not _have_same_records(part, compared[0]):
            raise SourceError(_CHANGED)
        previous = parts[number - 1].shards[0].stats.sha256 if number else ""
        parts[number] = PartResult(part.shards, part.nullable, previous_sha256=previous)
        noting.add(number, parts[number])

    numbers = count(len(done))
    with ShardPipeline(target, spec, options.compression, options.shard_bytes, progress, add) as pipeline:

        def end_shard() -> None:
            pipeline.end_shard(next(numbers), PartResult((), before.nullable | encoder.result.nullable))

        pipeline.write(map(encoder.encode, batches), end_shard)
        if pipeline.has_begun:
            end_shard()
        pipeline.finish()
    if compared and len(done) not in parts:
        raise SourceError(_CHANGED)
    shards = [shard for number in sorted(parts) for shard in parts[number].shards]
    result = replace(encoder.result, nullable=before.nullable | encoder.result.nullable)
    return spec, replace(result, shards=tuple(shards))


def _unbroken(parts: Mapping[int, PartResult]) -> list[PartResult]:
    """Return the shards from the first on that one build, or builds of the same records, can have written."""
    found: list[PartResult] = []
    for number in takewhile(parts.__contains__, count()):
        part = parts[number]
        if len(part.shards) != 1 or part.previous_sha256 != (found[-1].shards[0].stats.sha256 if found else ""):
            break
        found.append(part)
    return found


def _have_same_records(one: PartResult, other: PartResult) -> bool:
    return [shard.stats.sha256 for shard in one.shards] == [shard.stats.sha256 for shard in other.shards]


_CHANGED = (
    "the source has changed: the interrupted build read other records. A source that does not repeat itself cannot be "
    "resumed: build with resume=False, or make it repeat itself, for example with a fixed seed"
)


def _warn_of_one_process(source: Source, options: BuildOptions) -> None:
    if options.workers > 1 and source.length != 0:
        warn(
            f"workers={options.workers}: a source of {source.kind} cannot be divided, so one process makes and writes "
            "its elements. More processes can work on a sequence with a length, on most datasets, and on what "
            "cachelayer.sharded(function, count) returns"
        )
