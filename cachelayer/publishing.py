"""Building a version and publishing it: once, whole, or not at all.

A build attempt writes shards into a folder of its own, then its manifest, and becomes a version by one entry of the
dataset's log. What is not in the log is no version, so a build may die anywhere.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from cachelayer.access.composition import Composition, appended, check_fits, subset
from cachelayer.access.published import Published
from cachelayer.access.selection import Selection
from cachelayer.building.build import Built, build
from cachelayer.building.options import BuildOptions
from cachelayer.building.source import Source, as_source, metadata_of
from cachelayer.committing import Committer
from cachelayer.errors import BuildRevokedError, CorruptionError, InvalidArgumentError, StorageError
from cachelayer.objects.copies import CacheFolder
from cachelayer.objects.store import ObjectStore
from cachelayer.progress import Progress, notice
from cachelayer.resuming import Resumption
from cachelayer.staging import staging
from cachelayer.versions.attempts import attempts_of, new_attempt
from cachelayer.versions.log import VersionInfo
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.provenance import environment, now
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.unfinished import Finished

R = TypeVar("R")
_MADE_BY = ("function", "code", "arguments")


class Publisher:
    """Builds one version and publishes it, whole or not at all.

    Args:
        store: where to.
        copies: keeps what is built as local copies, where the store is not local; None for none.
        dataset_id, version: what is published.
        source: what is built; a function is called when the build begins.
        call: how the source came to be, for the provenance.
        options: how it is built.
        base: a version that the new one begins with; None for none.
    """

    def __init__(
        self,
        store: ObjectStore,
        copies: CacheFolder | None,
        dataset_id: str,
        version: str,
        source: Any,
        call: Mapping[str, Any],
        options: BuildOptions,
        base: Published | None = None,
    ) -> None:
        self._store = store
        self._copies = copies
        self._dataset_id = dataset_id
        self._version = version
        self._source = source
        self._call = call
        self._options = options
        self._base = base
        self._name = f"{dataset_id}@{version}"
        self._committer = Committer(store, dataset_id, version, None if base is None else base.info)
        self._attempts = attempts_of(store, dataset_id)
        self._progress: Progress | None = None
        self._shown = ""

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
            return self._build(attempt)

    def once(self, find: Callable[[], R | None], opened: Callable[[VersionInfo], R]) -> R:
        """Build it if nobody has, one at a time of all who ask for it.

        Args:
            find: looks for the published version.
            opened: opens the version that was built.
        """

        def built(attempt: str) -> R:
            self._committer.refuse_if_published()
            return opened(self._build(attempt))

        revoke = self._committer.adopt if self._options.resume else self._committer.revoke
        return self._attempts.once(
            self._version, find, built, status=self._status, revoke=revoke, waiting=self._waiting
        )

    def _status(self) -> str:
        return "about to begin" if self._progress is None else str(self._progress)

    def _waiting(self, who: str) -> None:
        text = f"{self._name}: waiting for {who}"
        if text != self._shown:
            self._shown = text
            notice(text, self._options.progress)

    def _build(self, attempt: str) -> VersionInfo:
        options, source = self._what()
        started = time.monotonic()
        resumption = self._resumption(attempt, source) if options.resume else None
        try:
            earlier = None if resumption is None else self._earlier(resumption, options, source)
            with (
                staging(self._store, self._copies, self._dataset_id, attempt) as stage,
                Progress(self._name, options.expected(source.length), options.progress) as self._progress,
            ):
                note = None if resumption is None else resumption.note
                built = build(
                    source, stage.folder, attempt, options, self._progress, stage.deliver, earlier=earlier, note=note
                )
                made = {"source": source.kind, "time": now(), "duration_s": round(time.monotonic() - started, 3)}
                kept = {**options.kept, "metadata": {**metadata_of(source), **options.kept["metadata"]}}
                provenance = {**kept, **built.left_out, **self._call, **made, **environment()}
                info = self._publish(attempt, built, provenance)
        except BaseException as error:
            keeps = resumption is not None and resumption.has_finished
            if self._committer.abandon(attempt, keep=keeps) and isinstance(error, StorageError | CorruptionError):
                raise BuildRevokedError(f"build attempt {attempt} of {self._name} was revoked: build again") from error
            raise
        if resumption is not None:
            resumption.forget()
        return info

    def _resumption(self, attempt: str, source: Source) -> Resumption:
        base = None if self._base is None else self._base.info.digest
        made_by = {name: self._call.get(name) for name in _MADE_BY}
        plan = {**self._options.plan, "base": base, "source": source.kind, **made_by}
        return Resumption(self._store, self._dataset_id, self._version, attempt, self._attempts, plan)

    def _earlier(self, resumption: Resumption, options: BuildOptions, source: Source) -> Finished | None:
        spec = options.element_spec if options.element_spec is not None else source.element_spec
        earlier = resumption.take_over(spec, source.length)
        if earlier is not None:
            records = sum(shard.stats.records for shard in earlier.shards.values())
            notice(f"{self._name}: going on after {records:,} records that are there", options.progress)
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
        provenance["base"] = _base_of(self._base.info)
        made = appended(self._base, manifest, attempt)
        return self._committer.publish(attempt, made, {"base": self._base.info.version}, adopted)


def derive(
    base: Published, version: str, kept: Selection, *, description: str | None, metadata: Mapping[str, Any]
) -> VersionInfo:
    """Publish a version of some of the records of another, which copies none.

    Args:
        base: the other version.
        version: the name of the new one.
        kept: the records, as their numbers in the shards of the base.
        description, metadata: what is kept with the version; metadata goes over that of the base.

    Raises:
        AlreadyExistsError: where it is published already, or a tag has its name.
        VersionNotFoundError: where the base was deleted meanwhile.
    """
    committer = Committer(base.store, base.dataset_id, version, base.info)
    committer.refuse_if_published()
    attempt = new_attempt()
    provenance = {
        "description": description,
        "metadata": {**(base.manifest.provenance.get("metadata") or {}), **metadata},
        "source": "derive",
        "base": _base_of(base.info),
        "time": now(),
        **environment(),
    }
    with attempts_of(base.store, base.dataset_id).running(attempt, lambda: "about to be published"):
        made = subset(base, kept, attempt, provenance, uuid.uuid4().hex)
        try:
            return committer.publish(attempt, made, {"base": base.info.version})
        except BaseException:
            committer.abandon(attempt, keep=False)
            raise


def _base_of(info: VersionInfo) -> dict[str, Any]:
    return {"version": info.version, "digest": info.digest, "records": info.records}
