"""Build the parts of a version in any processes: of this host, of a cluster, or of several hosts together."""

from __future__ import annotations

import platform
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

from cachelayer.arguments import integer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import NOT_RESUMABLE, BuildPlan
from cachelayer.builds.encode import Encoder, encode_with_workers
from cachelayer.builds.parts import Part, Parts, Ranges, part_in_errors
from cachelayer.builds.shard_pipeline import ShardPipeline, ShardTarget, shard_target
from cachelayer.engines import Engine
from cachelayer.engines.engine import Here
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError, StorageError
from cachelayer.logs import logger_of
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.progress import Waiting, current, notice
from cachelayer.provenance.stored_values import Wording, differences
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.memory import keep_freed_memory
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, Claims
from cachelayer.versions.log import Log
from cachelayer.versions.notes import Notes, PartResult, read_part
from cachelayer.versions.publish import absent_files, lost_files, refuse_if_taken

_log = logger_of("builds")


@dataclass(frozen=True)
class Hosts:
    """The position of this process among those that build a version together.

    Args:
        index: which of them this is, from 0.
        count: how many there are.
    """

    index: int
    count: int

    @classmethod
    def checked(cls, hosts: Any) -> Self:
        """Check the hosts that a user passes."""
        if not isinstance(hosts, tuple) or len(hosts) != 2:
            raise InvalidTypeError(
                f"hosts {hosts!r}: pass (index, count), as (jax.process_index(), jax.process_count())"
            )
        index = integer("the index in hosts", hosts[0], 0)
        count = integer("the count in hosts", hosts[1], 1)
        if index >= count:
            raise InvalidArgumentError(f"hosts {hosts}: the index must be less than the count")
        return cls(index, count)

    @property
    def claim(self) -> str:
        """The claim that shows that this host is at work."""
        return f"host-{self.index:05}.{CLAIM}"

    def in_order(self, count: int) -> list[int]:
        """Return the numbers of all parts: this host's own first, then those of the hosts after it."""
        return sorted(
            range(count), key=lambda number: ((number * self.count // count - self.index) % self.count, number)
        )


@dataclass(frozen=True)
class PartTask:
    """Builds parts of a version, one a call, in any process that has this task; it may be run more than once.

    Args:
        notes: the notes of the build.
        copies: keeps local copies of the shards; None for none.
        generation: that of the log when the build began.
        parts: the source.
        options: how; with the element spec.
        is_shared: whether other hosts build parts too.
    """

    notes: Notes
    copies: CacheFolder | None
    generation: int
    parts: Parts
    options: BuildOptions
    is_shared: bool

    @classmethod
    def of(cls, plan: BuildPlan, parts: Parts, target: ShardTarget, *, is_shared: bool) -> Self:
        # Other processes need no more of the options. Where an engine runs the parts, each takes one process.
        workers = plan.options.workers if plan.engine is None else 1
        options = replace(plan.options, annotations={}, engine=None, workers=workers)
        return cls(plan.notes, plan.copies, target.generation, parts, options, is_shared)

    def __call__(self, number: int) -> PartResult | None:
        """Build a part and note it; return None if another process is building it."""
        try:
            if not self.is_shared:
                return self._build(number)
            with Claims(self.notes.folder).hold(part_claim(number)) as is_ours:
                return self._build(number) if is_ours and not self._is_noted(number) else None
        except StorageError as error:
            raise StorageError(f"{self.describe(number)}, on host {platform.node()}: {error}") from error

    def describe(self, number: int) -> str:
        return self.parts.describe(number)

    def _is_noted(self, number: int) -> bool:
        """Return whether another process has built a part since the parts were listed."""
        part, log = read_part(self.notes.folder, number), Log(self.notes.dataset)
        if part is None:
            return False
        return not lost_files((shard.file for shard in part.shards), log, log.head()) | absent_files(part.shards, log)

    def _build(self, number: int) -> PartResult:
        with shard_target(self.notes.dataset, self.copies, self.generation) as target:
            return write_parts(self.parts, [number], target, self.options, self.notes)[number]


def part_claim(number: int) -> str:
    return f"{number:05}.{CLAIM}"


def _run_tasks(task: PartTask, engine: Engine, numbers: Iterable[int]) -> None:
    """Build parts with an engine."""
    name = type(engine).__name__
    results = engine.run(task, numbers)
    if not isinstance(results, Iterable):
        raise InvalidTypeError(f"engine {name}: run returned a {type(results).__name__}: yield the results of the task")
    for done in results:
        if isinstance(done, PartResult):
            current().part_done(done.records, done.nbytes)
        elif done is not None:
            raise InvalidTypeError(
                f"engine {name}: run yielded a {type(done).__name__}: yield what the task returns, as it is, or nothing"
            )


def build_parts(plan: BuildPlan, parts: Parts, target: ShardTarget) -> PartResult:
    """Build the parts of a source that no interrupted build has finished, and return the result of all."""
    finished = _finished_before(plan) if plan.options.resume else {}
    missing = [number for number in range(parts.count) if number not in finished]
    current().parts(len(finished), parts.count)
    if plan.engine is None:
        # With one part there is nothing to go on after.
        notes = plan.notes if plan.options.resume and parts.count > 1 else None
        if notes is not None:
            notes.begin()
        built = {**finished, **write_parts(parts, missing, target, plan.options, notes)}
    else:
        built = _run_all(plan, parts, plan.engine, target, finished)
    return _joined(parts, built)


def _run_all(
    plan: BuildPlan, parts: Parts, engine: Engine, target: ShardTarget, finished: dict[int, PartResult]
) -> dict[int, PartResult]:
    """Build the parts that are not finished with an engine, and return all."""
    notes, task = plan.notes, PartTask.of(plan, parts, target, is_shared=False)
    notes.begin()
    while missing := [number for number in range(parts.count) if number not in finished]:
        _run_tasks(task, engine, iter(missing))
        before, finished = len(finished), notes.finished(plan.request.log, finished)
        current().parts(len(finished), parts.count)
        if len(finished) == before:
            raise _not_built(plan, parts, missing[0])
    return finished


def build_parts_together(plan: BuildPlan, parts: Parts, hosts: Hosts, target: ShardTarget) -> PartResult | None:
    """Build the parts of a source that no other host builds.

    Returns:
        The result of all parts, whoever has built them; None if another host has published the version.
    """
    request, notes = plan.request, plan.notes
    finished = _finished_before(plan)
    claims, waiting = Claims(notes.folder), Waiting(request.name, plan.options.progress)
    engine, task = plan.engine or Here(), PartTask.of(plan, parts, target, is_shared=True)
    order = hosts.in_order(parts.count)
    while missing := [number for number in order if number not in finished]:
        current().parts(len(finished), parts.count)
        if request.is_published:
            return None
        free = _unclaimed(claims, notes, missing)
        _run_tasks(task, engine, iter(free))
        before, finished = len(finished), notes.finished(request.log, finished)
        if len(finished) > before:
            continue
        if free and free == _unclaimed(claims, notes, free):
            raise _not_built(plan, parts, free[0])
        waiting.wait_for("the parts that other hosts build")
        claims.pause()
    return None if request.is_published else _joined(parts, finished)


def _unclaimed(claims: Claims, notes: Notes, numbers: Sequence[int]) -> list[int]:
    """Return the parts that nobody is building, as far as a listing of the claims tells."""
    claimed = set(notes.folder.names(""))
    return [each for each in numbers if part_claim(each) not in claimed or not claims.is_busy(part_claim(each))]


def _finished_before(plan: BuildPlan) -> dict[int, PartResult]:
    """Return what interrupted builds with the same plan have finished, and tell the user."""
    name, notes = plan.request.name, plan.notes
    try:
        finished = notes.finished(plan.request.log)
        others = {} if finished else notes.others()
    except StorageError as error:
        # Building does not need the right to list.
        warn(
            f"cannot see whether there is an interrupted build to resume, so all of it is built anew: {error}",
            room="builds",
        )
        return {}
    if finished:
        records = sum(part.records for part in finished.values())
        current().skip(records)
        text = f"{name}: resuming after {records:,} records of an interrupted build"
        _log.info("%s", text)
        notice(text, plan.options.progress)
    interrupted = [facts for facts in others.values() if NOT_RESUMABLE not in facts]
    if interrupted:
        warn(
            f"{name} is built from its beginning: an interrupted build cannot be resumed: "
            f"{'; '.join(differences(interrupted[0], plan.facts))}",
            room="builds",
        )
    return finished


def write_parts(
    parts: Parts, numbers: Iterable[int], target: ShardTarget, options: BuildOptions, notes: Notes | None
) -> dict[int, PartResult]:
    """Write parts of a source, in this order, and return them by number.

    Args:
        parts: the source.
        numbers: the numbers of the parts.
        target: where shards go.
        options: the options, with the element spec.
        notes: where each finished part is noted; None for nowhere.
    """
    keep_freed_memory()
    if options.workers > 1 and isinstance(parts, Ranges) and parts.source.workers_make == "elements":
        encoded = _encoded_by_workers(parts, numbers, options)
    else:
        encoded = _encoded_here(parts, numbers, options)
    with ShardPipeline(target, options, notes) as pipeline, closing(encoded) as sequence:
        for number, part, encoder, frames in sequence:
            with part_in_errors(part):
                pipeline.write(frames)
            result = encoder.result
            if part.name:
                result = replace(result, first_left_out=tuple(f"{part.name}: {text}" for text in result.first_left_out))
            pipeline.end_part(number, result)
        return pipeline.finish()


_Encoded = Generator[tuple[int, Part, Encoder, Iterator[Frames]], None, None]


def _encoded_here(parts: Parts, numbers: Iterable[int], options: BuildOptions) -> _Encoded:
    """Yield each part with its encoder, and its records as they are made in this process."""
    for number in numbers:
        part = parts.part(number)
        encoder = Encoder(codec_for(options.element_spec), options.on_error, part.first)
        batches = current().waiting_for("the source", part.batches())
        yield number, part, encoder, map(encoder.encode, batches)


def _encoded_by_workers(parts: Ranges, numbers: Iterable[int], options: BuildOptions) -> _Encoded:
    """Yield each part with its encoder, and its records as worker processes make them."""
    ranges = {number: parts.range(number) for number in numbers}
    encoded = encode_with_workers(parts.source, options.element_spec, options.on_error, options.workers, ranges)
    with closing(encoded):
        waited = current().waiting_for("the worker processes", encoded)
        for number, group in groupby(waited, itemgetter(0)):
            part = parts.part(number)
            encoder = Encoder(codec_for(options.element_spec), options.on_error, part.first)
            yield number, part, encoder, (frames for _, some in group for frames in encoder.take(some))


def _joined(parts: Parts, results: Mapping[int, PartResult]) -> PartResult:
    """Return the result of all parts, in their order."""
    current().parts(len(results), parts.count)
    if not isinstance(parts, Ranges):
        _warn_of_equal_parts(results)
    return reduce(PartResult.then, [results[number] for number in range(parts.count)], PartResult())


def _not_built(plan: BuildPlan, parts: Parts, number: int) -> SourceError:
    """Return the error of an engine that has not built a part."""
    # Who publishes deletes the notes.
    refuse_if_taken(plan.request.log, plan.request.version)
    return SourceError(f"the engine ended without {parts.describe(number)}")


def join_hosts(plan: BuildPlan) -> None:
    """Note the plan; raise if another host builds something else under this name."""
    if not plan.options.resume:
        raise InvalidArgumentError(
            "resume=False: hosts that build together go on from each other's notes: leave it out, or build on one"
        )
    notes = plan.notes
    notes.begin()
    for plan_hash, facts in notes.others().items():
        folder = notes.version_folder.folder(plan_hash)
        claims = Claims(folder)
        if any(claims.is_alive(name) for name in folder.names("") if name.endswith(CLAIM)):
            differ = "; ".join(differences(facts, plan.facts, Wording.AMONG_HOSTS))
            raise InvalidArgumentError(
                f"{plan.request.name}: another host builds something else: {differ}. Pass the same source, made by the "
                "same code, and the same options on all hosts; only hosts=(index, count) may differ between them"
            )


def _warn_of_equal_parts(parts: Mapping[int, PartResult]) -> None:
    """Warn if two parts hold the same records: the function may have ignored its part number."""
    seen: dict[tuple[str, ...], int] = {}
    for number, part in sorted(parts.items()):
        other = seen.setdefault(tuple(shard.stats.sha256 for shard in part.shards), number)
        if other != number and part.records > 1:
            warn(
                f"parts {other} and {number} have the same {part.records} records: make the elements of a part from "
                "its number, and each element in one part only",
                room="builds",
            )
            return
