"""Collect garbage: files that no version names, and what killed builds left behind.

Files are chosen on a head of the log that names none of them; an entry on that head says that they are deleted; then
they are deleted. Whoever publishes later reads this entry, and does not name such a file. So a wrong choice of what
is old, or of who is at work, costs a build its work at most.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cachelayer import json_values
from cachelayer.errors import CorruptionError, FormatError, InvalidArgumentError, StorageError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.provenance.environment import event
from cachelayer.temporary_files import parent_folder, remove_left_over
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, is_at_work
from cachelayer.versions.log import Log, has_log
from cachelayer.versions.notes import PLAN_HASH
from cachelayer.versions.snapshot import Deletion, VersionInfo
from cachelayer.versions.stored_version import StoredVersion

GRACE_SECONDS = 24 * 3600.0
"""The default age, in seconds, at which garbage is collected."""
_PROBE = ".clock-"
_FOLDERS = {paths.SHARDS, paths.MANIFESTS, paths.BUILDS, paths.temporary("").strip("/")}
_WHILE, _LONG = 3600.0, 24 * 3600.0
"""Seconds after which a temporary file, and the working folder of a build, must have been left by a killed process."""


@dataclass(frozen=True)
class Collected:
    """What was deleted, or would be.

    Args:
        name: a file without its suffix, or a folder, as ``<dataset id>/<name>``.
        reason: why.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Pending:
    """A deleted version whose files stay for a while, for programs that read them.

    Args:
        dataset_id, version: the version.
        nbytes: bytes that gc frees.
        seconds: after which it does; 0 if the grace is over.
    """

    dataset_id: str
    version: str
    nbytes: int
    seconds: float


def pending(store: Store, dataset_id: str | None = None) -> list[Pending]:
    """Return the deleted versions, of one dataset or all that can be read, whose files are not deleted yet."""
    found = []
    for name in filter(paths.is_dataset_id, store.names("")) if dataset_id is None else [dataset_id]:
        with suppress(CorruptionError, FormatError):
            found += Collector(store, name, 0.0, dry_run=True).pending() if has_log(store, name) else []
    return found


def checked_grace(grace: Any) -> float:
    try:
        return json_values.seconds("grace", grace)
    except ValueError as error:
        raise InvalidArgumentError(f"{error}: pass a number of seconds, 0 or more") from None


def collect_all(store: Store, *, grace: float, dry_run: bool = False, progress: bool | None = None) -> list[Collected]:
    """Collect the garbage of every dataset in a store; leave those that cannot be read alone, with a warning.

    Args:
        store: the store.
        grace: the age, in seconds, at which garbage is collected.
        dry_run: write and delete nothing.
        progress: whether to show the progress.
    """
    if not dry_run:
        # Without a folder for temporary files nothing is left over in it.
        with suppress(StorageError):
            remove_left_over(parent_folder())
    collected: list[Collected] = []
    failed: list[StorageError] = []
    names = list(filter(paths.is_dataset_id, store.names("")))
    with Progress(f"gc {store.url}", len(names), progress, unit="dataset") as shown:
        for dataset_id in names:
            try:
                if _is_ours(store, dataset_id):
                    collected += Collector(store, dataset_id, grace, dry_run=dry_run).collect()
            except (CorruptionError, FormatError, StorageError) as error:
                if isinstance(error, StorageError) and not isinstance(error.__cause__, PermissionError):
                    failed.append(error)
                warn(f"nothing of {dataset_id!r} is collected: {error}")
            shown.update(1, 0)
    if failed and len(failed) == len(names):
        raise failed[0]
    return collected


def _is_ours(store: Store, dataset_id: str) -> bool:
    """Return whether a folder is a dataset, or holds only what builds left that were killed before it had a log."""
    if has_log(store, dataset_id):
        return True
    left = set(store.names(dataset_id))
    if paths.MANIFESTS in left and left <= _FOLDERS:
        warn(
            f"nothing of {dataset_id!r} is collected: it has manifests and no log. If its log was lost, restore it; if "
            "its first build was killed, build it again, and collect then"
        )
    return bool(left) and left <= _FOLDERS - {paths.MANIFESTS}


def _is_of_claim(name: str) -> bool:
    # Beside one that was being taken there is a link to it, ".<claim>.<token>.tmp".
    return CLAIM in name.split(".")


class Collector:
    """Collects the garbage of one dataset.

    Args:
        store, dataset_id: the dataset.
        grace: the age, in seconds, at which garbage is collected.
        dry_run: write and delete nothing.
    """

    def __init__(self, store: Store, dataset_id: str, grace: float, *, dry_run: bool = False) -> None:
        self._store = store
        self._dataset_id = dataset_id
        self._grace = grace
        self._dry_run = dry_run
        self._log = Log(store, dataset_id)

    def collect(self) -> list[Collected]:
        """Delete what no version names and is older than the grace, and what deleted versions had to themselves.

        While somebody may be building a version of the dataset, files that belonged to no version stay.
        """
        # In this order: what is listed and unnamed by a later head belongs to no version of that head.
        listed = self._listed()
        if is_at_work(self._store, self._dataset_id, self._age):
            return self._delete({})
        return [*self._delete(listed), *self._delete_notes(), *self._delete_plans(), *self._delete_temporary()]

    def pending(self) -> list[Pending]:
        """Return what :func:`pending` says; a file of several versions counts for the one that keeps it longest."""
        head = self._log.head()
        left = [(max(0.0, each.grace - self._age_of(each)), each) for each in head.deleted]
        known = {file for info in head.versions.values() for file in self._sizes_of(info)} if left else set()
        found = []
        for seconds, each in sorted(left, key=lambda one: -one[0]):
            sizes = {file: nbytes for file, nbytes in self._sizes_of(each.info).items() if file not in known}
            known |= set(sizes)
            found.append(Pending(self._dataset_id, each.info.version, sum(sizes.values()), seconds))
        return found

    def _sizes_of(self, info: VersionInfo) -> dict[str, int]:
        """Return the bytes of the shards and columns of a version, by name; none if its manifest is damaged."""
        with suppress(CorruptionError, FormatError):
            files = StoredVersion(self._store, self._dataset_id, info).manifest.files
            return {file.file: sum(file.files.values()) for file in files}
        return {}

    def collect_deleted(self) -> list[Collected]:
        """Delete what only deleted versions had whose grace is over; nothing, with a warning, if one is damaged."""
        try:
            return self._delete({})
        except (CorruptionError, FormatError) as error:
            warn(f"nothing of {self._dataset_id!r} is collected: {error}")
            return []

    def _listed(self) -> dict[str, list[str]]:
        """Return the objects of shards and manifests, by their names without suffixes."""
        files: dict[str, list[str]] = {}
        for folder in (paths.SHARDS, paths.MANIFESTS):
            for name in self._store.names(f"{self._dataset_id}/{folder}"):
                file = f"{folder}/{name.partition('.')[0]}"
                if paths.is_file(file):
                    files.setdefault(file, []).append(f"{self._dataset_id}/{folder}/{name}")
        return files

    def _delete(self, listed: Mapping[str, list[str]]) -> list[Collected]:
        """Delete the files of deleted versions whose grace is over, and those of ``listed`` that no version names."""
        victims = self._choose(listed)
        for objects, _ in victims.values() if not self._dry_run else ():
            for name in objects:
                self._store.delete(name)
        return [Collected(f"{self._dataset_id}/{file}", reason) for file, (_, reason) in sorted(victims.items())]

    def _choose(self, listed: Mapping[str, list[str]]) -> dict[str, tuple[list[str], str]]:
        """Write into the log which files are deleted, and return them, with their objects and why."""
        victims: dict[str, tuple[list[str], str]] = {}
        for head in self._log.heads():
            over = [each for each in head.deleted if each.grace == 0 or self._age_of(each) >= each.grace]
            left = head.without_deletions(over)
            named = {file for info in left.with_files for file in self._objects_of(info)}
            victims = {
                file: (objects, f"version {each.info.version!r} was deleted")
                for each in over
                for file, objects in self._objects_of_deleted(each.info).items()
                if file not in named
            }
            for file, objects in listed.items():
                if file not in named and file not in victims and self._is_old(*objects):
                    victims[file] = (objects, "no version names it")
            if self._dry_run or (not victims and left.deleted == head.deleted):
                break
            if self._log.commit(left.sweeping(victims, event("collect", files=len(victims)))):
                break
        return victims

    def _objects_of(self, info: VersionInfo) -> dict[str, list[str]]:
        """Return the objects of a version, by their names without suffixes."""
        found = {info.file: self._objects_of_manifest(info)}
        for file in StoredVersion(self._store, self._dataset_id, info).manifest.files:
            found[file.file] = [f"{self._dataset_id}/{name}" for name in file.files]
        return found

    def _objects_of_deleted(self, info: VersionInfo) -> dict[str, list[str]]:
        try:
            return self._objects_of(info)
        except (CorruptionError, FormatError):
            return {info.file: self._objects_of_manifest(info)}

    def _objects_of_manifest(self, info: VersionInfo) -> list[str]:
        return [
            f"{self._dataset_id}/{name}" for name in (info.manifest, paths.kept(info.file), paths.indices(info.file))
        ]

    def _delete_notes(self) -> Iterator[Collected]:
        """Delete the notes and claims of builds that are published, and of those that were interrupted long ago."""
        store, published = self._store, self._log.head().versions
        for version in store.names(paths.builds(self._dataset_id)):
            folder = paths.builds(self._dataset_id, version)
            old = [name for name in store.names(folder) if self._is_old_note(folder, name)]
            for name in old if not self._dry_run else ():
                if PLAN_HASH.fullmatch(name):
                    store.delete_folder(f"{folder}/{name}")
                else:
                    store.delete(f"{folder}/{name}")
            if old:
                yield Collected(
                    folder, "the version is published" if version in published else "the build was interrupted"
                )
            elif version.startswith(_PROBE) and not self._dry_run:
                # Of a collector that was killed.
                store.delete(folder)

    def _is_old_note(self, folder: str, name: str) -> bool:
        """Return whether this is a claim, or the folder of the notes of a plan, and all of it is old."""
        if PLAN_HASH.fullmatch(name):
            notes = [f"{folder}/{name}/{note}" for note in self._store.names(f"{folder}/{name}")]
            return bool(notes) and self._is_old(*notes)
        return _is_of_claim(name) and self._is_old(f"{folder}/{name}")

    def _delete_plans(self) -> Iterator[Collected]:
        """Delete the plans of packs of versions that are gone."""
        store, folder = self._store, paths.packs(self._dataset_id)
        kept = {info.digest[:32] for info in self._log.head().with_files}
        for digest in store.names(folder):
            objects = [f"{folder}/{digest}/{name}" for name in store.names(f"{folder}/{digest}")]
            if digest not in kept and objects and self._is_old(*objects):
                yield Collected(f"{folder}/{digest}", "plans of packs of a version that was deleted")
                if not self._dry_run:
                    store.delete_folder(f"{folder}/{digest}")

    def _delete_temporary(self) -> Iterator[Collected]:
        """Delete what killed processes were writing."""
        store = self._store
        if not isinstance(store, LocalStore) or self._dry_run:
            return
        working = paths.temporary(self._dataset_id)
        remove_left_over(store.path(working))
        for folder in (f"{working}/{name}" for name in store.names(working)):
            # Of another host: nothing there tells whether its process has ended.
            if min(map(self._age, [folder, *(f"{folder}/{name}" for name in store.names(folder))])) >= max(
                self._grace, _LONG
            ):
                store.delete_folder(folder)
        folders = [f"{self._dataset_id}/{one}" for one in ("_log", paths.SHARDS, paths.MANIFESTS)]
        for name in (f"{folder}/{name}" for folder in folders for name in store.names(folder)):
            if name.endswith(".tmp") and self._age(name) >= max(self._grace, _WHILE):
                yield Collected(name, "a killed process was writing it")
                store.delete(name)

    def _is_old(self, *names: str) -> bool:
        """Return whether the newest of these objects is older than the grace."""
        return min(map(self._age, names)) >= self._grace

    def _age_of(self, deletion: Deletion) -> float:
        return self._age(paths.log_entry(self._dataset_id, deletion.sequence))

    def _age(self, name: str) -> float:
        """Return the seconds since an object was written, by the store's clock; infinite if it does not exist."""
        written = self._store.modified(name)
        return math.inf if written is None else self._now - written

    @cached_property
    def _now(self) -> float:
        """The time of the store, whose clock may differ from this host's; that of the host in a dry run."""
        if isinstance(self._store, LocalStore) or self._dry_run:
            return time.time()
        probe = f"{paths.builds(self._dataset_id)}/{_PROBE}{uuid.uuid4().hex}"
        self._store.put(probe, b"")
        try:
            return self._store.modified(probe) or time.time()
        finally:
            self._store.delete(probe)
