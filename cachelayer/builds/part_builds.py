"""Build the parts of a version: in this process, with an engine, or together with other hosts.

::

    note of a part         it is finished, and its shards are in the store
    claim of a part        a process of some host is building it (only where hosts build together)

    this process alone     build_parts            writes the missing parts one after another
    an engine              build_parts            runs a PartTask on the number of each missing part
    hosts                  build_parts_together   each runs PartTasks on parts without note and claim, until all have
                                                  notes

A :class:`PartTask` returns a result, but only the note counts: a process or a node may die after it has put the note,
and an engine need not return results.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Any, Self

from cachelayer.arguments import integer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import NOT_RESUMABLE, BuildPlan
from cachelayer.builds.parts import Parts
from cachelayer.builds.shard_target import ShardTarget, shard_target
from cachelayer.builds.write_source import write_parts
from cachelayer.engines import Engine
from cachelayer.engines.engine import Here
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError, StorageError
from cachelayer.logs import logger_of
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.progress import Waiting, current, notice
from cachelayer.provenance.stored_values import Wording, differences
from cachelayer.user_warnings import warn
from cachelayer.versions.blobs import missing
from cachelayer.versions.claims import CLAIM, Claims
from cachelayer.versions.log import Log
from cachelayer.versions.notes import Notes, PartResult, note_name, read_part
from cachelayer.versions.publish import lost_files, refuse_if_taken

_log = logger_of("builds")


@dataclass(frozen=True)
class Hosts:
    """This host, and its place among the hosts that build a version together."""

    index: int
    """From 0."""
    count: int

    @classmethod
    def checked(cls, hosts: Any, options: BuildOptions) -> Self:
        """Check the hosts that a user passes with these options."""
        if options.engine is not None:
            raise InvalidArgumentError(
                "hosts= and engine=: the hosts, or the engine, divide the parts: leave out one of them; workers= "
                "divides the parts of a host among its processes"
            )
        if not isinstance(hosts, tuple) or len(hosts) != 2:
            raise InvalidTypeError(
                f"hosts {hosts!r}: pass (index, count), as (jax.process_index(), jax.process_count())"
            )
        index = integer("the index in hosts", hosts[0], 0)
        count = integer("the count in hosts", hosts[1], 1)
        if index >= count:
            raise InvalidArgumentError(f"hosts {hosts}: the index must be less than the count")
        return cls(index, count)

    def new_claim(self) -> str:
        """Return the name of a claim that this host holds while it builds: another one for each call.

        A host that starts again would not get the claim of its first process if that still runs, and would be without
        one when that ends: gc would take its notes.
        """
        return f"host-{self.index:05}-{uuid.uuid4().hex}.{CLAIM}"

    def in_order(self, part_count: int) -> list[int]:
        """Return the numbers of all parts in the order in which this host tries to build them.

        The hosts share out the parts in order. A host begins with its share and goes on with the shares of the hosts
        after it, so that two hosts come to the same part only when little is left::

            6 parts, 3 hosts     host 0: 0 1 2 3 4 5     host 1: 2 3 4 5 0 1     host 2: 4 5 0 1 2 3
        """

        def turn(part: int) -> int:
            host = part * self.count // part_count
            return (host - self.index) % self.count

        # The sort is stable: the parts of one host stay in their order.
        return sorted(range(part_count), key=turn)

    def owns(self, part: int, part_count: int) -> bool:
        """Return whether a part is in the share of this host."""
        return part * self.count // part_count == self.index


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
    is_shared: bool
    """Whether other hosts build parts too, so that a part must be claimed."""

    @classmethod
    def of(cls, plan: BuildPlan, parts: Parts, target: ShardTarget, *, is_shared: bool) -> Self:
        # An engine runs as many tasks at once as it has room for: each is one process.
        workers = plan.options.workers if plan.engine is None else 1
        options = replace(plan.options, annotations={}, engine=None, workers=workers)
        return cls(plan.notes, plan.copies, target.generation, parts, options, is_shared)

    def __call__(self, number: int) -> PartResult | None:
        """Build a part and note it; return None if another process builds it or has built it."""
        try:
            if not self.is_shared:
                return self._build(number)
            with Claims(self.notes.folder).hold(part_claim(number)) as is_ours:
                # Another host may have finished the part, and let its claim go, since this host listed the notes.
                if not is_ours or self._is_noted(number):
                    return None
                return self._build(number)
        except StorageError as error:
            raise StorageError(f"{self.describe(number)}, on host {platform.node()}: {error}") from error

    def describe(self, number: int) -> str:
        return self.parts.describe(number)

    def _is_noted(self, number: int) -> bool:
        """Return whether the part has a note, and all of its files are there."""
        part = read_part(self.notes.folder, number)
        if part is None:
            return False
        log = Log(self.notes.dataset)
        files = (shard.file for shard in part.shards)
        blobs = [blob for shard in part.shards for blob in shard.blobs]
        return not lost_files(files, log, log.head()) and not missing(log.folder, blobs)

    def _build(self, number: int) -> PartResult:
        with shard_target(self.notes.dataset, self.copies, self.generation) as target:
            return write_parts(self.parts, [number], target, self.options, self.notes)[number]


def part_claim(number: int) -> str:
    return f"{number:05}.{CLAIM}"


def _run_tasks(task: PartTask, engine: Engine, part_numbers: Iterable[int]) -> None:
    """Run a task on parts. The results are for the progress alone: what is finished is read from the notes."""
    name = type(engine).__name__
    results = engine.run(task, part_numbers)
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
    """Build the parts that no interrupted build has finished, and return the result of all parts together."""
    finished = _finished_before(plan) if plan.options.resume else {}
    current().parts(len(finished), parts.count)
    if plan.engine is None:
        finished = _build_here(plan, parts, target, finished)
    else:
        finished = _build_with_engine(plan, parts, plan.engine, target, finished)
    return _joined(parts, finished)


def _build_here(
    plan: BuildPlan, parts: Parts, target: ShardTarget, finished: Mapping[int, PartResult]
) -> dict[int, PartResult]:
    """Build the parts that are not finished in this process, and return the results of all."""
    missing = [number for number in range(parts.count) if number not in finished]
    notes: Notes | None = None
    # With one part there is nothing to go on after.
    if plan.options.resume and parts.count > 1:
        notes = plan.notes
        notes.begin()
    return {**finished, **write_parts(parts, missing, target, plan.options, notes)}


def _build_with_engine(
    plan: BuildPlan, parts: Parts, engine: Engine, target: ShardTarget, finished: dict[int, PartResult]
) -> dict[int, PartResult]:
    """Build the parts that are not finished with an engine, and return the results of all."""
    notes = plan.notes
    task = PartTask.of(plan, parts, target, is_shared=False)
    notes.begin()
    # An engine may end without some parts, such as those of a node that died. As long as it gets on, it runs again.
    while missing := [number for number in range(parts.count) if number not in finished]:
        _run_tasks(task, engine, iter(missing))
        before = len(finished)
        finished = notes.finished(plan.request.log, finished)
        current().parts(len(finished), parts.count)
        if len(finished) == before:
            raise _not_built(plan, parts, missing[0])
    return finished


def build_parts_together(plan: BuildPlan, parts: Parts, hosts: Hosts, target: ShardTarget) -> PartResult | None:
    """Build parts until all have notes, each by one host.

    Returns:
        The result of all parts, whoever has built them; None if another host has published the version.
    """
    request = plan.request
    notes = plan.notes
    claims = Claims(notes.folder)
    # One of the claims is that of this host.
    at_work = sum(claims.is_busy(name) for name in notes.folder.names("") if name.endswith(CLAIM))
    finished = _finished_before(plan, joins=at_work > 1)
    waiting = Waiting(request.name, plan.options.progress)
    engine = plan.engine or Here()
    task = PartTask.of(plan, parts, target, is_shared=True)
    order = hosts.in_order(parts.count)
    while missing := [number for number in order if number not in finished]:
        current().parts(len(finished), parts.count)
        if request.is_published:
            return None
        free = _free_parts(claims, notes, missing, {part for part in order if hosts.owns(part, parts.count)})
        first = next(free, None)
        if first is not None:
            _run_tasks(task, engine, chain([first], free))
        before = len(finished)
        finished = notes.finished(request.log, finished)
        if len(finished) == before:
            waiting.wait_for("the parts that other hosts build")
            claims.pause()
    return None if request.is_published else _joined(parts, finished)


def _free_parts(claims: Claims, notes: Notes, part_numbers: Sequence[int], own: Collection[int]) -> Iterator[int]:
    """Yield the parts that nobody has built or claimed, in this order, each when it is asked for.

    Others are at work meanwhile: so the notes and claims are listed again before each part that is not in ``own``, but
    for those that the last list shows to be taken. Else each host would ask about each part.
    """
    # Who comes here has looked at these notes: their shards are gone, or they are as young as this list.
    listed = known = set(notes.folder.names(""))
    is_old = False

    def is_taken(number: int) -> bool:
        claim = part_claim(number)
        return note_name(number) in listed - known or (claim in listed and claims.is_busy(claim))

    for number in part_numbers:
        if is_taken(number):
            continue
        if is_old and number not in own:
            listed = set(notes.folder.names(""))
            is_old = False
            if is_taken(number):
                continue
        is_old = True
        yield number


def _finished_before(plan: BuildPlan, *, joins: bool = False) -> dict[int, PartResult]:
    """Return the parts that other builds with the same plan have finished, and say so.

    Warn if there are none because the interrupted build had another plan, or if its files may have changed.
    """
    name = plan.request.name
    notes = plan.notes
    try:
        finished = notes.finished(plan.request.log)
        others = {} if finished else notes.other_plans()
    except StorageError as error:
        # A user may have the right to put files, and not to list them: that is enough to build.
        warn(
            f"cannot see whether there is an interrupted build to resume, so all of it is built anew: {error}",
            logger="builds",
        )
        return {}
    if finished:
        records = sum(part.records for part in finished.values())
        current().skip(records)
        text = f"{name}: resuming after {records:,} records of an interrupted build"
        if joins:
            text = f"{name}: other hosts have built {records:,} records, and this one joins them"
        _log.info("%s", text)
        notice(text, plan.options.progress)
        if notes.has_other_times and not joins:
            warn(
                f"{text}. Its files were written at other times: their names, their sizes and a few records are the "
                "same. If they are no copies, and changed, pass resume=False",
                logger="builds",
            )
    interrupted = [facts for facts in others.values() if NOT_RESUMABLE not in facts]
    if interrupted:
        warn(
            f"{name} is built from its beginning: an interrupted build cannot be resumed: "
            f"{'; '.join(differences(interrupted[0], plan.facts))}",
            logger="builds",
        )
    return finished


def _joined(parts: Parts, results: Mapping[int, PartResult]) -> PartResult:
    """Return the result of all parts together, whose shards are in the order of the parts."""
    current().parts(len(results), parts.count)
    return reduce(PartResult.then, [results[number] for number in range(parts.count)], PartResult())


def _not_built(plan: BuildPlan, parts: Parts, number: int) -> SourceError:
    """Return the error of an engine that has not built a part; raise another if the version is published."""
    # Whoever publishes deletes the notes, so a part may seem unfinished because all of them are.
    refuse_if_taken(plan.request.log, plan.request.version)
    return SourceError(f"the engine ended without {parts.describe(number)}")


def join_hosts(plan: BuildPlan) -> None:
    """Note the plan of this host; raise if a living host builds something else under the name of the version."""
    if not plan.options.resume:
        raise InvalidArgumentError(
            "resume=False: hosts that build together go on from each other's notes: leave it out, or build on one"
        )
    notes = plan.notes
    notes.begin()
    for plan_hash, facts in notes.other_plans().items():
        folder = notes.version_folder.folder(plan_hash)
        claims = Claims(folder)
        held = [name for name in folder.names("") if name.endswith(CLAIM)]
        if any(map(claims.is_alive, held)):
            differ = "; ".join(differences(facts, plan.facts, Wording.AMONG_HOSTS))
            raise InvalidArgumentError(
                f"{plan.request.name}: another host builds something else: {differ}. Pass the same source, made by the "
                "same code, and the same options on all hosts; only hosts=(index, count) may differ between them"
            )
