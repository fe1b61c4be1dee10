"""Build the parts of a version in any processes: of this host, of a cluster, or of several hosts together."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from cachelayer.arguments import integer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import BuildPlan, NewVersion
from cachelayer.builds.parts import Parts
from cachelayer.builds.shard_target import ShardTarget, shard_target
from cachelayer.builds.write_shards import Noting, write_parts
from cachelayer.engines import Engine, engine_of
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError, StorageError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.store import Store
from cachelayer.progress import Progress, Waiting, current
from cachelayer.provenance.stored_values import Wording, differences
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, Claims
from cachelayer.versions.log import Log
from cachelayer.versions.notes import Notes, PartResult, read_part
from cachelayer.versions.publish import absent_files, lost_files, refuse_if_taken


@dataclass(frozen=True)
class PartTask:
    """Builds parts of a version, one a call, in any process that has this task; it may be run more than once.

    Args:
        store: where shards go.
        copies: keeps local copies of them; None for none.
        dataset_id, version: what is built.
        plan: the plan of the build.
        generation: that of the log when the build began.
        parts: the source.
        options: how; with the element spec.
        is_shared: whether other hosts build parts too.
    """

    dataset: Store
    copies: CacheFolder | None
    version: str
    plan: Mapping[str, Any]
    generation: int
    parts: Parts
    options: BuildOptions
    is_shared: bool

    def __call__(self, number: int) -> PartResult | None:
        """Build a part and note it; return None if another process is building it."""
        notes = Notes(self.dataset, self.version, self.plan)
        try:
            if not self.is_shared:
                return self._build(notes, number)
            with Claims(notes.folder).hold(part_claim(number)) as is_ours:
                return self._build(notes, number) if is_ours and not self._is_noted(notes, number) else None
        except StorageError as error:
            raise StorageError(f"{self.describe(number)}, on host {platform.node()}: {error}") from error

    def describe(self, number: int) -> str:
        return self.parts.describe(number)

    def _is_noted(self, notes: Notes, number: int) -> bool:
        """Return whether another process has built a part since the parts were listed."""
        part, log = read_part(notes.folder, number), Log(self.dataset)
        if part is None:
            return False
        return not lost_files((shard.file for shard in part.shards), log, log.head()) | absent_files(part.shards, log)

    def _build(self, notes: Notes, number: int) -> PartResult:
        done: list[PartResult] = []

        def note(number: int, part: PartResult) -> None:
            notes.add(number, part)
            done.append(part)

        with shard_target(self.dataset, self.copies, self.generation) as target:
            write_parts(self.parts, [number], target, self.options, current(), note)
        return done[0]


def part_claim(number: int) -> str:
    return f"{number:05}.{CLAIM}"


def run(task: PartTask, engine: Engine, progress: Progress, numbers: Iterable[int]) -> None:
    """Build parts with an engine."""
    name = type(engine).__name__
    results = engine.run(task, numbers)
    if not isinstance(results, Iterable):
        raise InvalidTypeError(f"engine {name}: run returned a {type(results).__name__}: yield the results of the task")
    for done in results:
        if isinstance(done, PartResult):
            progress.part_done(done.records, done.nbytes)
        elif done is not None:
            raise InvalidTypeError(
                f"engine {name}: run yielded a {type(done).__name__}: yield what the task returns, as it is, or nothing"
            )


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
        index, count = integer("the index in hosts", hosts[0], 0), integer("the count in hosts", hosts[1], 1)
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


def parts_alone(
    plan: BuildPlan,
    parts: Parts,
    new: NewVersion,
    notes: Notes,
    finished: Mapping[int, PartResult],
    target: ShardTarget,
    progress: Progress,
) -> dict[int, PartResult]:
    """Build the parts that are not finished, and return the results of all.

    Args:
        plan, parts: what is built.
        new: the version.
        notes: those of the build.
        finished: the parts that an interrupted build has finished.
        target, progress: see :func:`write_parts`.
    """
    found, engine = dict(finished), plan.engine
    progress.skip(sum(part.records for part in found.values()))
    if engine is None:
        noting = Noting(notes, is_kept=plan.options.resume)
        noting.begin(plan.options.element_spec)
        missing = [number for number in range(parts.count) if number not in found]
        progress.parts(len(found), parts.count)
        write_parts(parts, missing, target, plan.options, progress, noting.add)
        found |= noting.parts
    else:
        notes.begin(plan.options.element_spec)
        task = _task(plan, parts, new, notes, target.generation, is_shared=False)
        while missing := [number for number in range(parts.count) if number not in found]:
            progress.parts(len(found), parts.count)
            run(task, engine, progress, iter(missing))
            before, found = len(found), notes.finished(new.log, found)
            if len(found) == before:
                raise _not_built(new, parts, missing[0])
    progress.parts(len(found), parts.count)
    return found


def parts_together(
    plan: BuildPlan,
    parts: Parts,
    new: NewVersion,
    notes: Notes,
    finished: Mapping[int, PartResult],
    hosts: Hosts,
    target: ShardTarget,
    progress: Progress,
) -> dict[int, PartResult] | None:
    """Build the parts that are not finished and that no other host builds; see :func:`parts_alone`.

    Returns:
        The results of all parts, whoever has built them; None if another host has published the version.
    """
    found, claims = dict(finished), Claims(notes.folder)
    waiting, engine = Waiting(new.name, new.progress), plan.engine or engine_of(None, 1)
    task, order = _task(plan, parts, new, notes, target.generation, is_shared=True), hosts.in_order(parts.count)

    def unclaimed(numbers: Sequence[int]) -> list[int]:
        """Return the parts that nobody is building, as far as a listing of the claims tells."""
        claimed = set(notes.folder.names(""))
        return [each for each in numbers if part_claim(each) not in claimed or not claims.is_busy(part_claim(each))]

    while missing := [number for number in order if number not in found]:
        progress.parts(len(found), parts.count)
        if new.is_published:
            return None
        free = unclaimed(missing)
        run(task, engine, progress, iter(free))
        before, found = len(found), notes.finished(new.log, found)
        if len(found) > before:
            continue
        if free and free == unclaimed(free):
            raise _not_built(new, parts, free[0])
        waiting.wait_for("the parts that other hosts build")
        claims.pause()
    progress.parts(len(found), parts.count)
    return None if new.is_published else found


def _task(
    plan: BuildPlan, parts: Parts, new: NewVersion, notes: Notes, generation: int, *, is_shared: bool
) -> PartTask:
    lean = plan.options.lean(workers=plan.options.workers if plan.engine is None else 1)
    copies = None if plan.extension.is_put_again else new.copies
    log = new.log
    return PartTask(log.folder, copies, new.version, notes.plan, generation, parts, lean, is_shared=is_shared)


def _not_built(new: NewVersion, parts: Parts, number: int) -> SourceError:
    """Return the error of an engine that has not built a part."""
    # Who publishes deletes the notes.
    refuse_if_taken(new.log, new.version)
    return SourceError(f"the engine ended without {parts.describe(number)}")


def join_hosts(plan: BuildPlan, new: NewVersion, notes: Notes) -> None:
    """Note the plan; raise if another host builds something else under this name."""
    if not plan.options.resume:
        raise InvalidArgumentError(
            "resume=False: hosts that build together go on from each other's notes: leave it out, or build on one"
        )
    notes.begin(plan.options.element_spec)
    for plan_hash, facts in notes.others().items():
        folder = notes.version_folder.folder(plan_hash)
        claims = Claims(folder)
        if any(claims.is_alive(name) for name in folder.names("") if name.endswith(CLAIM)):
            differ = "; ".join(differences(facts, plan.facts, Wording.AMONG_HOSTS))
            raise InvalidArgumentError(
                f"{new.name}: another host builds something else: {differ}. Pass the same source, made by the "
                "same code, and the same options on all hosts; only hosts=(index, count) may differ between them"
            )


def warn_of_equal_parts(parts: Mapping[int, PartResult]) -> None:
    """Warn if two parts hold the same records: the function may have ignored its part number."""
    seen: dict[tuple[str, ...], int] = {}
    for number, part in sorted(parts.items()):
        other = seen.setdefault(tuple(shard.stats.sha256 for shard in part.shards), number)
        if other != number and part.records > 1:
            warn(
                f"parts {other} and {number} have the same {part.records} records: make the elements of a part from "
                "its number, and each element in one part only"
            )
            return
