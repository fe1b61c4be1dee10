"""Builds that have not published their versions: which are running, and what interrupted builds have finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.support.user_warnings import warn
from cachelayer.versions.gc import Facts, clock_of
from cachelayer.versions.lease import CLAIM, HOST, Lease, State, leases_in
from cachelayer.versions.log import Log
from cachelayer.versions.notes import PLAN_HASH, numbers_in, read_part


@dataclass(frozen=True)
class UnpublishedBuild:
    """A build that has not published its version.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> def rows():
        ...     yield 0
        ...     (build,) = storage.builds("numbers")
        ...     print(build.version, build.state, build.shards, build.total)
        >>> ref = storage.cache(rows, "numbers@v1")
        v1 running 0 None
        >>> storage.builds("numbers")
        []
    """

    version: str
    """The version that it builds."""
    state: State
    """``"running"``, ``"interrupted"``, or ``"unknown"`` if it has been silent for a while and may still run."""
    shards: int
    """Number of finished shards: the same build, started again, goes on after them."""
    idle: float
    """Seconds since it finished something, or showed that it runs, by the clock of the store."""
    status: str = ""
    """The process that runs it, as ``<host>-<number>``; empty if none does."""
    done: int = 0
    """Records that it has taken from its source, as far as it has said; at least those of the finished shards."""
    total: int | None = None
    """Records that the source has; None if that is not known."""


def begun_datasets(store: Store, published: Collection[str]) -> dict[str, list[UnpublishedBuild]]:
    """Return the builds of the datasets that have no version yet, by dataset.

    A folder that cannot be read is left out, with a warning that names it.
    """
    begun = {}
    for name in store.names(""):
        if not paths.is_dataset_id(name) or name in published:
            continue
        try:
            builds = unpublished(Log(store.folder(name)))
        except StorageError as error:
            warn(f"{name} cannot be read: {error}", logger="log")
            continue
        if builds:
            begun[name] = builds
    return begun


def unpublished(log: Log) -> list[UnpublishedBuild]:
    """Return the builds of a dataset whose versions are not published. This waits for nothing, and leaves nothing."""
    folder = log.folder
    versions = log.head().versions
    now = clock_of(folder, only_shown=True)
    unpublished_builds = []
    for version in folder.names(paths.BUILDS):
        if version in versions:
            continue
        builds = folder.folder(paths.builds(version))
        facts = builds.facts("")
        leases = leases_in(builds, [name for name in facts if name == CLAIM or name.startswith(HOST)])
        plans = [name for name in facts if PLAN_HASH.fullmatch(name)]
        if not plans and leases:
            plans = [""]
        unpublished_builds += [_build(builds, plan, leases, facts, now) for plan in plans]
    return unpublished_builds


def _build(
    builds: Store, plan: str, leases: Mapping[str, Lease], facts: Facts, now: Callable[[], float]
) -> UnpublishedBuild:
    """Return the build that has a plan, given its hash; without a plan, the build that has only begun."""
    notes = builds.folder(plan)
    facts_of_notes = notes.facts("") if plan else {}
    numbers = sorted(numbers_in(facts_of_notes))
    parts = [part for number in numbers if (part := read_part(notes, number)) is not None]
    at_work = {name: lease for name, lease in leases.items() if name == CLAIM or plan in name}
    stats = {**facts_of_notes, **{name: facts[name] for name in at_work}}
    ages = {name: now() - stat.modified for name, stat in stats.items() if stat is not None}
    states = {name: lease.state(ages[name]) for name, lease in at_work.items() if name in ages}
    shown = next((name for name, state in states.items() if state != "interrupted"), None)
    return UnpublishedBuild(
        builds.name,
        "interrupted" if shown is None else states[shown],
        shards=sum(len(part.shards) for part in parts),
        idle=max(0.0, min(ages.values(), default=0.0)),
        status="" if shown is None else at_work[shown].holder,
        done=max(sum(part.records for part in parts), sum(lease.done or 0 for lease in at_work.values())),
        total=next((lease.total for lease in at_work.values() if lease.total is not None), None),
    )
