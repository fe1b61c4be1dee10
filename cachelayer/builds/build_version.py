"""Build a version and publish it: once, whole, or not at all.

A build puts shards, which are named by what they hold. Then it puts the manifest, and the entry of the log that makes
it a version. So a build may die anywhere. If its source comes in parts, each finished part is noted, and any other
build with the same plan goes on after these notes; else it begins anew, and puts no shard that is there.

A child of a build never begins or awaits one: a worker of an engine, or of the source, such as of a ``DataLoader``. It
would wait for the build that waits for it, or start children that do the same: a module that builds when it is imported
is imported by each worker.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import BuildPlan, BuildRequest
from cachelayer.builds.element_specs import needs_elements, spec_of_batches
from cachelayer.builds.encode import Encoder
from cachelayer.builds.extensions import AddingColumns
from cachelayer.builds.part_builds import Hosts, build_parts, build_parts_together, join_hosts
from cachelayer.builds.parts import Parts
from cachelayer.builds.shard_pipeline import ShardPipeline, ShardTarget, shard_target
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import refuse_changed
from cachelayer.counting import count
from cachelayer.engines.engine import is_worker
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError, SourceError
from cachelayer.locks import ProcessLock
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.progress import Progress, Waiting, current
from cachelayer.provenance.environment import commit_of, environment, event, now
from cachelayer.provenance.function_code import code_file
from cachelayer.records.codec import codec_for
from cachelayer.records.memory import keep_freed_memory
from cachelayer.records.null_marks import marked
from cachelayer.records.tree import Tree
from cachelayer.temporary_files import maker_of, process_name
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
_WORKING_FOLDER = "CACHELAYER_WORKING_FOLDER"
"""The variable that tells children, which inherit it, the working folder of the build; it is there while that runs."""
_marked: list[str] = []
"""The working folders of the builds that run in this process."""
_marking = ProcessLock()
_UNDER_WAY: ContextVar[tuple[str, ...]] = ContextVar("cachelayer_builds_under_way", default=())
"""The versions whose builds this thread is in the middle of."""


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


def write_whole(source: Source, target: ShardTarget, options: BuildOptions) -> tuple[Tree, PartResult]:
    """Write a source that is not divided.

    Args:
        source: the source.
        target: where shards go.
        options: the options. Without an element spec, the first elements tell it.

    Returns:
        The spec of the elements, and the result.
    """
    keep_freed_memory()
    if options.workers > 1 and source.length != 0:
        warn(
            f"workers={options.workers}: a source of {source.kind} cannot be divided, so one process makes and writes "
            "its elements. More processes can work on a sequence with a length, on most datasets, and on what "
            "cachelayer.sharded(function, count) returns"
        )
    spec = options.element_spec
    batches = current().waiting_for("the source", source.batches(stop=options.max_records))
    if source.element_spec is None and needs_elements(spec, options):
        spec, batches = spec_of_batches(batches, spec, as_json=source.as_json)
    encoder = Encoder(codec_for(spec), options.on_error)
    with ShardPipeline(target, replace(options, element_spec=spec)) as pipeline:
        pipeline.write(map(encoder.encode, batches))
        pipeline.end_part(0, encoder.result)
        return spec, pipeline.finish()[0]


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
        count(lost_races=1)
        _log.info("%s: another process has published it", request.name)
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


@contextmanager
def building(version: str) -> Iterator[None]:
    """Mark this thread as one that builds a version.

    Args:
        version: the version, with the URL of its storage.

    Raises:
        InvalidArgumentError: if this process is a child of a build that is under way, or if the source of the version
            asks for it.
    """
    folder = Path(os.environ.get(_WORKING_FOLDER, ""))
    # A build of another user may have left its name here: its folder cannot be read.
    is_child = folder.name and os.access(folder, os.R_OK) and maker_of(folder) != process_name()
    if is_worker() or is_child:
        raise _refusal(version)
    if version in _UNDER_WAY.get():
        raise InvalidArgumentError(f"{version} is built from itself: its source asks for it, and would wait for ever")
    token = _UNDER_WAY.set((*_UNDER_WAY.get(), version))
    try:
        yield
    finally:
        _UNDER_WAY.reset(token)


@contextmanager
def marking_children(working_folder: Path) -> Iterator[None]:
    """Mark the processes that are started meanwhile as children of the build that has this working folder.

    Of builds in several threads, which may end in any order, the last that began is named as long as it runs.
    """
    folder = str(working_folder)
    with _marking.of_process():
        _marked.append(folder)
        os.environ[_WORKING_FOLDER] = folder
    try:
        yield
    finally:
        with _marking.of_process():
            _marked.remove(folder)
            if _marked:
                os.environ[_WORKING_FOLDER] = _marked[-1]
            else:
                os.environ.pop(_WORKING_FOLDER, None)


def refuse_to_await_parent(version: str, holder: str) -> None:
    """Raise if the build that is awaited runs in the process that started this one, and may wait for it.

    Args:
        version: the version that is to be built, with the URL of its storage.
        holder: the name of the process that builds it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and holder == process_name(parent.pid):
        raise _refusal(version)


def _refusal(version: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{version}: this process was started by a build, and would begin or await one itself: both would wait, or "
        "start processes, for ever. If a module builds when it is imported, as the workers of the build import it, "
        'move the call into a function, or below `if __name__ == "__main__":`. If the source builds what it needs, '
        "build that before"
    )
