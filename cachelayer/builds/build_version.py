"""Build a version and publish it: once, whole, or not at all.

A build puts shards, which are named by what they hold, and notes each finished part; when all parts are noted, whoever
sees it puts the manifest and the entry of the log that makes it a version. So a build may die anywhere, and any other
with the same plan goes on after its notes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from cachelayer.builds.build_job import BuildJob
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.child_processes import building, marking_children, refuse_to_await_parent
from cachelayer.builds.extensions import Extension
from cachelayer.builds.ordered_records import OrderedRecords
from cachelayer.builds.parts import Parts, Ranges
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.shard_target import ShardTarget, shard_target
from cachelayer.builds.shared_build import Hosts, PartTask, run, unclaimed, warn_of_equal_parts
from cachelayer.builds.source import Skippable, Source, metadata_of, provenance_of, versions_read
from cachelayer.builds.source_files import refuse_changed
from cachelayer.builds.write_shards import Built, Noting, write_parts, write_whole
from cachelayer.engines import Engine, engine_of
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError, SourceError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.progress import Progress, Waiting, notice
from cachelayer.provenance.code_in_objects import code_file
from cachelayer.provenance.environment import commit_of, environment, event, now
from cachelayer.provenance.stored_values import Wording, differences
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, Claims, expiry
from cachelayer.versions.derive import base_of
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.notes import FinishedPart, Notes
from cachelayer.versions.publish import publish, refuse_if_taken
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion

ALLOW_EMPTY = "if a version without records is meant, pass allow_empty=True"


class VersionBuild:
    """Builds one version and publishes it, whole or not at all, once among all processes that ask for it.

    Args:
        log: the log of the dataset.
        copies: keeps local copies of the new shards if the store is not local; None for none.
        version: the name of the version.
        source: the user's source; a function is called when the build begins.
        recipe: what the version is built from.
        options: the options.
        extension: what the version adds to another one; None for a version of its own.
    """

    def __init__(
        self,
        log: Log,
        copies: CacheFolder | None,
        version: str,
        source: Any,
        recipe: Recipe,
        options: BuildOptions,
        extension: Extension | None = None,
    ) -> None:
        self._log = log
        self._store = log.store
        # No local copies of what no version names: nobody would remove them when records are erased.
        self._copies = None if extension is not None and extension.is_put_again else copies
        self._dataset_id = log.dataset_id
        self._version = version
        self._source = source
        self._recipe = recipe
        self._options = options
        self._extension = extension
        self._name = f"{log.dataset_id}@{version}"
        self._full_name = f"{log.store.url}/{self._name}"

    def submit(self) -> StoredVersion:
        """Build and publish the version.

        Raises:
            AlreadyExistsError: if it exists, or another process publishes it meanwhile.
        """
        refuse_if_taken(self._log, self._version)
        built = self.build()
        if built is None:
            refuse_if_taken(self._log, self._version)
            raise AlreadyExistsError(f"{self._name} was published and deleted while it was built: build again")
        return built

    def build(self, hosts: Hosts | None = None) -> StoredVersion | None:
        """Build and publish the version, one process at a time, or several hosts together.

        Args:
            hosts: the hosts that build it together, if the source has parts; None for one host.

        Returns:
            The version; None if another has published it meanwhile.
        """
        with building(self._full_name):
            return self._build_or_wait(hosts)

    def _build_or_wait(self, hosts: Hosts | None) -> StoredVersion | None:
        """Build the version, or wait for another process that does."""
        job: BuildJob | None = None
        if hosts is not None:
            # Decided once: the first element may be taken from an iterator to decide it.
            job = self.job()
            if job.parts is not None:
                notes = self._notes(job)
                with Claims(self._store, notes.folder).hold(hosts.claim):
                    return self._build(job, notes, hosts)
            warn(
                f"hosts: a source of {job.source.kind} cannot be divided, so one host builds all of it: pass "
                "cachelayer.sharded(function, count), or a sequence with a length"
            )
        claims = Claims(self._store, paths.builds(self._dataset_id, self._version))
        waiting = Waiting(self._name, self._options.progress)
        while True:
            with claims.hold(CLAIM) as is_ours:
                if self._is_published():
                    return None
                if is_ours:
                    job = self.job() if job is None else job
                    return self._build(job, self._notes(job), None)
            # Watches the holder, and removes the claim of one that died.
            if claims.is_busy(CLAIM):
                holder = claims.holder(CLAIM)
                refuse_to_await_parent(self._full_name, holder)
                waiting.wait_for(
                    f"{holder} to build it; if it gives no sign of life for {expiry():g} s, this process goes on"
                )
                claims.pause()

    def job(self) -> BuildJob:
        """Return the job; see :meth:`BuildJob.of`."""
        added = self._extension
        where = (None, None) if added is None else (added.base, added.spec)
        return BuildJob.of(self._source, self._recipe, self._options, *where)

    def _is_published(self) -> bool:
        """Return whether there is a version, or a tag, of this name."""
        head = self._log.head()
        return head.tags.get(self._version, self._version) in head.versions

    def _build(self, job: BuildJob, notes: Notes, hosts: Hosts | None) -> StoredVersion | None:
        """Build what is not noted yet, and publish the version; return None if others have published it."""
        started = time.monotonic()
        if hosts is not None:
            self._join_others(job, notes)
        finished = self._finished(notes, job) if job.options.resume else {}
        title = self._name if hosts is None else f"{self._name} (host {hosts.index})"
        with (
            self._target() as target,
            marking_children(target.folder),
            Progress(title, None if hosts is not None else job.length, job.options.progress) as progress,
        ):
            whole = None if self._extension is None else self._extension.write(job, target, progress)
            if whole is not None:
                built = whole
            elif job.parts is None:
                noting = Noting(notes, is_kept=job.options.resume)
                built = write_whole(job.source, target, job.options, progress, noting, finished)
            else:
                parts = self._build_parts(job, job.parts, notes, finished, hosts, target, progress)
                if parts is None:
                    return None
                if not isinstance(job.parts, Ranges):
                    warn_of_equal_parts(parts)
                built = Built.of(job.options.element_spec, [parts[number] for number in range(job.parts.count)])
            try:
                return self._publish(job, built, notes, target, started)
            except AlreadyExistsError:
                if hosts is None:
                    raise
                return None

    def _target(self) -> AbstractContextManager[ShardTarget]:
        return shard_target(self._store, self._copies, self._dataset_id, self._log.head().generation)

    def _notes(self, job: BuildJob) -> Notes:
        # A build that nobody may resume shares its notes with nobody.
        plan = job.plan if job.options.resume else {**job.plan, _ALONE: uuid.uuid4().hex}
        return Notes(self._store, self._dataset_id, self._version, plan)

    def _finished(self, notes: Notes, job: BuildJob) -> dict[int, FinishedPart]:
        """Return what interrupted builds with the same plan have finished, and tell the user."""
        try:
            finished = notes.finished(self._log)
            others = {} if finished else notes.others()
        except StorageError as error:
            # Building does not need the right to list.
            warn(f"cannot see whether there is an interrupted build to resume, so all of it is built anew: {error}")
            return {}
        if finished:
            records = sum(part.records for part in finished.values())
            if job.parts is not None or isinstance(job.source, Skippable):
                notice(
                    f"{self._name}: resuming after {records:,} records of an interrupted build", job.options.progress
                )
        for plan in list(others.values())[:1]:
            if _ALONE not in plan:
                warn(
                    f"{self._name} is built from its beginning: an interrupted build cannot be resumed: "
                    f"{'; '.join(differences(plan, job.plan))}"
                )
        return finished

    def _join_others(self, job: BuildJob, notes: Notes) -> None:
        """Note the plan; raise if another host builds something else under this name."""
        if not job.options.resume:
            raise InvalidArgumentError(
                "resume=False: hosts that build together go on from each other's notes: leave it out, or build on one"
            )
        notes.begin(job.options.element_spec)
        for folder, plan in notes.others().items():
            claims = Claims(self._store, folder)
            if any(claims.is_alive(name) for name in self._store.names(folder) if name.endswith(CLAIM)):
                differ = "; ".join(differences(plan, job.plan, Wording.AMONG_HOSTS))
                raise InvalidArgumentError(
                    f"{self._name}: another host builds something else: {differ}. Pass the same source, made by the "
                    "same code, and the same options on all hosts; only hosts=(index, count) may differ between them"
                )

    def _build_parts(
        self,
        job: BuildJob,
        parts: Parts,
        notes: Notes,
        finished: dict[int, FinishedPart],
        hosts: Hosts | None,
        target: ShardTarget,
        progress: Progress,
    ) -> dict[int, FinishedPart] | None:
        """Build the parts that are not finished, alone or with other hosts; None if others have published them."""
        if hosts is None:
            progress.skip(sum(part.records for part in finished.values()))
        engine, claims = _engine(job), Claims(self._store, notes.folder)
        waiting = Waiting(self._name, job.options.progress)
        order = range(parts.count) if hosts is None else hosts.in_order(parts.count)
        if engine is not None and hosts is None:
            notes.begin(job.options.element_spec)
        while missing := [number for number in order if number not in finished]:
            progress.parts(len(finished), parts.count)
            if hosts is not None and self._is_published():
                return None
            free = missing if hosts is None else list(unclaimed(missing, claims, self._store.names(notes.folder)))
            before = len(finished)
            if engine is None and hosts is None:
                finished = {**finished, **self._write_parts(job, parts, free, notes, target, progress)}
            else:
                run(
                    self._task(job, parts, notes, hosts, target.generation),
                    engine or engine_of(None, 1),
                    progress,
                    iter(free),
                )
                finished = notes.finished(self._log, finished)
            if len(finished) > before:
                continue
            if free and (hosts is None or free == list(unclaimed(free, claims, self._store.names(notes.folder)))):
                # Who publishes deletes the notes.
                refuse_if_taken(self._log, self._version)
                raise SourceError(f"the engine ended without {parts.describe(free[0])}")
            waiting.wait_for("the parts that other hosts build")
            claims.pause()
        progress.parts(len(finished), parts.count)
        return None if hosts is not None and self._is_published() else finished

    def _write_parts(
        self,
        job: BuildJob,
        parts: Parts,
        numbers: Sequence[int],
        notes: Notes,
        target: ShardTarget,
        progress: Progress,
    ) -> dict[int, FinishedPart]:
        """Write parts in this process, and note each."""
        noting = Noting(notes, is_kept=job.options.resume)
        noting.begin(job.options.element_spec)
        write_parts(parts, numbers, target, job.options, progress, noting.add)
        return noting.parts

    def _task(self, job: BuildJob, parts: Parts, notes: Notes, hosts: Hosts | None, generation: int) -> PartTask:
        where = self._store, self._copies, self._dataset_id, self._version
        lean = job.options.lean(workers=job.options.workers if _engine(job) is None else 1)
        return PartTask(*where, notes.plan, generation, parts, lean, is_shared=hosts is not None)

    def _publish(self, job: BuildJob, built: Built, notes: Notes, target: ShardTarget, started: float) -> StoredVersion:
        refuse_changed(job.files, job.source)
        self._refuse_if_empty(built, job.source)
        built.left_out.warn()
        provenance = self._provenance(job, built, started)
        shards, numbers = ShardTable(built.shards), None
        manifest = Manifest(built.codec, built.element_spec, shards, provenance, uuid.uuid4().hex)
        change, base = event("publish", version=self._version), None
        if self._extension is not None:
            base = self._extension.base
            change = event("publish", version=self._version, base=base.info.version)
            inherited = self._extension.base.manifest.provenance.get("metadata") or {}
            provenance["metadata"] = {**inherited, **provenance["metadata"]}
            provenance["base"] = base_of(base.info)
            manifest, numbers = self._extension.join(built, manifest, target, self._options)
        try:
            published = publish(
                self._log, self._version, manifest, numbers, change, base, read=versions_read(job.source)
            )
        except AlreadyExistsError:
            notes.forget()
            raise
        notes.forget()
        return published

    def _refuse_if_empty(self, built: Built, source: Source) -> None:
        """Raise if there are no records, unless the user allows that."""
        if built.shards or built.array is not None or self._options.allow_empty:
            return
        made_by = self._recipe.name if callable(self._recipe.source_of_code) else None
        of = f"a source of {source.kind}" + (f", which {made_by}() made," if made_by else "")
        left_out = built.left_out
        if left_out.count:
            raise SourceError(
                f"{self._name}: on_error='skip' left out all {left_out.count} elements of {of}; {ALLOW_EMPTY}. The "
                f"first: {left_out.first[0]}"
            )
        once = "an iterator gives its elements once, so pass a function that returns a new one; "
        raise SourceError(f"{self._name}: {of} has no element: {'' if source.length == 0 else once}{ALLOW_EMPTY}")

    def _provenance(self, job: BuildJob, built: Built, started: float) -> dict[str, Any]:
        """Return the provenance: the user's description and metadata, and how the version was made."""
        kept = self._options.kept
        return {
            **kept,
            "metadata": {**metadata_of(job.source), **kept["metadata"]},
            **built.left_out.provenance,
            **job.recipe.provenance,
            **commit_of(code_file(self._recipe.source_of_code)),
            **provenance_of(job.source),
            "source": job.source.kind,
            "time": now(),
            "duration_s": round(time.monotonic() - started, 3),
            **environment(),
        }


_ALONE = "build"
"""The key in the plan of a build that nobody may resume."""


def _engine(job: BuildJob) -> Engine | None:
    """Return what runs the parts of a build in other processes; None if this process writes them.

    Worker processes then make the elements of ranges, and this process writes them: that divides small versions too.
    """
    options = job.options
    by_chunks = isinstance(job.parts, Ranges) and not isinstance(job.parts.source, OrderedRecords)
    if options.engine is None and (by_chunks or options.workers == 1):
        return None
    return engine_of(options.engine, options.workers)
