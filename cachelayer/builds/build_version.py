"""Build a version and publish it: once, whole, or not at all.

A build puts shards, which are named by what they hold. Then it puts the manifest, and the entry of the log that makes
it a version. So a build may die anywhere. If its source comes in parts, each finished part is noted, and any other
build with the same plan goes on after these notes; else it begins anew, and puts no shard that is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cachelayer.builds.build_plan import BuildPlan, BuildRequest
from cachelayer.builds.child_processes import building, marking_children, refuse_to_await_parent
from cachelayer.builds.encode import marked
from cachelayer.builds.extensions import AddingColumns
from cachelayer.builds.part_builds import Hosts, build_parts, build_parts_together, join_hosts
from cachelayer.builds.parts import Parts
from cachelayer.builds.shard_pipeline import ShardTarget, shard_target
from cachelayer.builds.source_files import refuse_changed
from cachelayer.builds.write_shards import write_whole
from cachelayer.errors import AlreadyExistsError, SourceError
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.progress import Progress, Waiting
from cachelayer.provenance.environment import commit_of, environment, event, now
from cachelayer.provenance.function_code import code_file
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, Claims, expiry
from cachelayer.versions.derive import base_of
from cachelayer.versions.notes import PartResult
from cachelayer.versions.publish import publish, refuse_if_taken
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion

_log = logger_of("builds")
ALLOW_EMPTY = "if a version without records is meant, pass allow_empty=True"


def submit(request: BuildRequest) -> StoredVersion:
    """Build and publish a version.

    Raises:
        AlreadyExistsError: if it exists, or another process publishes it meanwhile.
    """
    refuse_if_taken(request.log, request.version)
    built = build_once(request)
    if built is None:
        refuse_if_taken(request.log, request.version)
        raise AlreadyExistsError(f"{request.name} was published and deleted while it was built: build again")
    return built


def build_once(request: BuildRequest, hosts: Hosts | None = None) -> StoredVersion | None:
    """Build and publish a version, one process at a time, or several hosts together.

    Args:
        request: what to build. Its source is touched by a process that builds alone.
        hosts: the hosts that build it together, if the source has parts; None for one host.

    Returns:
        The version; None if another has published it meanwhile.
    """
    with building(request.url):
        if hosts is None:
            return _build_in_turn(request)
        plan = BuildPlan.of(request)
        if plan.parts is not None:
            return _build_together(plan, plan.parts, hosts)
        warn(
            f"hosts: a source of {plan.source.kind} cannot be divided, so one host builds all of it: pass "
            "cachelayer.sharded(function, count), or a sequence with a length",
            room="builds",
        )
        return _build_in_turn(request, plan)


def _build_in_turn(request: BuildRequest, plan: BuildPlan | None = None) -> StoredVersion | None:
    """Build the version when no other process does; return None if another has published it.

    Args:
        request: what to build.
        plan: how, if that is decided already.
    """
    claims = Claims(request.log.folder.folder(paths.builds(request.version)))
    waiting = Waiting(request.name, request.options.progress)
    while True:
        progress = Progress(request.name, None, request.options.progress)
        with claims.hold(CLAIM, progress) as is_ours:
            if request.is_published:
                return None
            if is_ours:
                return _build_alone(BuildPlan.of(request) if plan is None else plan, progress)
        # Watches the holder, and removes the claim of one that died.
        if claims.is_busy(CLAIM):
            holder = claims.holder(CLAIM)
            refuse_to_await_parent(request.url, holder)
            waiting.wait_for(
                f"{holder} to build it; if it gives no sign of life for {expiry():g} s, this process goes on"
            )
            claims.pause()


def _build_alone(plan: BuildPlan, progress: Progress) -> StoredVersion:
    """Build the version, and publish it."""
    progress.total = plan.length
    with _working(plan, progress) as target:
        extension = plan.request.extension
        if isinstance(extension, AddingColumns):
            columns = extension.write_at_once(plan.source, plan.options, target)
            if columns is not None:
                return _publish(plan, columns, PartResult(), target)
        if plan.parts is None:
            spec, result = write_whole(plan.source, target, plan.options)
        else:
            spec, result = plan.options.element_spec, build_parts(plan, plan.parts, target)
        return _publish(plan, _shard_set(spec, result), result, target)


def _build_together(plan: BuildPlan, parts: Parts, hosts: Hosts) -> StoredVersion | None:
    """Build parts that no other host builds, and publish the version if no other does; return None if one has."""
    request = plan.request
    progress = Progress(f"{request.name} (host {hosts.index})", None, plan.options.progress)
    with Claims(plan.notes.folder).hold(hosts.claim, progress):
        join_hosts(plan)
        with _working(plan, progress) as target:
            result = build_parts_together(plan, parts, hosts, target)
            if result is None:
                return None
            with suppress(AlreadyExistsError):
                return _publish(plan, _shard_set(plan.options.element_spec, result), result, target)
            return None


@contextmanager
def _working(plan: BuildPlan, progress: Progress) -> Iterator[ShardTarget]:
    """Yield where the shards of a build go; meanwhile its progress is shown."""
    log = plan.request.log
    _log.info("%s: building from a source of %s", plan.request.name, plan.source.kind)
    with (
        shard_target(log.folder, plan.copies, log.head().generation) as target,
        marking_children(target.folder),
        progress,
    ):
        yield target


def _shard_set(spec: Tree, result: PartResult) -> ShardSet:
    return ShardSet.of(codec_for(spec).name, marked(spec, result.nullable), ShardTable(result.shards))


def _publish(plan: BuildPlan, built: ShardSet, result: PartResult, target: ShardTarget) -> StoredVersion:
    request, extension = plan.request, plan.request.extension
    refuse_changed(plan.files, plan.source)
    if not built.files and not plan.options.allow_empty:
        raise _nothing_built(plan, result)
    if result.left_out:
        warn(
            f"{result.left_out} of {result.elements} records were left out. The first: {result.first_left_out[0]}",
            room="builds",
        )
    base = extension.base
    change = event("publish", version=request.version, **({} if base is None else {"base": base.info.version}))
    manifest = extension.finish(built, _provenance(plan, result), target, plan.options)
    try:
        published = publish(request.log, request.version, manifest, change, base, read=plan.source.versions)
    except AlreadyExistsError:
        _forget_notes(plan)
        raise
    _forget_notes(plan)
    _log.info("%s: published %d records in %d shards", request.name, published.manifest.records, len(result.shards))
    return published


def _forget_notes(plan: BuildPlan) -> None:
    if plan.parts is not None:
        plan.notes.forget()


def _nothing_built(plan: BuildPlan, result: PartResult) -> SourceError:
    """Return the error of a build that has no records."""
    name, recipe = plan.request.name, plan.recipe
    made_by = recipe.name if callable(recipe.made_by) else None
    of = f"a source of {plan.source.kind}" + (f", which {made_by}() made," if made_by else "")
    if result.left_out:
        return SourceError(
            f"{name}: on_error='skip' left out all {result.left_out} elements of {of}; {ALLOW_EMPTY}. The first: "
            f"{result.first_left_out[0]}"
        )
    once = "an iterator gives its elements once, so pass a function that returns a new one; "
    return SourceError(f"{name}: {of} has no element: {'' if plan.source.length == 0 else once}{ALLOW_EMPTY}")


def _provenance(plan: BuildPlan, result: PartResult) -> dict[str, Any]:
    """Return the provenance: the user's description and metadata, and how the version was made."""
    annotations, base, left_out = plan.options.annotations, plan.request.extension.base, result.left_out
    inherited = {} if base is None else base.manifest.provenance.get("metadata") or {}
    return {
        **annotations,
        "metadata": {**inherited, **plan.source.metadata, **annotations["metadata"]},
        **({"left_out": {"records": left_out, "first": list(result.first_left_out)}} if left_out else {}),
        **plan.recipe.provenance,
        **commit_of(code_file(plan.recipe.made_by)),
        **plan.source.provenance,
        "source": plan.source.kind,
        "shard_bytes": plan.options.shard_bytes,
        "time": now(),
        "duration_s": round(time.monotonic() - plan.started, 3),
        **environment(),
        **({} if base is None else {"base": base_of(base.info)}),
    }
