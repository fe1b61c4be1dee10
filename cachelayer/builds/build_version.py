"""Build a version and publish it: once, whole, or not at all.

::

    BuildRequest   what the user asks for: source, name, recipe, options
       │ BuildPlan.of: opens the source, finds the spec, divides the source into parts
       v
    Parts ──batches──> Encoder ──records──> ShardPipeline ──shards──> store           part_builds.py
       │                                          │
       │ which parts: hosts.py, if several build  └──a note of each finished part
       v
    manifest ──> entry of the log: the version exists                                _publish

A build may die anywhere, because nothing counts before the entry of the log. Shards are named by their content, so a
build that begins anew puts no shard that is there. Finished parts are noted, and any build with the same plan goes on
after these notes. A source that cannot be divided is one part.

Who builds is settled in two ways. Without ``hosts``, one process holds the lease of the version and builds all of it,
and the others wait. With ``hosts``, all of them build, each the parts that no other has in work, and one that sees all
notes publishes. A lease only saves work: if two publish, the log takes one.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from cachelayer.builds.build_options import Hosts
from cachelayer.builds.build_plan import BuildPlan, BuildRequest
from cachelayer.builds.extensions import AddedColumns
from cachelayer.builds.hosts import Team, new_lease
from cachelayer.builds.part_builds import PartBuilder, build_parts
from cachelayer.builds.parts import Ranges, Whole
from cachelayer.builds.shard_pipeline import ShardPipeline, shard_target
from cachelayer.builds.source_files import refuse_changed
from cachelayer.engines.engine import IS_WORKER
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError, SourceError
from cachelayer.objects import paths
from cachelayer.provenance.environment import commit_of, environment, event, now
from cachelayer.provenance.function_code import code_file
from cachelayer.specs.spec import ARROW_SCHEMA, DECIMAL_DIGITS, FEATURES, said_of_columns
from cachelayer.support.counting import count
from cachelayer.support.host import process_name
from cachelayer.support.logs import logger_of
from cachelayer.support.progress import Progress, Waiting
from cachelayer.support.user_warnings import warn
from cachelayer.versions.derive import base_of
from cachelayer.versions.lease import CLAIM, Leases, expiry
from cachelayer.versions.notes import PartResult
from cachelayer.versions.publish import NewVersion, publish, refuse_if_taken, revoked_if_absent
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.snapshot import Snapshot
from cachelayer.versions.stored_version import StoredVersion

_log = logger_of("builds")
_BUILDING: ContextVar[tuple[str, ...]] = ContextVar("cachelayer_building", default=())
"""The versions that this thread is building: a source may build another version."""
ALLOW_EMPTY = "if a version without records is meant, pass allow_empty=True"


def submit(request: BuildRequest) -> StoredVersion:
    """Build and publish a version that does not exist yet."""
    built = build_once(request, is_new=True)
    if built is None:
        refuse_if_taken(request.log, request.version)
        raise AlreadyExistsError(f"{request.name} was published and deleted while it was built: build again")
    return built


def build_once(
    request: BuildRequest, plan: BuildPlan | None = None, *, waits: bool = True, is_new: bool = False
) -> StoredVersion | None:
    """Build and publish a version, once among all processes that ask for it.

    Returns None if another process has published it meanwhile, or builds it and ``waits`` is False. A caller who has
    seen that there is no such version, and fails if another process publishes it, says ``is_new``.
    """
    hosts = request.options.hosts
    with building(request.url):
        if hosts is None:
            return _build_in_turn(request, plan, waits=waits, is_new=is_new)
        # Every host opens the source, to see which parts there are.
        plan = BuildPlan.of(request) if plan is None else plan
        if not isinstance(plan.parts, Whole):
            return _build_together(plan, hosts)
        warn(
            f"hosts: a source of {plan.source.kind} cannot be divided, so one host builds all of it: pass "
            "cachelayer.sharded(function, count), or a sequence with a length",
            logger="builds",
        )
        return _build_in_turn(request, plan, waits=waits, is_new=is_new)


@contextmanager
def building(version: str) -> Iterator[None]:
    """Mark this thread as one that builds a version, which has the URL of its storage in front.

    ::

        build of d@v1 ─ starts ─> worker process ─ imports the user's module ─ which calls cache(..., "d@v1")
             ^                                                                              │
             └───────────────────────────── waits for the worker  <──> waits for the build ─┘

    A worker of an engine that began a build would do so whenever the module is imported, and so would its own workers,
    without end. A child of a source, such as a worker of a ``DataLoader``, may build another version.

    So both are errors here: a build in a worker of another, and a source that asks for its own version.
    """
    if IS_WORKER.get():
        raise _nested_build_error(version)
    if version in _BUILDING.get():
        raise InvalidArgumentError(f"{version} is built from itself: its source asks for it, and would wait for ever")
    token = _BUILDING.set((*_BUILDING.get(), version))
    try:
        yield
    finally:
        _BUILDING.reset(token)


def _refuse_to_await_parent(version: str, holder: str) -> None:
    """Raise if the process that builds a version has started this process, and may wait for it."""
    parent = multiprocessing.parent_process()
    if parent is not None and holder == process_name(parent.pid):
        raise _nested_build_error(version)


def _nested_build_error(version: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{version}: this process was started by a build, and would begin or await one itself: both would wait, or "
        "start processes, for ever. If a module builds when it is imported, as the workers of the build import it, "
        'move the call into a function, or below `if __name__ == "__main__":`. If the source builds what it needs, '
        "build that before"
    )


def _build_in_turn(request: BuildRequest, plan: BuildPlan | None, *, waits: bool, is_new: bool) -> StoredVersion | None:
    """Build the version once no other process builds it; return None if another publishes it."""
    leases = Leases(request.log.folder.folder(paths.builds(request.version)))
    waiting: Waiting | None = None
    while True:
        # Who waits reads, and writes nothing: hundreds may wait, and a bucket takes one write a second to one name.
        other = leases.holder(CLAIM)
        if waiting is not None and request.is_published:
            return None
        if other is None:
            progress = Progress(request.name, None, request.options.progress)
            with leases.hold(CLAIM, progress) as lease:
                # Another process may have published it since this one has looked.
                head = request.log.known() if is_new and waiting is None else request.log.head()
                if request.is_published_in(head):
                    return None
                if lease is not None:
                    return _build_alone(BuildPlan.of(request) if plan is None else plan, head, progress)
        if not waits:
            return None
        waiting = waiting or Waiting(request.name, request.options.progress)
        if other is not None:
            _refuse_to_await_parent(request.url, other.holder)
            holder = other.holder
            if holder == process_name(os.getppid()):
                holder = f"{holder}, which started this process, and must not wait for it,"
            what = f"{holder} to build it; if it gives no sign of life for {expiry():g} s, this process goes on"
            with waiting.wait_for(what):
                leases.pause()


def _build_alone(plan: BuildPlan, head: Snapshot, progress: Progress) -> StoredVersion:
    """Build all of the version in this process and those that it starts, from a head of the log on, and publish it."""
    progress.total = plan.length
    with _working(plan, head, progress) as builder:
        extension = plan.request.extension
        if isinstance(extension, AddedColumns):
            columns = extension.write_at_once(plan.source, plan.options, builder.target)
            if columns is not None:
                return _publish(builder, columns, PartResult())
        result = build_parts(builder)
        return _publish(builder, builder.shard_set(result), result)


def _build_together(plan: BuildPlan, hosts: Hosts) -> StoredVersion | None:
    """Build the parts that no other host builds, and publish the version; return None if another host has."""
    request = plan.request
    plan.notes.begin()
    leases = Leases(plan.notes.version_folder)
    progress = Progress(f"{request.name} (host {hosts.index})", None, plan.options.progress)
    with leases.hold(new_lease(hosts, plan.notes.folder.name), progress) as lease:
        assert lease is not None  # noqa: S101 - nobody else has a lease of this name
        with _working(plan, request.log.head(), progress) as builder:
            team = Team(hosts, leases, lease, builder)
            team.join()
            while team.build():
                with team.publishing() as is_ours:
                    result = team.result() if is_ours else None
                    if result is not None:
                        # A process that builds it by itself may be first.
                        with suppress(AlreadyExistsError):
                            return _publish(builder, builder.shard_set(result), result)
                        return None
                if not is_ours:
                    team.wait("the host that publishes it")
            return None


@contextmanager
def _working(plan: BuildPlan, head: Snapshot, progress: Progress) -> Iterator[PartBuilder]:
    """Yield what builds parts, for a build that began at a head of the log, and show its progress meanwhile."""
    _log.info(
        "%(version)s: building from a source of %(kind)s", {"version": plan.request.name, "kind": plan.source.kind}
    )
    noting = plan.notes if plan.has_notes else None
    # A shard that is put again into other files need not leave this host if it is the only one.
    is_one = noting is None and isinstance(plan.parts, Ranges) and plan.parts.count == 1
    parts = None if is_one and plan.notes.has_shards else plan.notes.shards_in
    with (
        shard_target(plan.notes.dataset, plan.request.copies, head.generation, parts) as target,
        progress,
        ShardPipeline(target, target.parts, plan.options, noting) as pipeline,
    ):
        yield PartBuilder(plan, target, pipeline)


def _publish(builder: PartBuilder, built: ShardSet, result: PartResult) -> StoredVersion:
    """Publish what was built, and delete the notes, and shards beside them, if there are any."""
    plan = builder.plan
    target = builder.target
    request = plan.request
    extension = request.extension
    has_files = plan.has_notes or target.parts is plan.notes.folder
    if plan.files:
        refuse_changed(plan.files, plan.source)
    if not built.files and not plan.options.allow_empty:
        raise _nothing_built(plan, result)
    if result.left_out:
        warn(
            f"{result.left_out} of {result.elements} records were left out. The first: {_first_left_out(result)}",
            logger="builds",
        )
    base = extension.base
    made_from = {} if base is None else {"base": base.info.version}
    change = event("publish", version=request.version, **made_from)
    with revoked_if_absent(target.parts, request.name, built.files):
        manifest = extension.finish(built, _provenance(plan, built, result), target, plan.options)
    try:
        new = NewVersion(request.version, manifest, change, base, plan.source.versions, target.known)
        published = publish(request.log, new)
    except AlreadyExistsError:
        count(lost_races=1)
        _log.info("%(version)s: another process has published it", {"version": request.name})
        if has_files:
            plan.notes.delete_all()
        raise
    if has_files:
        plan.notes.delete_all()
    _log.info(
        "%(version)s: published %(records)d records in %(shards)d shards",
        {"version": request.name, "records": published.manifest.records, "shards": len(result.shards)},
    )
    return published


def _nothing_built(plan: BuildPlan, result: PartResult) -> SourceError:
    """Return the error of a build that has no records."""
    name = plan.request.name
    function = plan.recipe.name if callable(plan.recipe.made_by) else None
    what = f"a source of {plan.source.kind}"
    if function is not None:
        what = f"{what}, which {function}() made,"
    if result.left_out:
        return SourceError(
            f"{name}: on_error='skip' left out all {result.left_out} elements of {what}; {ALLOW_EMPTY}. The first: "
            f"{_first_left_out(result)}"
        )
    hint = ALLOW_EMPTY
    if plan.source.length != 0:
        hint = f"an iterator gives its elements once, so pass a function that returns a new one; {hint}"
    return SourceError(f"{name}: {what} has no element: {hint}")


def _first_left_out(result: PartResult) -> str:
    return result.first_reason or result.first_left_out[0]


def _metadata(plan: BuildPlan, built: ShardSet) -> dict[str, Any]:
    """Return the metadata of the base, the source and the user; for each column, those that were given last."""
    extension = plan.request.extension
    base = extension.base
    inherited = {} if base is None else base.manifest.provenance.get("metadata") or {}
    own = plan.source.metadata
    # Columns may replace those of the base, whose types say nothing of them.
    anew = list(built.element_spec) if isinstance(extension, AddedColumns) else []
    paths = tuple(f"[{name!r}]" for name in anew)
    of_columns = {}
    for key in (ARROW_SCHEMA, DECIMAL_DIGITS, FEATURES):
        before = said_of_columns(inherited, key)
        kept = {name: said for name, said in before.items() if not (name in anew or name.startswith(paths))}
        if before:
            of_columns[key] = {**kept, **said_of_columns(own, key)}
    return {**inherited, **own, **of_columns, **plan.options.annotations["metadata"]}


def _provenance(plan: BuildPlan, built: ShardSet, result: PartResult) -> dict[str, Any]:
    """Return the provenance: the user's description and metadata, and how the version was made."""
    base = plan.request.extension.base
    provenance = {**plan.options.annotations, "metadata": _metadata(plan, built)}
    if result.left_out:
        provenance["left_out"] = {"records": result.left_out, "first": list(result.first_left_out)}
    provenance |= {
        **plan.recipe.provenance,
        **commit_of(code_file(plan.recipe.made_by)),
        **plan.source.provenance,
        "plan": plan.notes.plan_hash,
        "source": plan.source.kind,
        "shard_bytes": plan.options.shard_bytes,
        "time": now(),
        "duration_s": round(time.monotonic() - plan.started, 3),
        **environment(),
    }
    if base is not None:
        provenance["base"] = base_of(base.info)
    return provenance
