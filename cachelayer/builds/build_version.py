"""Build a version and publish it: once, whole, or not at all.

::

    BuildRequest   what the user asks for: source, name, recipe, options
       │ BuildPlan.of: opens the source, finds the spec, divides the source into parts if it can
       v
    Source ──batches──> Encoder ──records──> ShardPipeline ──shards──> store         write_source.py
       │                                          │
       │ once, or part by part (build_parts)      └──a note of each finished part    part_builds.py
       v
    manifest ──> entry of the log: the version exists                                _publish

A build may die anywhere, because nothing counts before the entry of the log. Shards are named by their content, so a
build that begins anew puts no shard that is there. If the source comes in parts, finished parts are noted, and any
build with the same plan goes on after these notes.

Who builds is settled in two ways. Without ``hosts``, one process holds the claim of the version and builds all of it,
and the others wait. With ``hosts``, all of them build, each the parts that no other has claimed, and whoever sees all
notes publishes. A claim only saves work: if two publish, the log takes one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cachelayer.builds.build_plan import BuildPlan, BuildRequest
from cachelayer.builds.extensions import AddingColumns
from cachelayer.builds.nested_builds import building, refuse_to_await_parent
from cachelayer.builds.part_builds import Hosts, build_parts, build_parts_together, join_hosts
from cachelayer.builds.parts import Parts
from cachelayer.builds.shard_target import ShardTarget, shard_target
from cachelayer.builds.source_files import refuse_changed
from cachelayer.builds.write_source import write_source
from cachelayer.counting import count
from cachelayer.errors import AlreadyExistsError, SourceError
from cachelayer.host import process_name
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.progress import Progress, Waiting
from cachelayer.provenance.environment import commit_of, environment, event, now
from cachelayer.provenance.function_code import code_file
from cachelayer.records.codec import Codec, codec_for
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, Claims, expiry
from cachelayer.versions.derive import base_of
from cachelayer.versions.notes import PartResult
from cachelayer.versions.publish import NewVersion, Reliance, publish, refuse_if_taken, revoked_if_absent
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion

_log = logger_of("builds")
ALLOW_EMPTY = "if a version without records is meant, pass allow_empty=True"


def submit(request: BuildRequest) -> StoredVersion:
    """Build and publish a version that does not exist yet.

    Raises:
        AlreadyExistsError: if it exists, or another process publishes it meanwhile.
    """
    refuse_if_taken(request.log, request.version)
    built = build_once(request)
    if built is None:
        refuse_if_taken(request.log, request.version)
        raise AlreadyExistsError(f"{request.name} was published and deleted while it was built: build again")
    return built


def build_once(
    request: BuildRequest, hosts: Hosts | None = None, plan: BuildPlan | None = None, *, waits: bool = True
) -> StoredVersion | None:
    """Build and publish a version, once among all processes that ask for it.

    Args:
        hosts: the hosts that build it together; None if one process builds it.
        plan: the plan, if it is made already.
        waits: whether to wait for a process that builds it by itself.

    Returns:
        The version; None if another process has published it meanwhile, or builds it and ``waits`` is False.
    """
    with building(request.url):
        if hosts is None:
            return _build_in_turn(request, plan, waits=waits)
        # Every host opens the source, to see which parts there are.
        plan = BuildPlan.of(request) if plan is None else plan
        if plan.parts is not None:
            return _build_together(plan, plan.parts, hosts)
        warn(
            f"hosts: a source of {plan.source.kind} cannot be divided, so one host builds all of it: pass "
            "cachelayer.sharded(function, count), or a sequence with a length",
            logger="builds",
        )
        return _build_in_turn(request, plan, waits=waits)


def _build_in_turn(request: BuildRequest, plan: BuildPlan | None, *, waits: bool) -> StoredVersion | None:
    """Build the version once no other process builds it; return None if another publishes it."""
    claims = Claims(request.log.folder.folder(paths.builds(request.version)))
    waiting = Waiting(request.name, request.options.progress)
    while True:
        # Who waits reads, and writes nothing: hundreds may wait, and a bucket takes one write a second to one name.
        is_busy = claims.is_busy(CLAIM)
        is_published = request.is_published
        if is_published:
            return None
        if not is_busy:
            progress = Progress(request.name, None, request.options.progress)
            with claims.hold(CLAIM, progress) as is_ours:
                if request.is_published:
                    return None
                if is_ours:
                    return _build_alone(BuildPlan.of(request) if plan is None else plan, progress)
        if not waits:
            return None
        if is_busy:
            holder = claims.holder(CLAIM)
            refuse_to_await_parent(request.url, holder)
            if holder == process_name(os.getppid()):
                holder = f"{holder}, which started this process, and must not wait for it,"
            waiting.wait_for(
                f"{holder} to build it; if it gives no sign of life for {expiry():g} s, this process goes on"
            )
            claims.pause()


def _build_alone(plan: BuildPlan, progress: Progress) -> StoredVersion:
    """Build all of the version in this process and those that it starts, and publish it."""
    progress.total = plan.length
    with _working(plan, progress) as target:
        built, result = _write(plan, target)
        return _publish(plan, built, result, target)


def _write(plan: BuildPlan, target: ShardTarget) -> tuple[ShardSet, PartResult]:
    """Write the records, or the columns, of a version, and return them with what is known of the elements."""
    extension = plan.request.extension
    if isinstance(extension, AddingColumns):
        columns = extension.write_at_once(plan.source, plan.options, target)
        if columns is not None:
            return columns, PartResult()
    if plan.parts is None:
        codec, result = write_source(plan.source, target, plan.options)
        return _shard_set(codec, result), result
    result = build_parts(plan, plan.parts, target)
    return _shard_set(codec_for(plan.options.element_spec), result), result


def _build_together(plan: BuildPlan, parts: Parts, hosts: Hosts) -> StoredVersion | None:
    """Build the parts that no other host builds, and publish the version; return None if another host has."""
    request = plan.request
    progress = Progress(f"{request.name} (host {hosts.index})", None, plan.options.progress)
    with Claims(plan.notes.folder).hold(hosts.new_claim(), progress):
        join_hosts(plan)
        with _working(plan, progress) as target:
            result = build_parts_together(plan, parts, hosts, target)
            if result is None:
                return None
            # All hosts see the last note at about the same time, and all try to publish. The log takes the first.
            with suppress(AlreadyExistsError):
                return _publish(plan, _shard_set(codec_for(plan.options.element_spec), result), result, target)
            return None


@contextmanager
def _working(plan: BuildPlan, progress: Progress) -> Iterator[ShardTarget]:
    """Yield the shard target of a build, and show its progress meanwhile."""
    log = plan.request.log
    _log.info("%s: building from a source of %s", plan.request.name, plan.source.kind)
    with shard_target(log.folder, plan.copies, log.head().generation) as target, progress:
        yield target


def _shard_set(codec: Codec, result: PartResult) -> ShardSet:
    return ShardSet.of(codec.name, codec.schema.marked(result.nullable), ShardTable(result.shards))


def _publish(plan: BuildPlan, built: ShardSet, result: PartResult, target: ShardTarget) -> StoredVersion:
    """Publish what was built.

    Raises:
        AlreadyExistsError: if another process has published the version.
        SourceError: if the source changed while it was read, or had no element.
    """
    request = plan.request
    extension = request.extension
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
    with revoked_if_absent(request.log, request.version, built.files):
        manifest = extension.finish(built, _provenance(plan, result), target, plan.options)
    try:
        new = NewVersion(request.version, manifest, change, manifest.provenance["time"])
        relies_on = [
            *map(Reliance, plan.source.versions),
            *([] if base is None else [Reliance(base, shares_files=True)]),
        ]
        published = publish(request.log, new, relies_on)
    except AlreadyExistsError:
        count(lost_races=1)
        _log.info("%s: another process has published it", request.name)
        _forget_notes(plan)
        raise
    _forget_notes(plan)
    _log.info("%s: published %d records in %d shards", request.name, published.manifest.records, len(result.shards))
    return published


def _forget_notes(plan: BuildPlan) -> None:
    if plan.parts is not None:
        plan.notes.delete_all()


def _nothing_built(plan: BuildPlan, result: PartResult) -> SourceError:
    """Return the error of a build that has no records."""
    name = plan.request.name
    function = plan.recipe.name if callable(plan.recipe.made_by) else None
    source = f"a source of {plan.source.kind}"
    if function is not None:
        source = f"{source}, which {function}() made,"
    if result.left_out:
        return SourceError(
            f"{name}: on_error='skip' left out all {result.left_out} elements of {source}; {ALLOW_EMPTY}. The first: "
            f"{_first_left_out(result)}"
        )
    hint = ALLOW_EMPTY
    if plan.source.length != 0:
        hint = f"an iterator gives its elements once, so pass a function that returns a new one; {hint}"
    return SourceError(f"{name}: {source} has no element: {hint}")


def _first_left_out(result: PartResult) -> str:
    return result.first_reason or result.first_left_out[0]


def _provenance(plan: BuildPlan, result: PartResult) -> dict[str, Any]:
    """Return the provenance: the user's description and metadata, and how the version was made."""
    annotations = plan.options.annotations
    base = plan.request.extension.base
    inherited = {} if base is None else base.manifest.provenance.get("metadata") or {}
    provenance = {
        **annotations,
        "metadata": {**inherited, **plan.source.metadata, **annotations["metadata"]},
    }
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
