"""The builds of a dataset that are not published: those at work, and interrupted ones that another may resume."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.user_warnings import warn
from cachelayer.versions.attempts import Attempts, State, attempts_of, began_at
from cachelayer.versions.log import Log
from cachelayer.versions.unfinished import PLAN, Unfinished


@dataclass(frozen=True)
class UnpublishedBuild:
    """A build that has not published its version.

    Args:
        version: the version that it builds; None if nothing tells it, as for a build with ``resume=False``.
        attempt: the name of its folder below ``_builds``.
        state: ``"running"``; ``"interrupted"``; or ``"unknown"``, if it has been silent for a while but its process may
            still run, or its lock cannot be read.
        can_be_resumed: whether its finished shards are noted, so that a build of the version continues after them.
        shards: number of finished shards.
        records: number of records in these, and kept beside them if the source is slow; None if they are not noted.
        nbytes: bytes of the finished shards, without indices.
        age: seconds since it began, by the clock of this host; None if its name does not tell.
        idle: seconds since it finished something, or showed that it runs, by the clock of this host.
        status: who runs it and how far it is, if a build in an object store told it.
    """

    version: str | None
    attempt: str
    state: State
    can_be_resumed: bool
    shards: int
    records: int | None
    nbytes: int
    age: float | None
    idle: float
    status: str = ""


def begun_datasets(store: ObjectStore, published: Collection[str]) -> dict[str, list[UnpublishedBuild]]:
    """Return the builds of the datasets that have no version yet, by dataset; ``published`` are the others.

    A folder that cannot be read is left out, with a warning that names it.
    """
    others = [name for name in store.names("") if paths.is_dataset_id(name) and name not in published]
    return {name: builds for name in others if (builds := _readable(store, name))}


def _readable(store: ObjectStore, dataset_id: str) -> list[UnpublishedBuild]:
    try:
        return unpublished(store, dataset_id)
    except StorageError as error:
        warn(f"{dataset_id} cannot be read: {error}")
        return []


def unpublished(store: ObjectStore, dataset_id: str) -> list[UnpublishedBuild]:
    """Return the builds of a dataset that are not published, the oldest first.

    This waits for nothing and writes nothing.
    """
    head, attempts = Log(store, dataset_id).head(), attempts_of(store, dataset_id)
    noted = {
        attempt: version
        for version in store.names(paths.unfinished(dataset_id))
        if version not in head.versions
        for attempt in Unfinished(store, dataset_id, version).attempts()
        if head.can_be_adopted(attempt) and head.owner_of(attempt) == attempt
    }
    leased = filter(paths.is_made_up, store.names(paths.running(dataset_id)))
    others = (name for name in leased if name not in noted and not head.has_published(name))
    found = [_noted(store, dataset_id, attempts, version, attempt) for attempt, version in noted.items()]
    found += [_leased(store, dataset_id, attempts, attempt) for attempt in others if attempt not in head.revoked]
    return sorted(found, key=lambda each: each.attempt)


def _noted(store: ObjectStore, dataset_id: str, attempts: Attempts, version: str, attempt: str) -> UnpublishedBuild:
    finished = Unfinished(store, dataset_id, version).read(attempt)
    shards = [] if finished is None else list(finished.shards)
    sizes = sum(shard.stats.nbytes for shard in shards)
    notes = f"{paths.unfinished(dataset_id, version)}/{attempt}"
    times = _age(attempt), _idle(store, dataset_id, attempt, notes)
    records = None if finished is None else finished.records_and_kept
    state, status = attempts.glance(attempt, times[1])
    return UnpublishedBuild(version, attempt, state, finished is not None, len(shards), records, sizes, *times, status)


def _leased(store: ObjectStore, dataset_id: str, attempts: Attempts, attempt: str) -> UnpublishedBuild:
    """Return a build that has no notes: it has finished nothing, or is not to be resumed."""
    sizes = list(_finished_shards(store, paths.build(dataset_id, attempt)))
    times = _age(attempt), _idle(store, dataset_id, attempt)
    state, status = attempts.glance(attempt, times[1])
    return UnpublishedBuild(None, attempt, state, False, len(sizes), None, sum(sizes), *times, status)


def _finished_shards(store: ObjectStore, folder: str) -> Iterator[int]:
    """Yield the sizes of the shards that have their index, which is written after them."""
    names = set(store.names(folder))
    for name in names:
        if name != paths.index_of(name) and paths.index_of(name) in names:
            yield store.size(f"{folder}/{name}") or 0


def _age(attempt: str) -> float | None:
    if not paths.is_made_up(attempt):
        return None
    return max(0.0, time.time() - began_at(attempt))


def _idle(store: ObjectStore, dataset_id: str, attempt: str, notes: str = "") -> float:
    """Return the seconds since the lease, the newest shard or the newest note of an attempt was written."""
    folder = paths.build(dataset_id, attempt)
    names = [
        paths.build_lease(dataset_id, attempt),
        *newest(store, folder),
        *(newest_notes(store, notes) if notes else []),
    ]
    written = [when for name in names if (when := store.modified(name)) is not None]
    return max(0.0, time.time() - max(written)) if written else 0.0


def newest(store: ObjectStore, folder: str) -> list[str]:
    """Return objects of a folder of shards that include the newest: they are written in order."""
    names = store.names(folder)
    return [folder, *(f"{folder}/{name}" for name in (names[:1] + names[-1:]))]


def newest_notes(store: ObjectStore, folder: str) -> list[str]:
    """Return objects of a folder of notes that include the newest: those of each kind are written in order."""
    names = store.names(folder)
    last = {Path(name).suffix: name for name in names if name != PLAN}
    return [folder, f"{folder}/{PLAN}", *(f"{folder}/{name}" for name in last.values())]
