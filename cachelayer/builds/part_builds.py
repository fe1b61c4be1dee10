"""Build parts of a version: in this process, or with an engine; all that are missing, or those that a host takes.

::

    note of a part       it is finished, and its shards are in the store

    this process         PartBuilder.build    writes parts one after another, through one pipeline: write_parts
    an engine            PartBuilder.build    runs a PartTask on the number of each part: write_parts
    one builder          build_parts          builds the parts without notes
    hosts together       hosts.py             each takes parts without notes, until all have some

Only the note of a part counts: a process or a node may die after it has put the note, and an engine need not return
results. All who build parts write them by one function::

    part's batches ──Batch──> Encoder.encode ──Frames──> ShardPipeline.write_part ──> shards in the store, then a note

The element spec must be known before the first record is encoded. The plan of a source that can be divided has it; for
other sources it is inferred from the first elements. With ``workers``, other processes read and encode, and this one
writes.
"""

from __future__ import annotations

import platform
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, groupby
from operator import itemgetter
from typing import Self

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import NOT_RESUMABLE, BuildPlan
from cachelayer.builds.element_specs import needs_elements, spec_of_batches
from cachelayer.builds.encode import Encoder, RangeEncoder, encode_with_workers
from cachelayer.builds.parts import Ranges, SourceParts, Whole, part_in_errors
from cachelayer.builds.shard_pipeline import ShardPipeline, ShardTarget, shard_target
from cachelayer.builds.source import Part, Parts
from cachelayer.engines import Engine
from cachelayer.errors import InvalidTypeError, SourceError, StorageError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.provenance.stored_values import differences
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import Frames
from cachelayer.support.logs import logger_of
from cachelayer.support.progress import current, notice
from cachelayer.support.user_warnings import warn
from cachelayer.versions.notes import Notes, PartResult, read_part
from cachelayer.versions.publish import refuse_if_collected, refuse_if_taken
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardTable

_log = logger_of("builds")


def write_parts(parts: Parts, part_numbers: Iterable[int], pipeline: ShardPipeline, options: BuildOptions) -> Codec:
    """Write parts of a source, in this order, and return the codec of their records.

    A number is drawn when its part is about to be read.
    """
    codec = None if isinstance(parts, Whole) else codec_for(options.element_spec)
    if (
        codec is not None
        and options.workers > 1
        and isinstance(parts, Ranges)
        and parts.source.workers_make == "elements"
    ):
        encoded = _encoded_by_workers(parts, part_numbers, codec, options)
    else:
        encoded = _encoded_here(parts, part_numbers, codec, options)
    with closing(encoded) as encoded_parts:
        for number, part, encoder, frames in encoded_parts:
            codec = encoder.codec
            with part_in_errors(part):
                pipeline.write_part(number, encoder, frames)
    assert codec is not None  # noqa: S101 - a whole source is one part
    return codec


_EncodedPart = tuple[int, Part, Encoder, Iterator[Frames]]
"""The number of a part, the part, and its records, which the encoder makes while they are iterated."""


def _encoded_here(
    parts: Parts, part_numbers: Iterable[int], codec: Codec | None, options: BuildOptions
) -> Generator[_EncodedPart, None, None]:
    """Yield each part, whose records this process makes. Without a codec, the first elements decide it."""
    for number in part_numbers:
        part = parts.part(number)
        batches = current().waiting_for("the source", part.source.batches(part.first, part.stop))
        if codec is None:
            spec = options.element_spec
            if part.source.element_spec is None and needs_elements(spec, options):
                spec, batches = spec_of_batches(batches, spec, as_json=part.source.as_json)
            codec = codec_for(spec)
        encoder = Encoder(codec, options.checks, part.first, part.source.place, part.name)
        yield number, part, encoder, map(encoder.encode, batches)


def _encoded_by_workers(
    parts: Ranges, part_numbers: Iterable[int], codec: Codec, options: BuildOptions
) -> Generator[_EncodedPart, None, None]:
    """Yield each part, whose records worker processes make, some ranges of records at a time."""
    encode = RangeEncoder(parts.source, codec, options.checks)
    encoded = encode_with_workers(encode, options.workers, ((each, parts.range(each)) for each in part_numbers))
    with closing(encoded):
        waited = current().waiting_for("the worker processes", encoded)
        for number, encoded_ranges in groupby(waited, itemgetter(0)):
            part = parts.part(number)
            encoder = Encoder(codec, options.checks, part.first, part.source.place)
            frames = chain.from_iterable(encoder.take(encoded_range) for _, encoded_range in encoded_ranges)
            yield number, part, encoder, frames


@dataclass(frozen=True)
class BuiltPart:
    """A part that a :class:`PartTask` has built."""

    number: int
    result: PartResult


@dataclass(frozen=True)
class PartTask:
    """Builds one part of a version for each call, in any process to which it is pickled.

    Parts may be built twice, even at the same time: the shards have the same names, and the notes say the same.
    """

    notes: Notes
    copies: CacheFolder | None
    """Keeps local copies of the shards; None for none."""
    generation: int
    """The generation of the log when the build began."""
    parts: Parts
    options: BuildOptions
    """The options, with the element spec and without what only the process needs that publishes."""

    @classmethod
    def of(cls, plan: BuildPlan, target: ShardTarget) -> Self:
        # An engine runs as many tasks at once as it has room for: each is one process.
        options = replace(plan.options, annotations={}, engine=None, workers=1)
        return cls(plan.notes, plan.request.copies, target.generation, plan.parts, options)

    def __call__(self, number: int) -> BuiltPart:
        """Build a part and note it."""
        try:
            with (
                shard_target(self.notes.dataset, self.copies, self.generation, self.notes.shards_in) as target,
                ShardPipeline(target, target.parts, self.options, self.notes) as pipeline,
            ):
                write_parts(self.parts, [number], pipeline, self.options)
                return BuiltPart(number, pipeline.finish()[number])
        except StorageError as error:
            raise StorageError(f"{self.describe(number)}, on host {platform.node()}: {error}") from error

    def describe(self, number: int) -> str:
        return self.parts.describe(number)


@dataclass
class PartBuilder:
    """Builds parts in this process, through one pipeline, or with the engine of the plan."""

    plan: BuildPlan
    target: ShardTarget
    pipeline: ShardPipeline
    codec: Codec | None = None
    """The codec of the parts that were built here last."""

    def build(self, part_numbers: Iterable[int]) -> dict[int, PartResult]:
        """Build parts, and return the results by number: those that an engine returns."""
        plan = self.plan
        if plan.engine is not None:
            return _run_tasks(PartTask.of(plan, self.target), plan.engine, iter(part_numbers))
        self.codec = write_parts(plan.parts, part_numbers, self.pipeline, plan.options)
        return self.pipeline.finish()

    def shard_set(self, result: PartResult) -> ShardSet:
        """Return the shards of all parts, those that other processes built too."""
        codec = self.codec or codec_for(self.plan.options.element_spec)
        return ShardSet.of(codec.name, codec.schema.marked(result.nullable), ShardTable(result.shards))


def _run_tasks(task: PartTask, engine: Engine, part_numbers: Iterable[int]) -> dict[int, PartResult]:
    """Run a task on parts, and return the results that the engine yields."""
    name = type(engine).__name__
    results = engine.run(task, part_numbers)
    if not isinstance(results, Iterable):
        raise InvalidTypeError(f"engine {name}: run returned a {type(results).__name__}: yield the results of the task")
    built = {}
    for done in results:
        if not isinstance(done, BuiltPart):
            raise InvalidTypeError(
                f"engine {name}: run yielded a {type(done).__name__}: yield what the task returns, as it is, or nothing"
            )
        built[done.number] = done.result
        current().part_done(done.result.records, done.result.nbytes)
    return built


def build_parts(builder: PartBuilder) -> PartResult:
    """Build the parts that no interrupted build has finished, and return the result of all parts together."""
    plan = builder.plan
    parts = plan.parts
    finished = _finished_before(plan) if plan.options.resume and plan.has_notes else {}
    current().parts = (len(finished), parts.count)
    if plan.has_notes:
        plan.notes.begin()
    # An engine may end without some parts, such as those of a node that died. As long as it gets on, it runs again.
    while missing := [number for number in range(parts.count) if number not in finished]:
        before = len(finished)
        finished |= builder.build(missing)
        if len(finished) < parts.count:
            finished = plan.notes.finished(plan.request.log, finished)
        current().parts = (len(finished), parts.count)
        if len(finished) == before:
            raise _not_built(plan, missing[0])
    return joined(parts, finished)


def _finished_before(plan: BuildPlan) -> dict[int, PartResult]:
    """Return the parts that other builds with the same plan have finished, and say so."""
    try:
        finished = plan.notes.finished(plan.request.log)
        records = sum(part.records for part in finished.values())
        current().skip(records)
        say_what_is_finished(plan, f"{records:,} records" if finished else "")
    except StorageError as error:
        # A user may have the right to put files, and not to list them: that is enough to build.
        warn(
            f"cannot see whether there is an interrupted build to resume, so all of it is built anew: {error}",
            logger="builds",
        )
        return {}
    return finished


def say_what_is_finished(plan: BuildPlan, finished: str, *, joins: bool = False) -> None:
    """Say how much builds with the same plan have finished; if nothing, why an interrupted build cannot be resumed."""
    name = plan.request.name
    notes = plan.notes
    if not finished:
        interrupted = [facts for facts in notes.other_plans().values() if NOT_RESUMABLE not in facts]
        if interrupted:
            warn(
                f"{name} is built from its beginning: an interrupted build cannot be resumed: "
                f"{'; '.join(differences(interrupted[0], plan.facts))}",
                logger="builds",
            )
        return
    text = f"{name}: resuming after {finished} of an interrupted build"
    if joins:
        text = f"{name}: other hosts have built {finished}, and this one joins them"
    _log.info("%(progress)s", {"progress": text, "version": name})
    notice(text, plan.options.progress)
    if notes.has_other_times and not joins:
        warn(
            f"{text}. Its files were written at other times: their names, their sizes and a few records are the "
            "same. If they are no copies, and changed, pass resume=False",
            logger="builds",
        )


def joined(parts: Parts, results: Mapping[int, PartResult]) -> PartResult:
    """Return the result of all parts together, whose shards are in the order of the parts."""
    current().parts = (len(results), parts.count)
    if isinstance(parts, SourceParts) and parts.kind == "part":
        _warn_of_equal_parts(parts, results)
    return reduce(PartResult.then, [results[number] for number in range(parts.count)], PartResult())


def _warn_of_equal_parts(parts: SourceParts, results: Mapping[int, PartResult]) -> None:
    """Warn if two parts have the same records: the user's function may not look at the number of the part."""
    number_of: dict[tuple[str, ...], int] = {}
    for number in range(parts.count):
        result = results[number]
        other = number_of.setdefault(tuple(shard.stats.sha256 for shard in result.shards), number)
        if other != number and result.records > 1:
            warn(
                f"{parts.describe(other)} and {parts.describe(number)} have the same {result.records} records: make "
                "the elements of a part from its number, and each element in one part only",
                logger="builds",
            )
            return


def _not_built(plan: BuildPlan, number: int) -> SourceError:
    """Return the error of an engine that has not built a part; raise another if its files, or the notes, are gone."""
    request = plan.request
    # The process that publishes deletes the notes, so a part may seem unfinished because all of them are.
    refuse_if_taken(request.log, request.version)
    part = read_part(plan.notes.folder, number)
    if part is not None:
        refuse_if_collected(request.log, request.log.head(), request.version, [shard.file for shard in part.shards])
    return SourceError(f"the engine ended without {plan.parts.describe(number)}")
