"""Build a version and publish it: once, whole, or not at all.

A build puts shards, which are named by what they hold, and notes each finished part; when all parts are noted, whoever
sees it puts the manifest and the entry of the log that makes it a version. So a build may die anywhere, and any other
with the same plan goes on after its notes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any

from cachelayer.builds.build_plan import BuildPlan, NewVersion
from cachelayer.builds.child_processes import building, marking_children, refuse_to_await_parent
from cachelayer.builds.encode import marked
from cachelayer.builds.extensions import write_array
from cachelayer.builds.part_builds import Hosts, join_hosts, parts_alone, parts_together, warn_of_equal_parts
from cachelayer.builds.parts import Parts, Ranges
from cachelayer.builds.shard_target import ShardTarget, shard_target
from cachelayer.builds.source import metadata_of, provenance_of, versions_read
from cachelayer.builds.source_files import refuse_changed
from cachelayer.builds.write_shards import Noting, write_whole
from cachelayer.errors import AlreadyExistsError, SourceError, StorageError
from cachelayer.objects import paths
from cachelayer.progress import Progress, Waiting, notice
from cachelayer.provenance.code_in_objects import code_file
from cachelayer.provenance.environment import commit_of, environment, event, now
from cachelayer.provenance.stored_values import differences
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, Claims, expiry
from cachelayer.versions.columns import ShardSet
from cachelayer.versions.derive import base_of
from cachelayer.versions.notes import Notes, PartResult
from cachelayer.versions.publish import publish, refuse_if_taken
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion

ALLOW_EMPTY = "if a version without records is meant, pass allow_empty=True"


def submit(new: NewVersion, make_plan: Callable[[], BuildPlan]) -> StoredVersion:
    """Build and publish a version.

    Raises:
        AlreadyExistsError: if it exists, or another process publishes it meanwhile.
    """
    refuse_if_taken(new.log, new.version)
    built = build_once(new, make_plan)
    if built is None:
        refuse_if_taken(new.log, new.version)
        raise AlreadyExistsError(f"{new.name} was published and deleted while it was built: build again")
    return built


def build_once(new: NewVersion, make_plan: Callable[[], BuildPlan], hosts: Hosts | None = None) -> StoredVersion | None:
    """Build and publish a version, one process at a time, or several hosts together.

    Args:
        new: the version.
        make_plan: decides how to build it. It is called once, by a process that builds: it calls the user's function.
        hosts: the hosts that build it together, if the source has parts; None for one host.

    Returns:
        The version; None if another has published it meanwhile.
    """
    with building(new.url):
        if hosts is None:
            return _build_in_turn(new, make_plan)
        plan = make_plan()
        if plan.parts is not None:
            return _build_together(new, plan, plan.parts, hosts)
        warn(
            f"hosts: a source of {plan.source.kind} cannot be divided, so one host builds all of it: pass "
            "cachelayer.sharded(function, count), or a sequence with a length"
        )
        return _build_in_turn(new, lambda: plan)


def _build_in_turn(new: NewVersion, make_plan: Callable[[], BuildPlan]) -> StoredVersion | None:
    """Build the version when no other process does; return None if another has published it."""
    claims = Claims(new.log.folder.folder(paths.builds(new.version)))
    waiting = Waiting(new.name, new.progress)
    while True:
        with claims.hold(CLAIM) as is_ours:
            if new.is_published:
                return None
            if is_ours:
                return _build_alone(new, make_plan())
        # Watches the holder, and removes the claim of one that died.
        if claims.is_busy(CLAIM):
            holder = claims.holder(CLAIM)
            refuse_to_await_parent(new.url, holder)
            waiting.wait_for(
                f"{holder} to build it; if it gives no sign of life for {expiry():g} s, this process goes on"
            )
            claims.pause()


def _build_alone(new: NewVersion, plan: BuildPlan) -> StoredVersion:
    """Build what is not noted yet, and publish the version."""
    started, notes = time.monotonic(), _notes(new, plan)
    finished = _finished(new, plan, notes) if plan.options.resume else {}
    with _working(new, plan, new.name, plan.length) as (target, progress):
        array_spec = plan.extension.array_spec(plan.source, plan.options)
        if array_spec is not None and plan.extension.base is not None:
            records = plan.extension.base.manifest.shard_records
            built, result = write_array(plan.source, array_spec, records, target, progress), PartResult()
        elif plan.parts is None:
            noting = Noting(notes, is_kept=plan.options.resume)
            spec, result = write_whole(plan.source, target, plan.options, progress, noting, finished)
            built = _shard_set(spec, result)
        else:
            parts = parts_alone(plan, plan.parts, new, notes, finished, target, progress)
            built, result = _joined(plan, plan.parts, parts)
        return _publish(new, plan, built, result, notes, target, started)


def _build_together(new: NewVersion, plan: BuildPlan, parts: Parts, hosts: Hosts) -> StoredVersion | None:
    """Build parts that no other host builds, and publish the version if no other does; return None if one has."""
    started, notes = time.monotonic(), _notes(new, plan)
    with Claims(notes.folder).hold(hosts.claim):
        join_hosts(plan, new, notes)
        finished = _finished(new, plan, notes)
        with _working(new, plan, f"{new.name} (host {hosts.index})", None) as (target, progress):
            found = parts_together(plan, parts, new, notes, finished, hosts, target, progress)
            if found is None:
                return None
            built, result = _joined(plan, parts, found)
            with suppress(AlreadyExistsError):
                return _publish(new, plan, built, result, notes, target, started)
            return None


@contextmanager
def _working(
    new: NewVersion, plan: BuildPlan, title: str, length: int | None
) -> Iterator[tuple[ShardTarget, Progress]]:
    """Yield where the shards of a build go, and its progress."""
    # No local copies of what no version names: nobody would remove them when records are erased.
    copies = None if plan.extension.is_put_again else new.copies
    log = new.log
    with (
        shard_target(log.folder, copies, log.head().generation) as target,
        marking_children(target.folder),
        Progress(title, length, new.progress) as progress,
    ):
        yield target, progress


def _notes(new: NewVersion, plan: BuildPlan) -> Notes:
    # A build that nobody may resume shares its notes with nobody.
    facts = plan.facts if plan.options.resume else {**plan.facts, _NOT_RESUMABLE: uuid.uuid4().hex}
    return Notes(new.log.folder, new.version, facts)


def _finished(new: NewVersion, plan: BuildPlan, notes: Notes) -> dict[int, PartResult]:
    """Return what interrupted builds with the same plan have finished, and tell the user."""
    try:
        finished = notes.finished(new.log)
        others = {} if finished else notes.others()
    except StorageError as error:
        # Building does not need the right to list.
        warn(f"cannot see whether there is an interrupted build to resume, so all of it is built anew: {error}")
        return {}
    if finished and plan.is_resumable:
        records = sum(part.records for part in finished.values())
        notice(f"{new.name}: resuming after {records:,} records of an interrupted build", new.progress)
    for facts in list(others.values())[:1]:
        if _NOT_RESUMABLE not in facts:
            warn(
                f"{new.name} is built from its beginning: an interrupted build cannot be resumed: "
                f"{'; '.join(differences(facts, plan.facts))}"
            )
    return finished


def _joined(plan: BuildPlan, parts: Parts, results: Mapping[int, PartResult]) -> tuple[ShardSet, PartResult]:
    """Return what was built of all parts, in their order."""
    if not isinstance(parts, Ranges):
        warn_of_equal_parts(results)
    result = reduce(PartResult.then, [results[number] for number in range(parts.count)], PartResult())
    return _shard_set(plan.options.element_spec, result), result


def _shard_set(spec: Tree, result: PartResult) -> ShardSet:
    return ShardSet(codec_for(spec).name, marked(spec, result.nullable), None, ShardTable(result.shards))


def _publish(
    new: NewVersion,
    plan: BuildPlan,
    built: ShardSet,
    result: PartResult,
    notes: Notes,
    target: ShardTarget,
    started: float,
) -> StoredVersion:
    refuse_changed(plan.files, plan.source)
    if not built.files and not plan.options.allow_empty:
        raise _nothing_built(new, plan, result)
    if result.left_out:
        warn(f"{result.left_out} of {result.elements} records were left out. The first: {result.first_left_out[0]}")
    provenance, base = _provenance(plan, result, started), plan.extension.base
    change = event("publish", version=new.version, **({} if base is None else {"base": base.info.version}))
    manifest, numbers = plan.extension.finish(built, provenance, target, plan.options)
    try:
        published = publish(new.log, new.version, manifest, numbers, change, base, read=versions_read(plan.source))
    except AlreadyExistsError:
        notes.forget()
        raise
    notes.forget()
    return published


def _nothing_built(new: NewVersion, plan: BuildPlan, result: PartResult) -> SourceError:
    """Return the error of a build that has no records."""
    made_by = plan.recipe.name if callable(plan.recipe.made_by) else None
    of = f"a source of {plan.source.kind}" + (f", which {made_by}() made," if made_by else "")
    if result.left_out:
        return SourceError(
            f"{new.name}: on_error='skip' left out all {result.left_out} elements of {of}; {ALLOW_EMPTY}. The first: "
            f"{result.first_left_out[0]}"
        )
    once = "an iterator gives its elements once, so pass a function that returns a new one; "
    return SourceError(f"{new.name}: {of} has no element: {'' if plan.source.length == 0 else once}{ALLOW_EMPTY}")


def _provenance(plan: BuildPlan, result: PartResult, started: float) -> dict[str, Any]:
    """Return the provenance: the user's description and metadata, and how the version was made."""
    kept, base, left_out = plan.options.kept, plan.extension.base, result.left_out
    inherited = {} if base is None else base.manifest.provenance.get("metadata") or {}
    return {
        **kept,
        "metadata": {**inherited, **metadata_of(plan.source), **kept["metadata"]},
        **({"left_out": {"records": left_out, "first": list(result.first_left_out)}} if left_out else {}),
        **plan.recipe.provenance,
        **commit_of(code_file(plan.recipe.made_by)),
        **provenance_of(plan.source),
        "source": plan.source.kind,
        "time": now(),
        "duration_s": round(time.monotonic() - started, 3),
        **environment(),
        **({} if base is None else {"base": base_of(base.info)}),
    }


_NOT_RESUMABLE = "build"
"""The key in the plan of a build that nobody may resume."""
