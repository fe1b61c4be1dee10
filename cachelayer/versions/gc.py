"""Collect garbage: files that no version names, and what killed builds left behind.

:func:`garbage` says what nobody needs, of a listing of the objects and a head of the log. Files of shards and manifests
are chosen on a head that names none of them; an entry on that head says that they are deleted; then they are deleted.
Whoever publishes later reads this entry, and does not name such a file. So a wrong choice of what is old, or of who is
at work, costs a build its work at most.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from cachelayer import json_values
from cachelayer.errors import CorruptionError, FormatError, InvalidArgumentError, StorageError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.provenance.environment import event
from cachelayer.temporary_files import left_over, parent_folder, remove_left_over
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, has_running_build
from cachelayer.versions.log import Log, has_log
from cachelayer.versions.notes import PLAN_HASH
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion

GRACE_SECONDS = 24 * 3600.0
"""The default age, in seconds, at which garbage is collected."""
_PROBE = ".clock-"
_FOLDERS = {paths.SHARDS, paths.MANIFESTS, paths.BUILDS, paths.WORKING}
_WHILE, _LONG = 3600.0, 24 * 3600.0
"""Seconds after which a temporary file, and the working folder of a build, must have been left by a killed process."""
_UNREADABLE = (CorruptionError, FormatError, VersionNotFoundError)
"""The errors of a version that is damaged, or was deleted while it was read."""
Listing = Mapping[str, Collection[str]]
"""The objects of a dataset, relative to it, by what is deleted as one: a file without its suffixes, or a folder."""
Age = Callable[[str], float]
"""Returns the seconds since an object was written, by its name relative to the dataset; infinite if it is not there."""


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


@dataclass(frozen=True)
class Needs:
    """What the versions of a head need.

    Args:
        head: the head; deleted versions whose grace is over are no longer in it.
        files: the files that its versions name, deleted ones within their grace among them, without suffixes.
        released: the files that only deleted versions named, with their objects, and the version.
    """

    head: Snapshot
    files: frozenset[str]
    released: Mapping[str, tuple[Collection[str], str]]


def garbage(listing: Listing, needs: Needs, age: Age, grace: float, left_over: Collection[str] = ()) -> dict[str, str]:
    """Return what nobody needs, and why, by its name in the listing.

    Args:
        listing: the objects.
        needs: what the versions need.
        age: the ages of objects; asked only of what no version names.
        grace: the age, in seconds, at which garbage is collected.
        left_over: working folders whose processes have ended.
    """
    reasons = {file: f"version {version!r} was deleted" for file, (_, version) in needs.released.items()}
    plans_of = {info.digest[:32] for info in needs.head.versions_with_files}
    for name in listing.keys() - needs.files - reasons.keys():
        folder, _, rest = name.partition("/")
        first = rest.partition("/")[0]
        least, reason = grace, "no version names it"
        if folder == paths.BUILDS:
            is_published = first in needs.head.versions
            reason = "the version is published" if is_published else "the build was interrupted"
            least = 0.0 if first.startswith(_PROBE) else grace
        elif name.endswith(".tmp"):
            least, reason = max(grace, _WHILE), "a killed process was writing it"
        elif folder == paths.PLANS:
            least, reason = grace, "plans of a version that was deleted"
            if first in plans_of:
                continue
        elif not paths.is_file(name):
            least, reason = max(grace, _LONG), "a killed process was working in it"
        if name in left_over or min(map(age, listing[name])) >= least:
            reasons[name] = reason
    return dict(sorted(reasons.items()))


def list_objects(dataset: Store) -> dict[str, list[str]]:
    """Return the objects of a dataset, but for its log: see :data:`Listing`."""
    found: dict[str, list[str]] = {}

    def names(folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in dataset.names(folder)]

    for folder in (paths.SHARDS, paths.MANIFESTS):
        for name in names(folder):
            file = f"{folder}/{name.rpartition('/')[2].partition('.')[0]}"
            if paths.is_file(file):
                found.setdefault(file, []).append(name)
    for folder in (paths.LOG, paths.SHARDS, paths.MANIFESTS):
        found |= {name: [name] for name in names(folder) if name.endswith(".tmp")}
    for version in names(paths.BUILDS):
        within = names(version)
        for name in within:
            last = name.rpartition("/")[2]
            if PLAN_HASH.fullmatch(last):
                found[name] = names(name)
            # Beside a claim that was being taken there is a link to it, ".<claim>.<token>.tmp".
            elif CLAIM in last.split("."):
                found[name] = [name]
        if version.rpartition("/")[2].startswith(_PROBE) and not within:
            found[version] = [version]
    found |= {folder: names(folder) for folder in names(paths.PLANS)}
    found |= {folder: [folder, *names(folder)] for folder in names(paths.WORKING)}
    return {name: objects for name, objects in found.items() if objects}


def needs_of(dataset: Store, head: Snapshot, age: Age) -> Needs:
    """Return what the versions of a head need.

    Raises:
        CorruptionError, FormatError: if a manifest is damaged, so that nobody knows what its version needs.
        VersionNotFoundError: if a version was deleted meanwhile.
    """
    over = [each for each in head.deleted if each.grace == 0 or age(paths.log_entry(each.sequence)) >= each.grace]
    left = head.without_deletions(over)
    named = {file for info in left.versions_with_files for file in _objects_of(dataset, info)}
    released: dict[str, tuple[Collection[str], str]] = {}
    for each in over:
        try:
            objects = _objects_of(dataset, each.info)
        except _UNREADABLE:
            objects = {each.info.file: _objects_of_manifest(each.info)}
        released |= {file: (of_file, each.info.version) for file, of_file in objects.items() if file not in named}
    return Needs(left, frozenset(named), released)


def collect(dataset: Store, grace: float, *, dry_run: bool = False, only_deleted: bool = False) -> list[Collected]:
    """Delete what no version of a dataset needs, and return it.

    While somebody may be building a version of it, only what deleted versions had to themselves goes.

    Args:
        dataset: the folder of the dataset.
        grace: the age, in seconds, at which garbage is collected.
        dry_run: delete and write nothing.
        only_deleted: delete only what deleted versions had to themselves.
    """
    age = _ages(dataset, dry_run=dry_run)
    # In this order: what is listed and unnamed by a later head belongs to no version of that head.
    listing: Listing = {} if only_deleted else list_objects(dataset)
    ended = _left_over(dataset) if listing else []
    if listing and has_running_build(dataset, age):
        listing = {}
    needs, reasons = Needs(Snapshot(), frozenset(), {}), dict[str, str]()

    def decide(head: Snapshot) -> Snapshot:
        nonlocal needs, reasons
        needs = needs_of(dataset, head, age)
        reasons = garbage(listing, needs, age, grace, ended)
        swept = list(filter(paths.is_file, reasons))
        if dry_run or (not swept and needs.head.deleted == head.deleted):
            return head
        return needs.head.sweeping(swept, event("collect", files=len(swept)))

    Log(dataset).change(decide)
    objects = {**listing, **{file: of_file for file, (of_file, _) in needs.released.items()}}
    for name in reasons if not dry_run else ():
        if _is_folder(name):
            dataset.delete_folder(name)
        else:
            for each in objects[name]:
                dataset.delete(each)
    return [Collected(f"{dataset.name}/{name}", reason) for name, reason in reasons.items()]


def _is_folder(name: str) -> bool:
    folder, _, last = name.partition("/")[0], *name.rpartition("/")[1:]
    return folder in {paths.PLANS, paths.WORKING} or (folder == paths.BUILDS and PLAN_HASH.fullmatch(last) is not None)


def _left_over(dataset: Store) -> list[str]:
    """Return the working folders of processes of this host that have ended."""
    working = dataset.local_path(paths.WORKING)
    return [] if working is None else [f"{paths.WORKING}/{folder.name}" for folder in left_over(working)]


def _objects_of(dataset: Store, info: VersionInfo) -> dict[str, list[str]]:
    """Return the objects of a version, by their names without suffixes."""
    manifest = StoredVersion(dataset, info).manifest
    return {info.file: _objects_of_manifest(info), **{file.file: list(file.files) for file in manifest.files}}


def _objects_of_manifest(info: VersionInfo) -> list[str]:
    return [info.manifest, paths.kept(info.file), paths.indices(info.file)]


def _ages(dataset: Store, *, dry_run: bool) -> Age:
    """Return what tells the ages of objects, by the clock of the store; by that of this host in a dry run."""

    @cache
    def now() -> float:
        is_local = dataset.local_path(paths.LOG) is not None
        return time.time() if is_local or dry_run else _time_of(dataset)

    def age(name: str) -> float:
        written = dataset.modified(name)
        return math.inf if written is None else now() - written

    return age


def _time_of(dataset: Store) -> float:
    """Return the time of the store, whose clock may differ from that of this host."""
    probe = paths.builds(f"{_PROBE}{uuid.uuid4().hex}")
    dataset.put(probe, b"")
    try:
        return dataset.modified(probe) or time.time()
    finally:
        dataset.delete(probe)


def pending_of(dataset: Store) -> list[Pending]:
    """Return the deleted versions of a dataset whose files are not deleted yet.

    A file of several versions counts for the one that keeps it longest.
    """
    head, age = Log(dataset).head(), _ages(dataset, dry_run=True)
    left = [(max(0.0, each.grace - age(paths.log_entry(each.sequence))), each) for each in head.deleted]
    known = {file for info in head.versions.values() for file in _sizes_of(dataset, info)} if left else set()
    found = []
    for seconds, each in sorted(left, key=lambda one: -one[0]):
        sizes = _sizes_of(dataset, each.info)
        nbytes = sum(size for file, size in sizes.items() if file not in known)
        known |= set(sizes)
        found.append(Pending(dataset.name, each.info.version, nbytes, seconds))
    return found


def _sizes_of(dataset: Store, info: VersionInfo) -> dict[str, int]:
    """Return the bytes of the shards and columns of a version, by name; none if its manifest is damaged."""
    with suppress(*_UNREADABLE):
        files = StoredVersion(dataset, info).manifest.files
        return {file.file: sum(facts.nbytes for facts in file.files.values()) for file in files}
    return {}


def pending(store: Store) -> list[Pending]:
    """Return what :func:`pending_of` says of all datasets of a storage that can be read."""
    found = []
    for dataset in map(store.folder, filter(paths.is_dataset_id, store.names(""))):
        with suppress(*_UNREADABLE):
            found += pending_of(dataset) if has_log(dataset) else []
    return found


def checked_grace(grace: Any) -> float:
    try:
        return json_values.seconds("grace", grace)
    except ValueError as error:
        raise InvalidArgumentError(f"{error}: pass a number of seconds, 0 or more") from None


def collect_deleted(dataset: Store) -> None:
    """Delete what only deleted versions had whose grace is over; nothing, with a warning, if one is damaged."""
    try:
        collect(dataset, 0.0, only_deleted=True)
    except _UNREADABLE as error:
        warn(f"nothing of {dataset.name!r} is collected: {error}", room="log")


def collect_erased(dataset: Store) -> None:
    """Delete at once all that may hold records that were erased: also what no version names, however new it is."""
    try:
        collect(dataset, 0.0)
    except _UNREADABLE as error:
        warn(f"nothing of {dataset.name!r} is collected: {error}", room="log")
    if has_running_build(dataset, lambda name: time.time() - (dataset.modified(name) or 0.0)):
        warn(
            f"a build of {dataset.name!r} is at work, so files that no version names stay, and may hold what was "
            "erased: call gc(grace=0) when it has ended",
            room="log",
        )


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
        for dataset in map(store.folder, names):
            try:
                if _is_ours(dataset):
                    collected += collect(dataset, grace, dry_run=dry_run)
            except (*_UNREADABLE, StorageError) as error:
                if isinstance(error, StorageError) and not isinstance(error.__cause__, PermissionError):
                    failed.append(error)
                warn(f"nothing of {dataset.name!r} is collected: {error}", room="log")
            shown.update(1, 0)
    if failed and len(failed) == len(names):
        raise failed[0]
    return collected


def _is_ours(dataset: Store) -> bool:
    """Return whether a folder is a dataset, or holds only what builds left that were killed before it had a log."""
    if has_log(dataset):
        return True
    left = set(dataset.names(""))
    if paths.MANIFESTS in left and left <= _FOLDERS:
        warn(
            f"nothing of {dataset.name!r} is collected: it has manifests and no log. If its log was lost, restore it; "
            "if its first build was killed, build it again, and collect then",
            room="log",
        )
    return bool(left) and left <= _FOLDERS - {paths.MANIFESTS}
