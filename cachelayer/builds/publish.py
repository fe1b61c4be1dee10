"""Building a version and publishing it: once, whole, or not at all.

A build attempt writes shards into a folder of its own, then its manifest, and becomes a version by one entry of the
dataset's log. What is not in the log is no version, so a build may die anywhere.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cachelayer.builds.appending import check_fits
from cachelayer.builds.build import Built, build
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_parts import (
    Hosts,
    build_parts,
    build_together,
    collected,
    refuse_other_build,
    remove_others,
)
from cachelayer.builds.compare_source import check_earlier
from cachelayer.builds.part_task import PartTask
from cachelayer.builds.resume import Resumption
from cachelayer.builds.sharded_source import Division, Parts, divided
from cachelayer.builds.source import Source, as_source, expected_length, metadata_of
from cachelayer.builds.source_facts import Passed
from cachelayer.builds.source_identity import FileFacts, files_of, identity_of, identity_of_files, refuse_changed
from cachelayer.builds.staging import staging
from cachelayer.engines import Engine, engine_of
from cachelayer.errors import (
    BuildRevokedError,
    CacheLayerError,
    CorruptionError,
    InvalidArgumentError,
    SourceError,
    StorageError,
)
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.progress.meter import Progress, Waiting, notice
from cachelayer.provenance.environment import commit_of, environment, now
from cachelayer.provenance.origin import Origin
from cachelayer.records import spec_json
from cachelayer.user_warnings import warn
from cachelayer.versions.attempts import attempts_of, new_attempt, pause
from cachelayer.versions.commit import Committer
from cachelayer.versions.compose import Composition, appended
from cachelayer.versions.derive import base_of
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.plan import Plan
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.unfinished import Finished, Unfinished

R = TypeVar("R")
ALLOW_EMPTY = "if a version without records is meant, pass allow_empty=True"
_SOON = 1.0
"""Seconds of waiting that nobody needs to be told of."""


@dataclass(frozen=True)
class _Work:
    """What a build is to do.

    Args:
        source: what is built.
        options: how.
        division: its parts; None where it is built as a whole.
        plan: what others need to have in common to go on with it, or to help.
        length: number of elements, where it is known.
        files: what the listings of the files said that are read.
    """

    source: Source
    options: BuildOptions
    division: Division | None
    plan: Plan
    length: int | None
    files: Sequence[FileFacts]


class Publisher:
    """Builds one version and publishes it, whole or not at all.

    Args:
        log: the log of the dataset, which says where to.
        copies: keeps what is built as local copies, where the store is not local; None for none.
        version: what is published.
        source: what is built; a function is called when the build begins.
        origin: what the source comes from.
        options: how it is built.
        base: a version that the new one begins with; None for none.
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
        self._progress: Progress | None = None

    def submit(self) -> VersionInfo:
        """Build it, whoever else may be at it.

        Raises:
            AlreadyExistsError: where it is published already, or a tag has its name.
            BuildRevokedError: where the attempt was given up by others meanwhile.
            VersionNotFoundError: where the base was deleted meanwhile.
        """
        self._committer.refuse_if_published()
        attempt = new_attempt()
        with self._attempts.running(attempt, self._status):
            return self._build(attempt, self._work())

    def once(self, find: Callable[[], R | None], opened: Callable[[VersionInfo], R], hosts: Hosts | None = None) -> R:
        """Build it where nobody has found it: one at a time of all who ask for it, or several hosts together.

        Args:
            find: looks for the published version.
            opened: opens the version that was built.
            hosts: those that build it together, where the source comes in parts; None for none.
        """
        if hosts is not None:
            work = self._work(apart=True)
            if work.division is not None:
                return self._together(work, find, opened, hosts)
            warn(
                f"hosts: a source of {work.source.kind} cannot be divided, and one host builds it: pass "
                "cachelayer.sharded(function, count), or a sequence with a length"
            )
        with Waiting(self._name, self._options.progress) as waiting:

            def build(attempt: str) -> R:
                waiting.over()
                return opened(self._build(attempt, self._work()))

            return self._attempts.once(
                self._version, find, build, status=self._status, revoke=self._revoke, waiting=waiting.wait_for
            )

    def _revoke(self, attempt: str, by: str) -> object:
        if self._options.resume:
            return self._committer.adopt(attempt, by)
        return self._committer.revoke(attempt)

    def _together(
        self, work: _Work, find: Callable[[], R | None], opened: Callable[[VersionInfo], R], hosts: Hosts
    ) -> R:
        """Build it with the other hosts: one leads, which publishes it in the end, and the others help."""
        found: R | None = None
        while found is None:
            with self._attempts.lead(self._version, status=self._status, revoke=self._revoke) as lead:
                if lead.is_ours:
                    found = find()
                    if found is not None:
                        return found
                    with suppress(BuildRevokedError):
                        return opened(self._build(lead.attempt, work, hosts))
                    continue
            try:
                self._help(lead.attempt, work, hosts, lambda: find() is None)
            except CacheLayerError:
                # It was published, or another host leads now, and what this one still built was removed.
                found = find()
                if found is not None:
                    return found
                if not (self._committer.is_revoked(lead.attempt) or self._attempts.dead([lead.attempt])):
                    raise
            pause()
            found = find()
        return found

    def _help(self, lead: str, work: _Work, hosts: Hosts, is_wanted: Callable[[], bool]) -> None:
        """Build parts of what another host leads, as long as it does."""
        begun = None if not lead else Unfinished(self._store, self._dataset_id, self._version).begun(lead)
        if begun is None or self._attempts.dead([lead]):
            return
        plan = work.plan.beside(begun.plan)
        ours = Finished(plan, spec_json.to_json(work.options.element_spec), work.source.length, is_divided=True)
        refuse_other_build(self._name, ours, begun)
        if work.division is None:
            return
        task = self._task(lead, work.division.parts, work.options)
        name = new_attempt()

        def go_on() -> bool:
            return is_wanted() and not self._attempts.dead([lead])

        with (
            self._attempts.running(name, self._status),
            Progress(f"{self._name} (host {hosts.index})", None, work.options.progress) as progress,
        ):
            self._progress = progress
            build_together(task, self._engine(), progress, self._attempts, hosts, name, begun.parts, go_on)

    def _engine(self) -> Engine:
        return engine_of(self._options.engine, self._options.workers)

    def _task(self, attempt: str, parts: Parts, options: BuildOptions) -> PartTask:
        # What is kept with the version is written by who publishes it.
        lean = replace(options, kept={})
        return PartTask(self._store, self._copies, self._dataset_id, self._version, attempt, parts, lean)

    def _status(self) -> str:
        return "about to begin" if self._progress is None else str(self._progress)

    def _build(self, attempt: str, work: _Work, hosts: Hosts | None = None) -> VersionInfo:
        options, source, builder = work.options, work.source, os.getpid()
        started = time.monotonic()
        notes = Resumption(
            self._log,
            self._version,
            attempt,
            self._attempts,
            work.plan,
            source.length,
            is_divided=work.division is not None,
        )
        try:
            earlier = self._earlier(notes, options, source) if options.resume else None
            with (
                staging(self._store, self._copies, self._dataset_id, attempt) as stage,
                Progress(self._name, None if hosts else work.length, options.progress) as progress,
            ):
                self._progress = progress
                if work.division is None:
                    if earlier is not None:
                        check_earlier(self._store, self._dataset_id, source, earlier, options)
                    note = notes.note if options.resume else None
                    built = build(
                        source, stage.folder, attempt, options, progress, stage.deliver, earlier=earlier, note=note
                    )
                else:
                    task = self._task(attempt, work.division.parts, options)
                    built = self._apart(task, notes, earlier, progress, hosts)
                refuse_changed(work.files, source)
                self._refuse_if_empty(built, source)
                built.left_out.warn()
                made = {"source": source.kind, "time": now(), "duration_s": round(time.monotonic() - started, 3)}
                kept = {**options.kept, "metadata": {**metadata_of(source), **options.kept["metadata"]}}
                provenance = {**kept, **built.left_out.provenance, **self._known(work, built), **made, **environment()}
                info = self._publish(attempt, built, provenance)
        except BaseException as error:
            if os.getpid() != builder:
                # A child that the source forked: the build is its parent's.
                raise
            keeps = options.resume and notes.has_finished
            revoked = self._committer.abandon(attempt, keep=keeps, is_known=notes.is_known)
            if not keeps:
                notes.forget()
            if revoked and isinstance(error, StorageError | CorruptionError):
                raise BuildRevokedError(f"build attempt {attempt} of {self._name} was revoked: build again") from error
            raise
        notes.forget()
        if work.division is not None:
            # Not before: what another goes on with would be among them, if it took this attempt for dead.
            remove_others(self._store, self._dataset_id, attempt, built.shards)
        return info

    def _refuse_if_empty(self, built: Built, source: Source) -> None:
        """Raise if there is no record, and nobody said that there may be none.

        Raises:
            SourceError: with what made the source.
        """
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

    def _apart(
        self,
        task: PartTask,
        notes: Resumption,
        earlier: Finished | None,
        progress: Progress,
        hosts: Hosts | None,
    ) -> Built:
        """Build the parts of the source, here or anywhere."""
        finished = {} if earlier is None else earlier.parts
        task.check_repeats(finished)
        notes.begin(task.options.element_spec)
        if hosts is None:
            build_parts(task, self._engine(), progress, finished)
        else:
            build_together(task, self._engine(), progress, self._attempts, hosts, task.attempt, finished, lambda: True)
        return collected(task, finished)

    def _work(self, *, apart: bool = False) -> _Work:
        """What is to be done.

        Args:
            apart: whether other hosts help.
        """
        options, source = self._what()
        division = divided(source, options, apart=apart or options.engine is not None)
        base = None if self._base is None else self._base.info.digest
        parts = None if division is None else division.parts.plan
        decides = {**self._options.plan, "base": base, "source": source.kind, "division": parts}
        files = files_of(source)
        plan = Plan(decides, identity_of_files(files) if files else identity_of(source), self._origin)
        length = options.expected(expected_length(source))
        return _Work(source, options if division is None else division.options, division, plan, length, files)

    def _known(self, work: _Work, built: Built) -> dict[str, Any]:
        """Return what is recorded of the source, by which it is known again."""
        origin = {**self._origin.after_build().to_json(), **commit_of(self._origin.source)}
        if self._base is not None:
            return origin
        identity = {"identity": found} if (found := work.plan.stored["identity"]) else {}
        passed = Passed.of(self._source, self._options)
        return {
            **origin,
            **identity,
            **passed.recorded(self._store, self._dataset_id, work.source, built, self._options),
        }

    def _earlier(self, resumption: Resumption, options: BuildOptions, source: Source) -> Finished | None:
        spec = options.element_spec if options.element_spec is not None else source.element_spec
        with Waiting(self._name, options.progress, after=_SOON) as waiting:
            earlier = resumption.take_over(spec, waiting.wait_for)
        if earlier is not None:
            notice(f"{self._name}: going on after {earlier.records:,} records that are there", options.progress)
        return earlier

    def _what(self) -> tuple[BuildOptions, Source]:
        """The source, and how it is built: behind a base, with the base's spec."""
        options, base = self._options, self._base
        if base is None or base.manifest.records == 0:
            return options, as_source(self._source, unbatch=options.unbatch, element_spec=options.element_spec)
        if options.element_spec is not None:
            raise InvalidArgumentError(f"element_spec: what is appended has that of {base.name}: leave it out")
        spec = base.manifest.element_spec
        try:
            source = as_source(self._source, unbatch=options.unbatch, element_spec=spec)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"this source cannot be appended to {base.name}: {error}") from error
        check_fits(base.name, spec, source.element_spec)
        return replace(options, element_spec=spec), source

    def _publish(self, attempt: str, built: Built, provenance: dict[str, Any]) -> VersionInfo:
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
