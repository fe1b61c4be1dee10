"""Builds that have not published their versions: who is at work, and what interrupted ones have finished."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.temporary_files import host_and_pid
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, ClaimState, State, claim_state
from cachelayer.versions.log import Log
from cachelayer.versions.notes import PLAN_HASH, noted_numbers, read_part


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
        host, pid: the host and the process that run it, or ran it if that is still known; else empty, and None.
        done: the records that it has taken from its source, as far as it has said.
        total: the records that there are; None if that is not known.
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
    host: str = ""
    pid: int | None = None
    done: int = 0
    total: int | None = None

    @property
    def progress(self) -> float | None:
        """The share of the records that is done; None if it is not known how many there are."""
        return self.done / self.total if self.total else None

    @property
    def can_be_resumed(self) -> bool:
        """Whether a build of the same goes on after what this one has finished."""
        return self.shards > 0


def begun_datasets(store: Store, published: Collection[str]) -> dict[str, list[UnpublishedBuild]]:
    """Return the builds of the datasets of a storage that have no version yet, by dataset.

    A folder that cannot be read is left out, with a warning that names it.

    Args:
        store: the storage.
        published: the datasets that have versions.
    """
    found = {}
    for name in (name for name in store.names("") if paths.is_dataset_id(name) and name not in published):
        try:
            found[name] = unpublished(store.folder(name))
        except StorageError as error:
            warn(f"{name} cannot be read: {error}", room="log")
    return {name: builds for name, builds in found.items() if builds}


def unpublished(folder: Store) -> list[UnpublishedBuild]:
    """Return the builds of a dataset that are not published, by version. This waits for nothing and writes nothing."""
    versions = Log(folder).head().versions
    found = []
    for version in folder.names(paths.BUILDS):
        builds = folder.folder(paths.builds(version))
        names = builds.names("") if version not in versions else []
        plans = [name for name in names if PLAN_HASH.fullmatch(name)]
        found += [_build(builds, plan) for plan in plans or [""] * (CLAIM in names)]
    return found


def _build(builds: Store, plan: str) -> UnpublishedBuild:
    """Return what one plan of the builds of a version has finished; with no plan, the build that has only begun."""
    notes = builds.folder(plan) if plan else builds
    parts = [part for number in sorted(noted_numbers(notes)) if (part := read_part(notes, number)) is not None]
    # The claim of the version, and those of the hosts and parts of this plan.
    objects = {CLAIM, *(f"{plan}/{name}" for name in notes.names("") if plan)}
    now = time.time()
    ages = {name: now - when for name in objects if (when := builds.modified(name)) is not None}
    claims = [claim_state(builds, name, ages[name]) for name in sorted(ages) if name.endswith(CLAIM)]
    alive = [each for each in claims if each.state != "interrupted"]
    told = next(iter([*alive, *(each for each in claims if each.holder)]), ClaimState("interrupted"))
    host, pid = host_and_pid(told.holder)
    records = sum(part.records for part in parts)
    return UnpublishedBuild(
        builds.name,
        plan,
        told.state,
        shards=sum(len(part.shards) for part in parts),
        records=records,
        nbytes=sum(part.nbytes for part in parts),
        age=max(0.0, *ages.values(), 0.0),
        idle=max(0.0, min(ages.values(), default=0.0)),
        status=told.holder if alive else "",
        host=host,
        pid=pid,
        done=max(records, sum(each.done or 0 for each in claims)),
        total=next((each.total for each in claims if each.total is not None), None),
    )
