"""Collect garbage: build attempts that no version names, and what deleted versions had to themselves."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from cachelayer.errors import (
    CorruptionError,
    FormatError,
    InvalidArgumentError,
    StorageError,
)
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.progress import Progress
from cachelayer.provenance.environment import event
from cachelayer.user_warnings import warn
from cachelayer.versions.attempts import Attempts, attempts_of
from cachelayer.versions.commit import attempts_named_by, named_attempts
from cachelayer.versions.file_lock import remove_left_over
from cachelayer.versions.log import Log, has_log
from cachelayer.versions.snapshot import Deletion, VersionInfo
from cachelayer.versions.stored_version import StoredVersion, plans_of
from cachelayer.versions.unfinished import Unfinished, newest, newest_notes

GRACE_SECONDS = 24 * 3600.0
"""The default age, in seconds, at which garbage is collected."""
_WHILE = 3600.0
"""Seconds after which a temporary file must have been left by a killed process."""


def checked_grace(grace: Any) -> float:
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < math.inf:
        raise InvalidArgumentError(f"grace {grace!r}: it must be a number of seconds, 0 or more")
    return float(grace)


def collect_all(store: ObjectStore, *, grace: float, dry_run: bool = False, progress: bool | None = None) -> list[str]:
    """Collect the garbage of every dataset in a store; leave those that cannot be read alone, with a warning.

    Args:
        store: the store.
        grace: the age, in seconds, at which garbage is collected.
        dry_run: write, revoke and delete nothing.
        progress: whether to show the progress.

    Returns:
        The attempts that were deleted, or would be, as ``<dataset id>/<attempt>``.
    """
    if not dry_run:
        remove_left_over()
    deleted: list[str] = []
    failed: list[StorageError] = []
    names = list(filter(paths.is_dataset_id, store.names("")))
    with Progress(f"gc {store.url}", len(names), progress, unit="dataset") as shown:
        for dataset_id in names:
            try:
                if _is_ours(store, dataset_id):
                    found = collect(store, dataset_id, grace=grace, dry_run=dry_run)
                    deleted += [f"{dataset_id}/{attempt}" for attempt in found]
            except (CorruptionError, FormatError, StorageError) as error:
                if isinstance(error, StorageError) and not isinstance(error.__cause__, PermissionError):
                    failed.append(error)
                warn(f"nothing of {dataset_id!r} is collected: {error}")
            shown.update(1, 0)
    if failed and len(failed) == len(names):
        raise failed[0]
    return deleted


def _is_ours(store: ObjectStore, dataset_id: str) -> bool:
    """Return whether a folder is a dataset, or holds only what builds left that were killed before it had a log."""
    if has_log(store, dataset_id):
        return Log(store, dataset_id).head().sequence > 0
    left = {name for name in store.names(paths.builds(dataset_id)) if paths.is_attempt(name)}
    left.update(_noted(store, dataset_id))
    return len(left) > 0 and all(map(paths.is_made_up, left))


def collect(store: ObjectStore, dataset_id: str, *, grace: float, dry_run: bool = False) -> list[str]:
    """Delete the build attempts of a dataset that no version names, nobody runs, and are older than ``grace`` seconds.

    Files that only deleted versions named go too, once the grace of their deletion is over.

    Returns:
        The attempts that were deleted; with ``dry_run``, those that would be.
    """
    clock = Clock(store, dataset_id, probes=not dry_run)
    attempts = attempts_of(store, dataset_id)
    of_deleted = collect_deleted(store, dataset_id, clock, dry_run=dry_run)
    if not dry_run:
        _sweep(store, dataset_id, attempts, clock, max(grace, _WHILE))
    noted = _noted(store, dataset_id)
    # A slow build in an object store has records among its notes before it has a folder.
    found = sorted({*_attempts_in(store, paths.builds(dataset_id), of_folders=True), *noted})
    old = [
        name
        for name in found
        if clock.age(*newest(store, paths.build(dataset_id, name)), *noted.get(name, ())) >= grace
    ]
    head = Log(store, dataset_id).head()
    adopted = head.adopted
    if not dry_run:
        _forget_published(store, dataset_id, attempts, head.versions)
    owners = sorted({adopted.get(attempt, attempt) for attempt in old})
    running = {*_running(attempts, old), *_running(attempts, owners)}
    # Notes of finished parts stay as long as the build that resumed from them.
    needed = {*running, *set(found).difference(old)}
    idle = [name for name in old if name not in running and adopted.get(name, name) not in needed]
    deleted = _delete_unnamed(store, dataset_id, set(idle).difference(of_deleted), adopted, dry_run=dry_run)
    if dry_run:
        return sorted({*of_deleted, *deleted})
    kept = set(old).difference(running, deleted)
    _delete_unnamed_files(store, dataset_id, kept, clock, grace)
    _delete_plans(store, dataset_id, kept)
    return sorted({*of_deleted, *deleted})


def _noted(store: ObjectStore, dataset_id: str) -> dict[str, list[str]]:
    """Return the attempts that have notes, each with its newest."""
    noted: dict[str, list[str]] = {}
    for version in store.names(paths.unfinished(dataset_id)):
        for attempt in filter(paths.is_made_up, Unfinished(store, dataset_id, version).attempts()):
            noted[attempt] = newest_notes(store, f"{paths.unfinished(dataset_id, version)}/{attempt}")
    return noted


def _forget_published(store: ObjectStore, dataset_id: str, attempts: Attempts, versions: Collection[str]) -> None:
    """Delete the notes that killed builders did not remove after they had published."""
    for version in set(store.names(paths.unfinished(dataset_id))).intersection(versions):
        unfinished = Unfinished(store, dataset_id, version)
        noted = unfinished.attempts()
        for attempt in set(noted).difference(_running(attempts, noted)):
            unfinished.forget(attempt)


def collect_deleted(
    store: ObjectStore, dataset_id: str, clock: Clock | None = None, *, dry_run: bool = False
) -> list[str]:
    """Delete the build attempts of deleted versions whose grace is over, unless another version names them.

    Returns:
        The attempts that were deleted; with ``dry_run``, those that would be.
    """
    head = Log(store, dataset_id).head()
    clock = clock or Clock(store, dataset_id)
    over = [each for each in head.deleted if each.grace == 0 or _age(clock, dataset_id, each) >= each.grace]
    attempts: set[str] = set()
    for each in over:
        try:
            attempts |= attempts_named_by(store, dataset_id, each.info)
        except (CorruptionError, FormatError):
            attempts.add(paths.attempt_of(each.info.manifest))
    return _delete_unnamed(store, dataset_id, attempts, head.adopted, over, dry_run=dry_run) if over else []


def _age(clock: Clock, dataset_id: str, deletion: Deletion) -> float:
    """Return the seconds since a version was deleted, by the store's clock: hosts' clocks may differ."""
    return clock.age(paths.log_entry(dataset_id, deletion.sequence))


def _running(attempts: Attempts, names: list[str]) -> list[str]:
    return [name for name, runs in zip(names, attempts.are_running(names), strict=True) if runs]


def _delete_unnamed(
    store: ObjectStore,
    dataset_id: str,
    attempts: Collection[str],
    adopted: Mapping[str, str],
    deletions: Collection[Deletion] = (),
    *,
    dry_run: bool = False,
) -> list[str]:
    """Delete the attempts that no version names.

    Each is revoked in the log first, so that a builder that was only paused cannot publish it afterwards. An attempt
    that is published, or adopted by another, before that stays.

    Args:
        store, dataset_id: the dataset.
        attempts: the candidates.
        adopted: the adopter of each at the moment when nobody was found to run it.
        deletions: the deleted versions whose grace is over.
        dry_run: only return these attempts.
    """
    log = Log(store, dataset_id)
    dead: list[str] = []
    try:
        for head in log.heads():
            left = head.without_deletions(deletions)
            free = {name for name in attempts if head.adopted.get(name) == adopted.get(name)}
            dead = sorted(free - named_attempts(store, dataset_id, left))
            if dry_run:
                return dead
            if not dead and left.deleted == head.deleted:
                break
            if log.append(left.without_attempts(dead, event("revoke", attempts=dead))):
                break
    except (CorruptionError, FormatError) as error:
        warn(f"nothing of {dataset_id!r} is collected, because it is unknown which files its versions need: {error}")
        return []
    for attempt in dead:
        store.delete_folder(paths.build(dataset_id, attempt))
        attempts_of(store, dataset_id).forget(attempt)
    if dead:
        _forget_unfinished(store, dataset_id, dead)
    return dead


def _delete_unnamed_files(
    store: ObjectStore, dataset_id: str, attempts: Collection[str], clock: Clock, grace: float
) -> None:
    """Delete files that attempts wrote too late: after they, or an attempt that adopted them, had published.

    No version can ever name these: such an attempt can neither publish again nor be adopted again.
    """
    head = Log(store, dataset_id).head()
    given_up = {name for name in attempts if head.has_published(name) or not head.can_be_adopted(name)}
    if not given_up:
        return
    try:
        named = {name for info in head.with_files for name in _files_of(store, dataset_id, info, given_up)}
    except (CorruptionError, FormatError):
        return
    for attempt in given_up:
        folder = paths.build(dataset_id, attempt)
        for name in store.names(folder):
            whole = f"{folder}/{name}"
            if whole not in named and clock.age(whole) >= grace:
                store.delete(whole)


def _delete_plans(store: ObjectStore, dataset_id: str, attempts: Collection[str]) -> None:
    """Delete the plans of deleted versions whose attempts stay, because others have shards there."""
    head = Log(store, dataset_id).head()
    for attempt in attempts:
        if not head.has_published(attempt):
            folder = paths.build(dataset_id, attempt)
            for name in filter(paths.is_plan, store.names(folder)):
                store.delete(f"{folder}/{name}")


def _files_of(store: ObjectStore, dataset_id: str, info: VersionInfo, attempts: Collection[str]) -> Iterator[str]:
    """Yield the files of a version that these attempts wrote."""
    manifest = StoredVersion(store, dataset_id, info).manifest
    shares = manifest.shards.attempts.intersection(attempts)
    shards = (shard for shard in manifest.shards if shard.attempt in attempts) if shares else ()
    kept = () if manifest.kept is None or manifest.kept.file is None else (manifest.kept.file,)
    for name in (info.manifest, *kept):
        yield f"{dataset_id}/{name}"
    for name in (name for shard in shards for name in shard.files):
        yield f"{dataset_id}/{name}"
    if paths.attempt_of(info.manifest) in attempts:
        yield from plans_of(store, dataset_id, info)


def _forget_unfinished(store: ObjectStore, dataset_id: str, attempts: Iterable[str]) -> None:
    """Delete the notes of what these attempts have finished."""
    for version in store.names(paths.unfinished(dataset_id)):
        unfinished = Unfinished(store, dataset_id, version)
        for attempt in set(unfinished.attempts()).intersection(attempts):
            unfinished.forget(attempt)


def _sweep(store: ObjectStore, dataset_id: str, attempts: Attempts, clock: Clock, age: float) -> None:
    """Remove what killed processes left beside the attempts: half-written objects, leases of ended attempts."""
    for name in store.names(paths.log(dataset_id)):
        if name.endswith(".tmp") and clock.age(f"{paths.log(dataset_id)}/{name}") >= age:
            store.delete(f"{paths.log(dataset_id)}/{name}")
    idle = [
        attempt
        for attempt in _attempts_in(store, paths.running(dataset_id), of_folders=False)
        if clock.age(paths.build_lease(dataset_id, attempt)) >= age
    ]
    for attempt, runs in zip(idle, attempts.are_running(idle), strict=True):
        if not runs:
            attempts.forget(attempt)


def _attempts_in(store: ObjectStore, folder: str, *, of_folders: bool) -> list[str]:
    """Return the names of attempts in a folder, ignoring files if attempts are folders here, and folders if files."""
    names = [name for name in store.names(folder) if paths.is_attempt(name)]
    if not isinstance(store, LocalStore):
        return names
    found = [(name, store.path(f"{folder}/{name}")) for name in names]
    return [name for name, path in found if not path.is_symlink() and (path.is_dir() if of_folders else path.is_file())]


class Clock:
    """The store's own clock, which may differ from this host's.

    Args:
        store, dataset_id: where to write a probe.
        probes: False to write none and use the clock of this host.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, *, probes: bool = True) -> None:
        self._store = store
        self._dataset_id = dataset_id
        self._probes = probes

    @cached_property
    def _now(self) -> float:
        if isinstance(self._store, LocalStore) or not self._probes:
            return time.time()
        # Write the probe only if something may be deleted: other folders in a bucket belong to somebody else.
        probe = f"{paths.running(self._dataset_id)}/clock-{uuid.uuid4().hex}"
        self._store.put(probe, b"")
        try:
            return self._store.modified(probe) or time.time()
        finally:
            self._store.delete(probe)

    def age(self, *names: str) -> float:
        """Return the seconds since the newest of these objects was written; -1 if none exists."""
        now = self._now
        written = [time for name in names if (time := self._store.modified(name)) is not None]
        return now - max(written) if written else -1.0
