"""Builds that have not published their versions: who is at work, and what interrupted ones have finished."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, State, glance
from cachelayer.versions.log import Log
from cachelayer.versions.notes import PLAN_HASH, FinishedPart, noted_numbers, read_part


@dataclass(frozen=True)
class UnpublishedBuild:
    """A build that has not published its version.

    Args:
        version: the version that it builds.
        plan: a hash of what it builds and how; empty if it has finished nothing yet.
        state: ``"running"``; ``"interrupted"``; or ``"unknown"``, if it has been silent for a while but its process may
            still run.
        shards: number of finished shards.
        records: number of records in these.
        nbytes: bytes of these, without indices.
        age: seconds since it began, by the clock of this host.
        idle: seconds since it finished something, or showed that it runs, by the clock of this host.
        status: who runs it, as its host and the number of its process.
    """

    version: str
    plan: str
    state: State
    shards: int
    records: int
    nbytes: int
    age: float
    idle: float
    status: str = ""

    @property
    def can_be_resumed(self) -> bool:
        """Whether a build of the same goes on after what this one has finished."""
        return self.shards > 0


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
    """Return the builds of a dataset that are not published, by version. This waits for nothing and writes nothing."""
    head = Log(store, dataset_id).head()
    versions = [name for name in store.names(paths.builds(dataset_id)) if name not in head.versions]
    return [build for version in versions for build in _builds_of(store, dataset_id, version)]


def _builds_of(store: ObjectStore, dataset_id: str, version: str) -> list[UnpublishedBuild]:
    folder = paths.builds(dataset_id, version)
    names = store.names(folder)
    plans = [name for name in names if PLAN_HASH.fullmatch(name)]
    if not plans and CLAIM in names:
        return [_build(store, folder, version, "")]
    return [_build(store, folder, version, plan) for plan in plans]


def _build(store: ObjectStore, folder: str, version: str, plan: str) -> UnpublishedBuild:
    notes = f"{folder}/{plan}".rstrip("/")
    names = [f"{notes}/{name}" for name in store.names(notes)]
    parts: list[FinishedPart] = []
    if plan:
        read = (read_part(store, notes, number) for number in sorted(noted_numbers(store, notes)))
        parts = [part for part in read if part is not None]
    # The claim of the version, or those of the hosts and parts of this plan.
    claims = {f"{folder}/{CLAIM}", *(name for name in names if name.endswith(CLAIM))}
    now = time.time()
    ages = {name: now - when for name in {*names, *claims} if (when := store.modified(name)) is not None}
    state: State = "interrupted"
    status = ""
    for name in sorted(claims & ages.keys()):
        glanced, status = glance(store, name, ages[name])
        if glanced != "interrupted":
            state = glanced
            break
    shards = [shard for part in parts for shard in part.shards]
    return UnpublishedBuild(
        version,
        plan,
        state,
        len(shards),
        sum(part.records for part in parts),
        sum(part.nbytes for part in parts),
        max(0.0, *ages.values(), 0.0),
        max(0.0, min(ages.values(), default=0.0)),
        status,
    )
