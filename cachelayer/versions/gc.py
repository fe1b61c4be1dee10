"""Collect garbage: files that no version names, and what killed builds left behind.

::

    list_objects    the objects of a dataset
    needs_of        the files that the versions of a head of the log need: the log names them
    garbage         what nobody needs, and why: a function of the two and of the ages of objects
    collect         an entry of the log on that head says which files are deleted; then they are deleted

While a build may be running, nothing goes: it may have put a file anew that only a deleted version had. A build that
publishes later reads the entry, and does not name a deleted file. So a wrong guess about what is old, or about who is
building, costs a build its work at most, and no version a file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cachelayer.errors import CorruptionError, FormatError, InvalidArgumentError, StorageError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import Stat, Store
from cachelayer.provenance.environment import event
from cachelayer.support import json_values
from cachelayer.support.progress import Progress
from cachelayer.support.system_threads import Pool
from cachelayer.support.temporary_files import left_over_folders, working_folder
from cachelayer.support.user_warnings import warn
from cachelayer.versions.lease import CLAIM, PROBE, Age, Facts, ages_of, has_running_build, remove_if_empty
from cachelayer.versions.log import Log, has_log
from cachelayer.versions.notes import PLAN_HASH
from cachelayer.versions.snapshot import Snapshot, VersionInfo, manifest_name, manifest_objects, manifest_stem
from cachelayer.versions.stored_version import StoredVersion

_TEMPORARY_SECONDS = 3600.0
"""The age from which a temporary file must have been left by a killed process."""
_WORKING_SECONDS = 24 * 3600.0
"""The age from which the working folder of a build must have been left by a killed process."""
_THREADS = 16
_FOLDERS = {paths.SHARDS, paths.MANIFESTS, paths.BUILDS, paths.WORKING}
_UNREADABLE = (CorruptionError, FormatError, VersionNotFoundError)
"""The errors of a version that is damaged, or was deleted while it was read."""
Listing = Mapping[str, Facts]
"""Objects of a dataset, by the name of what is deleted together: a file without its suffixes, or a folder."""


@dataclass(frozen=True)
class Collected:
    """A file or a folder that garbage collection deleted, or would delete.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> storage.gc(grace=0)
        []
        >>> shard = folder / "numbers" / "shards" / "00112233445566778899aabbccddeeff-0.array_record"
        >>> shard.write_bytes(b"left by a killed build")
        22
        >>> print(*storage.gc(grace=0, dry_run=True))
        numbers/shards/00112233445566778899aabbccddeeff-0: no version names it
    """

    name: str
    """A file without its suffix, or a folder, as ``<dataset id>/<name>``."""
    reason: str
    """The reason why nobody needs it."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Needs:
    """The files that the versions of a head need."""

    head: Snapshot
    """The head, without the deleted versions whose grace is over, and their files."""
    released: Mapping[str, ReleasedFile]
    """The files that only deleted versions needed, whose grace is over."""

    @property
    def files(self) -> frozenset[str]:
        """The files of its versions, without suffixes. Deleted versions need their files until their grace is over."""
        return self.head.files.union(map(manifest_stem, self.head.versions_with_files))


@dataclass(frozen=True)
class ReleasedFile:
    """A file of a deleted version that no other version needs."""

    objects: Collection[str]
    version: str
    age: float
    """The least age, in seconds, of a file that the version had. A build has put a younger one."""


def garbage(listing: Listing, needs: Needs, age: Age, grace: float, left_over: Collection[str] = ()) -> dict[str, str]:
    """Return the garbage in a listing: the reason why nobody needs an object or a folder, by its name.

    ``age`` is asked only about what no version names, or only deleted ones. ``left_over`` are the working folders whose
    processes have ended.
    """
    reasons = {}
    for file, released in needs.released.items():
        if age(next(iter(released.objects))) >= released.age:
            # Erasing and copying put another version in the place of one.
            what = "replaced" if released.version in needs.head.versions else "deleted"
            reasons[file] = f"version {released.version!r} was {what}"
    plans = {f"{paths.PLANS}/{info.digest[:32]}" for info in needs.head.versions_with_files}
    for name in listing.keys() - needs.files - plans - reasons.keys():
        least_age, reason = _rule(name, needs.head, grace)
        if name in left_over or min(map(age, listing[name])) >= least_age:
            reasons[name] = reason
    return dict(sorted(reasons.items()))


def _rule(name: str, head: Snapshot, grace: float) -> tuple[float, str]:
    """Return the age from which something that no version names is garbage, and why it is."""
    folder, _, rest = name.partition("/")
    if folder == paths.BUILDS:
        version = rest.partition("/")[0]
        reason = "the version is published" if version in head.versions else "the build was interrupted"
        return (0.0 if version.startswith(PROBE) else grace), reason
    if name.endswith(".tmp"):
        return max(grace, _TEMPORARY_SECONDS), "a killed process was writing it"
    if folder == paths.PLANS:
        return grace, "plans of a version that was deleted"
    if paths.is_file(name):
        return grace, "no version names it"
    return max(grace, _WORKING_SECONDS), "a killed process was working in it"


def list_objects(dataset: Store) -> dict[str, dict[str, Stat | None]]:
    """Return the objects of a dataset, without the entries of its log: see :data:`Listing`."""
    listing: dict[str, dict[str, Stat | None]] = {}
    # Some stores are asked twice about a folder that is not there.
    folders = dataset.names("")
    is_local = dataset.local_path(paths.LOG) is not None
    # A bucket has no temporary files, and a list of the log would take a request for each 1,000 entries.
    with_files = {paths.SHARDS, paths.MANIFESTS, *([paths.LOG] if is_local else [])}
    for folder in with_files.intersection(folders):
        for name, stat in _facts(dataset, folder).items():
            file = f"{folder}/{name.rpartition('/')[2].partition('.')[0]}"
            if paths.is_file(file):
                listing.setdefault(file, {})[name] = stat
            elif name.endswith(".tmp"):
                listing[name] = {name: stat}
    if paths.PLANS in folders:
        listing |= {folder: _facts(dataset, folder) for folder in _facts(dataset, paths.PLANS)}
    if paths.WORKING in folders and is_local:
        listing |= {folder: {folder: None, **_facts(dataset, folder)} for folder in _facts(dataset, paths.WORKING)}
    if paths.BUILDS in folders:
        # Last, because the beats of leases tell who is at work now.
        listing |= _objects_of_builds(dataset)
    return {name: objects for name, objects in listing.items() if objects}


def _facts(dataset: Store, folder: str) -> dict[str, Stat | None]:
    return {f"{folder}/{name}": stat for name, stat in dataset.facts(folder).items()}


def _objects_of_builds(dataset: Store) -> dict[str, dict[str, Stat | None]]:
    """Return the notes and leases of all builds, and the objects that were put to see the clock."""
    objects = {}
    for version, stat in _facts(dataset, paths.BUILDS).items():
        if version.rpartition("/")[2].startswith(PROBE):
            objects[version] = {version: stat}
            continue
        for name, stat_of_lease in _facts(dataset, version).items():
            last = name.rpartition("/")[2]
            if PLAN_HASH.fullmatch(last):
                notes = _facts(dataset, name)
                # Shards beside notes are in a folder.
                shards = _facts(dataset, f"{name}/{paths.SHARDS}") if f"{name}/{paths.SHARDS}" in notes else {}
                objects[name] = {each: stat for each, stat in {**notes, **shards}.items() if stat is not None}
            # Beside a lease that was being taken there is a link to it, ".<claim>.<token>.tmp".
            elif CLAIM in last.split("."):
                objects[name] = {name: stat_of_lease}
    return objects


def needs_of(dataset: Store, head: Snapshot, age: Age, *, keeps_deleted: bool) -> Needs:
    """Return the files that the versions of a head need; with ``keeps_deleted``, deleted ones over their grace too."""
    over = [
        deletion
        for deletion in head.deleted
        if not keeps_deleted and (deletion.grace == 0 or age(paths.log_entry(deletion.sequence)) >= deletion.grace)
    ]
    objects_of: dict[str, ReleasedFile] = {}
    # Each file that is named in a manifest is in the head: so it is enough to look for those that may go.
    unnamed: set[str] = set()
    for deletion in over:
        try:
            files = _files_of(dataset, deletion.info)
            unnamed |= files.keys() & head.files
        except _UNREADABLE:
            files = {manifest_stem(deletion.info): manifest_objects(deletion.info)}
            unnamed |= head.files
        # A version is published after its files were put, and deleted later still.
        least_age = min(age(manifest_name(deletion.info)), age(paths.log_entry(deletion.sequence)))
        for file, objects in files.items():
            objects_of[file] = ReleasedFile(objects, deletion.info.version, least_age)
    left = head.without_deletions(over, ())
    unnamed = _not_named(dataset, left.versions_with_files, unnamed)
    needs = Needs(left.without_deletions((), unnamed), {})
    return replace(needs, released={file: released for file, released in objects_of.items() if file not in needs.files})


def _not_named(dataset: Store, infos: Sequence[VersionInfo], names: set[str]) -> set[str]:
    """Return the files that no manifest of these versions names: the newest ones, which name most, are read first."""
    with Pool(_THREADS, "cachelayer-gc") as threads:
        for stop in range(len(infos), 0, -_THREADS):
            if not names:
                break
            some = infos[max(0, stop - _THREADS) : stop]
            names = names.difference(*threads.map(partial(_files_of, dataset), some))
    return names


def _files_of(dataset: Store, info: VersionInfo) -> dict[str, list[str]]:
    """Return the files of a version, without suffixes, each with its objects."""
    manifest = StoredVersion(dataset, info).manifest
    return {
        manifest_stem(info): manifest_objects(info),
        **{file.file: [blob.name for blob in file.blobs] for file in manifest.files},
    }


def collect(
    dataset: Store, grace: float, *, dry_run: bool = False, only_deleted: bool = False, is_erasure: bool = False
) -> list[Collected]:
    """Delete what no version of a dataset needs, and return it.

    While a build of a version may be running, nothing is deleted.

    ``only_deleted`` deletes only the files that deleted versions alone needed. An erasure deletes these even while a
    build may be running: it may not publish what was erased, either.
    """
    log = Log(dataset)
    # Files first, then the head: a file that is there now, and that the later head does not name, is not needed.
    listing: Listing = {} if only_deleted else list_objects(dataset)
    left_over = [] if only_deleted else _left_over(dataset)
    age = ages_of(dataset, {name: stat for objects in listing.values() for name, stat in objects.items()}, dry_run)
    is_building = has_running_build(dataset, age, None if only_deleted else listing)
    decisions: list[tuple[Needs, dict[str, str]]] = []

    def prepare(head: Snapshot) -> Snapshot:
        needs = needs_of(dataset, head, age, keeps_deleted=is_building and not is_erasure)
        reasons = garbage({} if is_building else listing, needs, age, grace, left_over)
        decisions.append((needs, reasons))
        files = list(filter(paths.is_file, reasons))
        if dry_run or (not files and needs.head.deleted == head.deleted):
            return head
        return needs.head.sweeping(files, event("collect", files=len(files)))

    log.commit(prepare, frees=True)
    needs, reasons = decisions[-1]
    if not dry_run:
        objects = {**listing, **{file: released.objects for file, released in needs.released.items()}}
        for name in reasons:
            _delete(dataset, name, objects[name])
        log.keep_reserve()
    return [Collected(f"{dataset.name}/{name}", reason) for name, reason in reasons.items()]


def _delete(dataset: Store, name: str, objects: Collection[str]) -> None:
    folder, _, rest = name.partition("/")
    is_plan_of_build = folder == paths.BUILDS and PLAN_HASH.fullmatch(rest.rpartition("/")[2]) is not None
    if folder in {paths.PLANS, paths.WORKING} or is_plan_of_build:
        dataset.delete_folder(name)
    else:
        for object_name in objects:
            dataset.delete(object_name)
    if folder == paths.BUILDS:
        remove_if_empty(dataset.folder(paths.builds(rest.partition("/")[0])))


def _left_over(dataset: Store) -> list[str]:
    """Return the working folders of processes of this host that have ended."""
    working = dataset.local_path(paths.WORKING)
    return [] if working is None else [f"{paths.WORKING}/{folder.name}" for folder in left_over_folders(working)]


def checked_grace(grace: Any) -> float:
    """Return a grace that a user passed, in seconds."""
    try:
        return json_values.seconds("grace", grace)
    except ValueError as error:
        raise InvalidArgumentError(f"{error}: pass a number of seconds, 0 or more") from None


def collect_now(dataset: Store, *, is_erasure: bool) -> None:
    """Delete what deleted versions alone needed; if records were erased, all that no version names: it may hold them.

    Warn if nothing is deleted; or that some files stay, because a build is at work.
    """
    try:
        collect(dataset, 0.0, only_deleted=not is_erasure, is_erasure=is_erasure)
    except _UNREADABLE as error:
        _warn(dataset, error)
    if has_running_build(dataset, ages_of(dataset, {})):
        erased = "files that no version names, which may hold what was erased,"
        what = erased if is_erasure else "the files of deleted versions"
        warn(f"a build of {dataset.name!r} is at work, so {what} stay: call gc(grace=0) after it", logger="log")


def collect_all(
    store: Store, *, grace: float, dry_run: bool = False, progress: bool | None = None
) -> tuple[list[Collected], dict[str, str]]:
    """Collect the garbage of every dataset in a store. Warn of a dataset that cannot be read, and leave it alone.

    Return what was deleted; and why nothing is, by dataset. Raise if no dataset can be reached.
    """
    if not dry_run:
        # A new folder for temporary files removes those of killed processes. It is no failure if there can be none.
        with suppress(StorageError), working_folder():
            pass
    collected: list[Collected] = []
    failed: dict[str, str] = {}
    unreachable: list[StorageError] = []
    names = list(filter(paths.is_dataset_id, store.names("")))
    with Progress(f"gc {store.url}", len(names), progress, unit="dataset") as shown:
        for dataset in map(store.folder, names):
            try:
                if _is_dataset(dataset):
                    collected += collect(dataset, grace, dry_run=dry_run)
            except (*_UNREADABLE, StorageError) as error:
                if isinstance(error, StorageError) and not isinstance(error.__cause__, PermissionError):
                    unreachable.append(error)
                failed[dataset.name] = str(error)
                _warn(dataset, error)
            shown.update(1, 0)
    if unreachable and len(unreachable) == len(names):
        raise unreachable[0]
    return collected, failed


def _warn(dataset: Store, why: object) -> None:
    warn(f"nothing of {dataset.name!r} is collected: {why}", logger="log")


def _is_dataset(folder: Store) -> bool:
    """Return whether a folder is a dataset, or holds only what a first build left that was killed."""
    if has_log(folder):
        return True
    names = set(folder.names(""))
    if paths.MANIFESTS in names and names <= _FOLDERS:
        raise CorruptionError(
            f"{folder.url} has manifests and no log. If its log was lost, restore it; if its first build was killed, "
            "build it again, and collect then"
        )
    return bool(names) and names <= _FOLDERS
