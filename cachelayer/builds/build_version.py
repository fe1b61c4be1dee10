"""Build a version and publish it: once, whole, or not at all.

A build attempt writes shards into a folder of its own, then its manifest, and becomes a version by one entry of the
dataset's log. Nothing outside the log counts as a version, so a build may die anywhere.

Each stage returns what the next one takes::

    BuildJob.of        the job: source, options, parts, plan
    Attempts.lead      whose turn it is to build the version
    Resumption         what an interrupted attempt has finished
    build, join_parts  the shards
    Committer.publish  the version, with its manifest
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from cachelayer.builds.build_job import BuildJob
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_parts import (
    Hosts,
    PartTask,
    SharedParts,
    build_parts,
    build_together,
    join_parts,
    refuse_other_build,
    remove_unnamed_shards,
)
from cachelayer.builds.build_shards import NOTHING, Built, EarlierShards, build
from cachelayer.builds.compare_source import check_earlier
from cachelayer.builds.resume import BuildNotes, Resumption
from cachelayer.builds.sharded_source import Division
from cachelayer.builds.source import Source, metadata_of, provenance_of
from cachelayer.builds.source_facts import SourceFacts
from cachelayer.builds.source_identity import refuse_changed
from cachelayer.builds.staging import Stage, staging
from cachelayer.engines import Engine, engine_of
from cachelayer.errors import BuildRevokedError, CacheLayerError, CorruptionError, SourceError, StorageError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.progress import Progress, Waiting, notice
from cachelayer.provenance.environment import commit_of, environment, now
from cachelayer.provenance.origin import Origin
from cachelayer.records import spec_json
from cachelayer.user_warnings import warn
from cachelayer.versions.attempts import Lead, attempts_of, new_attempt, pause
from cachelayer.versions.commit import Committer
from cachelayer.versions.derive import appended, base_of
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Composition, Manifest
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.unfinished import Finished, Unfinished

ALLOW_EMPTY = "if a version without records is meant, pass allow_empty=True"
_SOON = 1.0
"""Shorter waits, in seconds, are not shown."""


class Publisher:
    """Builds one version and publishes it, whole or not at all.

    Args:
        log: the log of the dataset.
        copies: keeps local copies of the new shards if the store is not local; None for none.
        version: the name of the version.
        source: the user's source; a function is called when the build begins.
        origin: the code and values that make the source.
        options: the options.
        base: the version to append to; None for none.
    """

    def __init__(
        self,
        log: Log,
        copies: CacheFolder | None,
        version: str,
        source: Any,
        origin: Origin,
        options: BuildOptions,
        base: StoredVersion | None = None,
    ) -> None:
        self._log = log
        self._store = log.store
        self._copies = copies
        self._dataset_id = log.dataset_id
        self._version = version
        self._source = source
        self._origin = origin
        self._options = options
        self._base = base
        self._name = f"{log.dataset_id}@{version}"
        self._committer = Committer(log, version, None if base is None else base.info)
        self._attempts = attempts_of(log.store, log.dataset_id)
        self._unfinished = Unfinished(log.store, log.dataset_id, version)
        self._progress: Progress | None = None

    def submit(self) -> StoredVersion:
        """Build and publish the version, even if others build it too."""
        self._committer.refuse_if_published()
        attempt = new_attempt()
        with self._attempts.running(attempt, self._status):
            return self._build(attempt, self.job())

    def build_once(self, hosts: Hosts | None = None) -> StoredVersion | None:
        """Build and publish the version, one process at a time, or several hosts together.

        Args:
            hosts: the hosts that build it together, if the source has parts; None for one host.

        Returns:
            The version; None if another has published it meanwhile.
        """
        job: BuildJob | None = None
        if hosts is not None:
            # Decided once: the first element may be taken from an iterator to decide it.
            job = self.job(apart=True)
            if job.division is not None:
                return self._build_together(job, job.division, hosts)
            warn(
                f"hosts: a source of {job.source.kind} cannot be divided, so one host builds all of it: pass "
                "cachelayer.sharded(function, count), or a sequence with a length"
            )
        waiting = Waiting(self._name, self._options.progress)
        while True:
            with self._attempts.lead(self._version, self._status) as lead:
                if lead.is_ours:
                    return self._build_unless_published(lead, job)
            self._attempts.wait(lead, waiting)
            if self._committer.is_published():
                return None

    def _build_together(self, job: BuildJob, division: Division, hosts: Hosts) -> StoredVersion | None:
        """Build it with the other hosts: one leads and publishes it at the end, and the others help."""
        while True:
            with self._attempts.lead(self._version, self._status) as lead:
                if lead.is_ours:
                    with suppress(BuildRevokedError):
                        return self._build_unless_published(lead, job, hosts)
                    continue
            try:
                self._help(lead.attempt, job, division, hosts)
            except CacheLayerError:
                # It was published, or another host leads now and has removed what this one was building.
                over = self._committer.is_published() or self._committer.is_revoked(lead.attempt)
                if not over and not self._attempts.dead([lead.attempt]):
                    raise
            pause()
            if self._committer.is_published():
                return None

    def _build_unless_published(
        self, lead: Lead, job: BuildJob | None, hosts: Hosts | None = None
    ) -> StoredVersion | None:
        """Build it as the leader; return None if it has been published meanwhile."""
        if lead.dead is not None:
            if self._options.resume:
                self._committer.adopt(lead.dead, lead.attempt)
            else:
                self._committer.revoke(lead.dead)
            self._attempts.forget(lead.dead)
        if self._committer.is_published():
            return None
        return self._build(lead.attempt, self.job() if job is None else job, hosts)

    def job(self, *, apart: bool = False) -> BuildJob:
        """Return the job; see :meth:`BuildJob.of`."""
        return BuildJob.of(self._source, self._origin, self._options, self._base, apart=apart)

    def _help(self, lead: str, job: BuildJob, division: Division, hosts: Hosts) -> None:
        """Help another host to build parts, for as long as it leads."""
        begun = self._unfinished.begun(lead) if lead else None
        if begun is None or not begun.is_divided or self._attempts.dead([lead]):
            return
        spec = spec_json.to_json(job.options.element_spec)
        ours = Finished(job.plan.stored, spec, job.source.length, is_divided=True)
        refuse_other_build(self._name, ours, begun)
        name = new_attempt()
        with (
            self._attempts.running(name, self._status),
            Progress(f"{self._name} (host {hosts.index})", None, job.options.progress) as progress,
        ):
            self._progress = progress
            shared = SharedParts(self._task(lead, division), self._attempts, hosts, name, begun.parts)
            build_together(shared, self._engine(), progress)

    def _engine(self) -> Engine:
        return engine_of(self._options.engine, self._options.workers)

    def _task(self, attempt: str, division: Division) -> PartTask:
        # The process that publishes writes the description and metadata.
        lean = replace(division.options, kept={})
        return PartTask(self._store, self._copies, self._dataset_id, self._version, attempt, division.parts, lean)

    def _status(self) -> str:
        return "about to begin" if self._progress is None else str(self._progress)

    def _build(self, attempt: str, job: BuildJob, hosts: Hosts | None = None) -> StoredVersion:
        """Write the shards, and publish them."""
        started = time.monotonic()
        divided = job.division is not None
        notes = BuildNotes(self._unfinished, attempt, job.plan, job.source.length, is_divided=divided)
        with self._undone_if_it_fails(notes):
            earlier = self._take_over(job, notes) if job.options.resume else None
            with (
                staging(self._store, self._copies, self._dataset_id, attempt) as stage,
                Progress(self._name, None if hosts else job.length, job.options.progress) as progress,
            ):
                self._progress = progress
                if job.division is None:
                    built = self._in_one_piece(job, stage, notes, earlier, progress)
                else:
                    task = self._task(attempt, job.division)
                    built = self._in_parts(task, notes, earlier, progress, hosts)
                refuse_changed(job.files, job.source)
                self._refuse_if_empty(built, job.source)
                built.left_out.warn()
                published = self._publish(attempt, built, self._provenance(job, built, started))
        notes.forget()
        if divided:
            # Not earlier: another process that takes this attempt for dead resumes from these files.
            taken = set() if earlier is None else {shard.attempt for shard in earlier.shards}
            for each in sorted({attempt, *taken}):
                remove_unnamed_shards(self._store, self._dataset_id, each, built.shards)
        return published

    @contextmanager
    def _undone_if_it_fails(self, notes: BuildNotes) -> Iterator[None]:
        """Abandon the attempt if the build fails; what it finished stays if another build can resume it."""
        attempt, builder = notes.attempt, os.getpid()
        try:
            yield
        except BaseException as error:
            if os.getpid() != builder:
                # This is a child that the source forked: the build belongs to its parent.
                raise
            keeps = self._options.resume and notes.has_finished
            revoked = self._committer.abandon(attempt, keep=keeps, is_known=notes.is_known)
            if not keeps:
                notes.forget()
            if revoked and isinstance(error, StorageError | CorruptionError):
                raise BuildRevokedError(f"build attempt {attempt} of {self._name} was revoked: build again") from error
            raise

    def _take_over(self, job: BuildJob, notes: BuildNotes) -> Finished | None:
        """Return what an interrupted attempt has finished, and tell the user."""
        spec = job.options.element_spec if job.options.element_spec is not None else job.source.element_spec
        resumption = Resumption(self._log, self._version, self._attempts, self._unfinished, notes)
        earlier = resumption.take_over(spec, Waiting(self._name, job.options.progress, after=_SOON))
        if earlier is not None:
            notice(
                f"{self._name}: resuming after {earlier.records:,} records of an interrupted build",
                job.options.progress,
            )
        return earlier

    def _in_one_piece(
        self, job: BuildJob, stage: Stage, notes: BuildNotes, finished: Finished | None, progress: Progress
    ) -> Built:
        """Build the source in one piece, resuming from an interrupted attempt."""
        options, earlier = job.options, NOTHING
        if finished is not None:
            earlier = EarlierShards.of(finished)
            check_earlier(self._store, self._dataset_id, job.source, earlier, options)
        kept = notes if options.resume else None
        return build(job.source, stage, notes.attempt, options, progress, earlier=earlier, notes=kept)

    def _in_parts(
        self, task: PartTask, notes: BuildNotes, earlier: Finished | None, progress: Progress, hosts: Hosts | None
    ) -> Built:
        """Build the unfinished parts of the source, on this host or others."""
        finished = {} if earlier is None else earlier.parts
        task.check_repeats(finished)
        notes.begin(task.options.element_spec)
        if hosts is None:
            build_parts(task, self._engine(), progress, finished)
        else:
            shared = SharedParts(task, self._attempts, hosts, task.attempt, finished)
            build_together(shared, self._engine(), progress)
        return join_parts(task, finished)

    def _refuse_if_empty(self, built: Built, source: Source) -> None:
        """Raise if there are no records, unless the user allows that."""
        if built.shards or self._options.allow_empty:
            return
        made_by = self._origin.name if callable(self._origin.source) else None
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
            **self._origin.after_build().to_json(),
            **commit_of(self._origin.source),
            **({} if self._base is not None else self._known_again(job, built)),
            **provenance_of(job.source),
            "source": job.source.kind,
            "time": now(),
            "duration_s": round(time.monotonic() - started, 3),
            **environment(),
        }

    def _known_again(self, job: BuildJob, built: Built) -> dict[str, Any]:
        """Return what the version records of the source, so that a later call can recognise it."""
        facts = SourceFacts.of(self._source, self._options)
        return {
            **({"identity": identity} if (identity := job.plan.stored_identity) else {}),
            **facts.recorded(self._store, self._dataset_id, job.source, built, self._options),
        }

    def _publish(self, attempt: str, built: Built, provenance: dict[str, Any]) -> StoredVersion:
        shards = ShardTable.of(built.shards)
        manifest = Manifest(built.codec, built.element_spec, shards, provenance, uuid.uuid4().hex)
        adopted = shards.attempts - {attempt}
        if self._base is None:
            return self._committer.publish(attempt, Composition(manifest, {}), {}, adopted)
        inherited = self._base.manifest.provenance.get("metadata") or {}
        provenance["metadata"] = {**inherited, **provenance["metadata"]}
        provenance["base"] = base_of(self._base.info)
        made = appended(self._base, manifest, attempt)
        return self._committer.publish(attempt, made, {"base": self._base.info.version}, adopted)
