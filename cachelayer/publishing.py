"""Building a version: one attempt, from a source to an entry in the log."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cachelayer.access.local_copies import copy_group
from cachelayer.building.build import Built, Deliver, build
from cachelayer.building.options import BuildOptions
from cachelayer.building.source import as_source, metadata_of
from cachelayer.errors import (
    AlreadyExistsError,
    BuildRevokedError,
    CacheLayerError,
    CacheLayerWarning,
    CorruptionError,
    StorageError,
)
from cachelayer.objects import paths
from cachelayer.objects.copies import CacheFolder
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.progress import Progress, notice
from cachelayer.versions.attempts import attempts_of, new_attempt
from cachelayer.versions.log import Log, Snapshot, VersionInfo
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.provenance import environment, event, now
from cachelayer.versions.shard_table import ShardTable

R = TypeVar("R")


class Publisher:
    """Builds one version and publishes it, whole or not at all.

    Args:
        store: where to.
        copies: keeps what is built as local copies, where the store is not local; None for none.
        dataset_id, version: what is published.
        source: what is built; a function is called when the build begins.
        call: how the source came to be, for the provenance.
        options: how it is built.
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
    ) -> None:
        self._store = store
        self._copies = copies
        self._dataset_id = dataset_id
        self._version = version
        self._source = source
        self._call = call
        self._options = options
        self._name = f"{dataset_id}@{version}"
        self._log = Log(store, dataset_id)
        self._attempts = attempts_of(store, dataset_id)
        self._progress: Progress | None = None
        self._commits = False
        self._shown = ""

    def submit(self) -> VersionInfo:
        """Build it, whoever else may be at it.

        Raises:
            AlreadyExistsError: where it is published already, or a tag has its name.
            BuildRevokedError: where the attempt was given up by others meanwhile.
        """
        self._refuse_if_published()
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
            self._refuse_if_published()
            return opened(self._build(attempt))

        return self._attempts.once(
            self._version, find, built, status=self._status, revoke=self._revoke, waiting=self._waiting
        )

    def _refuse_if_published(self) -> None:
        head = self._log.head()
        if self._version in head.versions or self._version in head.tags:
            what = "is published" if self._version in head.versions else "is a tag"
            raise AlreadyExistsError(f"{self._name} {what} already: choose another version")

    def _status(self) -> str:
        return "about to begin" if self._progress is None else str(self._progress)

    def _waiting(self, who: str) -> None:
        text = f"{self._name}: waiting for {who}"
        if text != self._shown:
            self._shown = text
            notice(text, self._options.progress)

    def _revoke(self, attempt: str) -> Snapshot:
        """Keep an attempt from publishing, unless the version is there; the head of the log after that."""

        def revoked(head: Snapshot) -> Snapshot:
            return replace(head, revoked=head.revoked | {attempt}, event=event("revoke", attempts=[attempt]))

        head = self._log.head()
        settled = self._version in head.versions or attempt in head.revoked
        return head if settled else self._log.commit(revoked)

    def _build(self, attempt: str) -> VersionInfo:
        options = self._options
        source = as_source(self._source, unbatch=options.unbatch, element_spec=options.element_spec)
        started = time.monotonic()
        try:
            with (
                staging(self._store, self._copies, self._dataset_id, attempt) as stage,
                Progress(self._name, options.expected(source.length), options.progress) as self._progress,
            ):
                built = build(source, stage.folder, attempt, options, self._progress, stage.deliver)
                made = {"source": source.kind, "time": now(), "duration_s": round(time.monotonic() - started, 3)}
                kept = {**options.kept, "metadata": {**metadata_of(source), **options.kept["metadata"]}}
                return self._publish(attempt, built, {**kept, **built.left_out, **self._call, **made, **environment()})
        except BaseException as error:
            if self._abandon(attempt) and isinstance(error, StorageError | CorruptionError):
                raise BuildRevokedError(f"build attempt {attempt} of {self._name} was revoked: build again") from error
            raise

    def _publish(self, attempt: str, built: Built, provenance: dict[str, Any]) -> VersionInfo:
        manifest = Manifest(built.codec, built.element_spec, ShardTable.of(built.shards), provenance, uuid.uuid4().hex)
        raw = manifest.encode()
        name = paths.manifest(attempt)
        # On a local disk this brings the names of the shards to the disk as well: they lie in the same folder.
        self._store.put(f"{self._dataset_id}/{name}", raw)
        info = VersionInfo(
            version=self._version,
            manifest=name,
            manifest_sha256=hashlib.sha256(raw).hexdigest(),
            digest=manifest.digest,
            records=manifest.records,
            nbytes=manifest.nbytes,
            time=provenance["time"],
        )
        self._commits = True
        self._log.commit(lambda head: head.with_version(info, event("publish", version=self._version)))
        return info

    def _abandon(self, attempt: str) -> bool:
        """Delete what a failed attempt wrote, unless it failed after its publication; whether others had revoked it."""
        with suppress(CacheLayerError):
            head = self._log.head()
            revoked = attempt in head.revoked
            if self._commits:
                # A put that failed may still arrive: it cannot after an entry that revokes the attempt.
                head = self._revoke(attempt)
            if attempt not in {paths.attempt_of(info.manifest) for info in head.versions.values()}:
                self._store.delete_folder(paths.build(self._dataset_id, attempt))
            return revoked
        return False


@dataclass(frozen=True)
class Stage:
    """Where shards are written.

    Args:
        folder: the folder.
        deliver: takes them on to the store; None where they are there already.
    """

    folder: Path
    deliver: Deliver | None


@contextmanager
def staging(store: ObjectStore, copies: CacheFolder | None, dataset_id: str, attempt: str) -> Iterator[Stage]:
    """A folder for the shards of an attempt: in the store itself, else among the local copies, else a temporary one.

    What is there is removed when the attempt fails.
    """
    if isinstance(store, LocalStore):
        yield Stage(store.make_folder(paths.build(dataset_id, attempt)), None)
        return
    try:
        group = None if copies is None else copy_group(copies, store, dataset_id, attempt)
    except StorageError as error:
        warnings.warn(f"no local copy is kept of what is built: {error}", CacheLayerWarning, stacklevel=5)
        group = None
    folder = Path(tempfile.mkdtemp(prefix="cachelayer-")) if group is None else group.path("")

    def deliver(shard: Path) -> None:
        files = (shard, Path(paths.index_of(str(shard))))
        for path in files:
            store.upload(path, f"{paths.build(dataset_id, attempt)}/{path.name}")
        if group is None or not group.fits():
            for path in files:
                path.unlink()

    try:
        yield Stage(folder, deliver)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if group is None:
        shutil.rmtree(folder, ignore_errors=True)
