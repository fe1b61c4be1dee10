"""Notes of the finished parts of a build: another build with the same plan goes on from them.

::

    <id>/_builds/<version>/<plan hash>/plan.json    what is built and how, to name the differences to other builds
    <id>/_builds/<version>/<plan hash>/00005.json   part 5 is finished: its shards were put
    <id>/_builds/<version>/<plan hash>/shards/      shards whose records are put again into other files

Only a build whose source comes in parts has notes. A build that can only read its source from the first element on
begins there again after a kill. A note counts if its checksum and all files of its part are good. Notes are deleted
when the version is published: until then, they and the leases show an :class:`UnpublishedBuild`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from cachelayer.errors import CorruptionError, FormatError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.support import json_values
from cachelayer.support.json_values import Count
from cachelayer.support.logs import logger_of
from cachelayer.support.system_threads import Pool
from cachelayer.support.user_warnings import warn
from cachelayer.versions.blobs import missing
from cachelayer.versions.lease import CLAIM, HOST, Facts, Lease, State, clock_of, leases_in
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import canonical_json
from cachelayer.versions.publish import lost_files
from cachelayer.versions.shard_table import ShardFile, ShardTable

FORMAT = 1
"""The format of notes, which is a part of every plan: a build whose notes have another format has another plan."""
_log = logger_of("builds")
_THREADS = 16
_MOST_SHOWN = 10
_PLAN = "plan.json"
_NOTE = re.compile(r"([0-9]{5,})[.]json", re.ASCII)
PLAN_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True)
class PartResult:
    """The result of building a part of a source, some elements of a part, or all parts together."""

    shards: tuple[ShardFile, ...] = ()
    """The shards, which were put, in the order of their records."""
    nullable: frozenset[Count] = frozenset()
    """The numbers of the null bits that some record has set."""
    elements: Count = 0
    """Number of elements that came from the source."""
    left_out: Count = 0
    """Number of elements that became no records, because they do not fit."""
    first_left_out: tuple[str, ...] = ()
    """A line about each of the first elements that were left out. Lines are stored, so they hold no values."""
    first_reason: str = ""
    """Why the first of them was left out, with its file and its values, for a warning: notes have none of it."""

    def then(self, later: PartResult) -> PartResult:
        """Return this result and the result of what follows as one."""
        return PartResult(
            shards=(*self.shards, *later.shards),
            # The same set, most often: then it need not be made again.
            nullable=self.nullable if later.nullable <= self.nullable else self.nullable | later.nullable,
            elements=self.elements + later.elements,
            left_out=self.left_out + later.left_out,
            first_left_out=(*self.first_left_out, *later.first_left_out)[:_MOST_SHOWN],
            first_reason=self.first_reason if self.left_out else later.first_reason,
        )

    @property
    def records(self) -> int:
        return sum(shard.stats.records for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of the shards, without indices."""
        return sum(shard.stats.nbytes for shard in self.shards)


class Notes:
    """The notes of all builds of a version that have the same plan.

    ``times`` is a hash of the times of the source's files, which builds of one plan need not share. If no version will
    name the shards of the parts, these are beside the notes, which ``has_shards`` says.
    """

    def __init__(
        self, dataset: Store, version: str, plan: Mapping[str, Any], times: Any = None, *, has_shards: bool = False
    ) -> None:
        self.dataset = dataset
        self.version = version
        self.plan = plan
        self.times = times
        self.version_folder = dataset.folder(paths.builds(version))
        self.plan_hash = hashlib.sha256(canonical_json(plan)).hexdigest()
        self.folder = self.version_folder.folder(self.plan_hash[:32])
        self.has_shards = has_shards
        self.shards_in = self.folder if has_shards else dataset

    def begin(self) -> None:
        """Write the plan, unless a build with the same plan has begun before."""
        if _read_plan(self.folder) is None:
            self.folder.put(_PLAN, json_values.sealed({"plan": self.plan, "times": self.times}))

    def add(self, number: int, part: PartResult) -> None:
        """Write the note of a finished part."""
        document = json_values.encoded(replace(part, shards=(), first_reason=""))
        document["shards"] = ShardTable(part.shards).to_json()
        document["plain_nbytes"] = [shard.stats.plain_nbytes for shard in part.shards]
        self.folder.put(note_name(number), json_values.sealed(document))
        _log.debug(
            "%(object)s: part %(part)d is finished, %(records)d records",
            {"object": f"{self.folder.url}/{note_name(number)}", "part": number, "records": part.records},
        )

    def forget(self, number: int) -> None:
        """Delete the note of a part, which is then built again."""
        self.folder.delete(note_name(number))

    def finished(self, log: Log, known: Mapping[int, PartResult] | None = None) -> dict[int, PartResult]:
        """Return the finished parts whose files are good, by number; those that are known are not looked at again."""
        known = known or {}
        numbers = sorted(noted_numbers(self.folder) - known.keys())
        with Pool(_THREADS, "cachelayer-notes") as threads:
            parts = list(threads.map(partial(read_part, self.folder), numbers))
        noted = {number: part for number, part in zip(numbers, parts, strict=True) if part is not None}
        finished = {**known, **noted}
        if not finished:
            return {}
        lost = lost_files((shard.file for part in finished.values() for shard in part.shards), log, log.head())
        absent = missing(
            self.shards_in, {blob for part in noted.values() for shard in part.shards for blob in shard.blobs}
        )

        def is_good(part: PartResult) -> bool:
            return all(shard.file not in lost and absent.isdisjoint(shard.blobs) for shard in part.shards)

        return {number: part for number, part in finished.items() if is_good(part)}

    def other_plans(self) -> dict[str, Mapping[str, Any]]:
        """Return the plans of other builds of the version, by their hashes."""
        plans = {}
        for name in self._plan_hashes():
            document = _read_plan(self.version_folder.folder(name))
            if name != self.folder.name and document is not None:
                plans[name] = document["plan"]
        return plans

    @property
    def has_other_times(self) -> bool:
        """Whether a build with this plan has begun with files that were written at other times."""
        document = _read_plan(self.folder)
        return document is not None and document.get("times") != self.times

    def delete_all(self) -> None:
        """Delete the notes of all builds of the version, which is published."""
        try:
            for name in self._plan_hashes():
                self.version_folder.delete_folder(name)
        except StorageError as error:
            warn(f"notes are left in {self.version_folder.url}, until gc deletes them: {error}", logger="builds")

    def _plan_hashes(self) -> list[str]:
        return list(filter(PLAN_HASH.fullmatch, self.version_folder.names("")))


def read_part(folder: Store, number: int) -> PartResult | None:
    """Return a finished part, given the folder of the notes; None if its note is missing or damaged."""
    raw = folder.read(note_name(number))
    try:
        with json_values.decoding(f"{folder.url}/{note_name(number)}", "note of a part"):
            if raw is None:
                return None
            document = json_values.unsealed(raw)
            shards = tuple(ShardTable.from_json(document["shards"]))
            plain = json_values.decoded(tuple[Count | None, ...], "plain_nbytes", document.pop("plain_nbytes", []))
            shards = tuple(
                replace(shard, stats=replace(shard.stats, plain_nbytes=nbytes))
                for shard, nbytes in zip_longest(shards, plain)
            )
            part: PartResult = json_values.decoded(PartResult, "part", {**document, "shards": []})
            return replace(part, shards=shards)
    except (CorruptionError, FormatError) as error:
        _log.warning("a note is damaged, so its part is built again: %(error)s", {"error": error})
        return None


def noted_numbers(folder: Store) -> set[int]:
    """Return the numbers of the finished parts, given the folder of the notes."""
    return numbers_in(folder.names(""))


def numbers_in(names: Iterable[str]) -> set[int]:
    """Return the numbers of the finished parts, given the names in the folder of the notes."""
    return {int(match[1]) for name in names if (match := _NOTE.fullmatch(name))}


def note_name(number: int) -> str:
    return f"{number:05}.json"


def _read_plan(folder: Store) -> Mapping[str, Any] | None:
    """Return the document with the plan, given the folder of the notes; None if it is missing or damaged."""
    raw = folder.read(_PLAN)
    try:
        with json_values.decoding(f"{folder.url}/{_PLAN}", "plan of a build"):
            if raw is None:
                return None
            document = json_values.mapping("plan", json_values.shallow("plan", json_values.unsealed(raw)))
            json_values.mapping("plan", document["plan"])
            return document
    except (CorruptionError, FormatError) as error:
        _log.warning(
            "the plan of a build is damaged, so nobody can tell how other builds differ from it: %(error)s",
            {"error": error},
        )
        return None


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
