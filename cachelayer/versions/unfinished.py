"""Notes of what a build has finished, from which another build resumes if it is interrupted.

::

    <id>/_unfinished/<version>/<attempt>/plan.json      what is built and how, and what it took over from other attempts
    <id>/_unfinished/<version>/<attempt>/00005.json     a finished part: its shards are whole in the store
    <id>/_unfinished/<version>/<attempt>/00005-00.run   put if absent by each process that begins a part
    <id>/_unfinished/<version>/<attempt>/00005-00.host  put if absent by each host that claims a part

Notes are written during a build, and deleted when it is published or its attempt is collected. In a build that is not
divided, each shard is a part.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cachelayer import json_values
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import BuildRevokedError, CorruptionError, FormatError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.records import spec_json
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn
from cachelayer.versions.attempts import Attempts, State, attempts_of, began_at
from cachelayer.versions.log import Log
from cachelayer.versions.shard_table import ShardFile, check_stats

_AT_ONCE = 16
PLAN = "plan.json"
_CLAIM = re.compile(r"([0-9]{5,})-([0-9]{2,})[.]host", re.ASCII)
_NOTE = re.compile(r"([0-9]{5,})[.]json", re.ASCII)


@dataclass(frozen=True)
class FinishedPart:
    """The result of one part of a build.

    Args:
        shards: its shards, whole in the store.
        nullable: the numbers of the leaves that were None in some element.
        elements: the number of elements of the source in it.
        left_out: the number of these that were left out.
        first_left_out: descriptions of the first of these.
    """

    shards: tuple[ShardFile, ...]
    nullable: frozenset[int] = frozenset()
    elements: int = 0
    left_out: int = 0
    first_left_out: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return sum(shard.stats.records for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of the shards, without indices."""
        return sum(shard.stats.nbytes for shard in self.shards)


@dataclass(frozen=True)
class Finished:
    """What a build attempt has finished.

    Args:
        plan: what is built, and how: only a build with an equal plan can resume.
        parts: the finished parts by number; in a build that is not divided, each shard is a part.
        source_length: the number of elements of the source, if it was known.
        element_spec: the spec of the elements, as JSON.
        is_divided: whether it is built in parts, so that others can help.
    """

    plan: Mapping[str, Any]
    element_spec: Any
    source_length: int | None = None
    parts: Mapping[int, FinishedPart] = field(default_factory=dict)
    is_divided: bool = False

    @property
    def shards(self) -> Iterator[ShardFile]:
        return (shard for part in self.parts.values() for shard in part.shards)

    @property
    def nullable(self) -> frozenset[int]:
        """The numbers of the leaves that were None in some element so far."""
        return frozenset(leaf for part in self.parts.values() for leaf in part.nullable)

    @property
    def records(self) -> int:
        """Number of records in all parts."""
        return sum(part.records for part in self.parts.values())


@dataclass(frozen=True)
class Standing:
    """The progress of an attempt's parts.

    Args:
        finished: the numbers of the parts that are finished.
        claims: how many hosts have claimed each part, one after another.
    """

    finished: frozenset[int]
    claims: Mapping[int, int]


class Unfinished:
    """The notes of the attempts at one version."""

    def __init__(self, store: ObjectStore, dataset_id: str, version: str) -> None:
        self._store = store
        self._folder = paths.unfinished(dataset_id, version)

    def attempts(self) -> list[str]:
        """Return the attempts that have notes, including those at work."""
        return [name for name in self._store.names(self._folder) if paths.is_attempt(name)]

    def begin(self, attempt: str, finished: Finished) -> None:
        """Note what an attempt builds, and what it took over."""
        document = {
            "plan": finished.plan,
            "element_spec": finished.element_spec,
            "source_length": finished.source_length,
            "is_divided": finished.is_divided,
            "parts": [_row(number, part) for number, part in finished.parts.items()],
        }
        self._store.put(f"{self._folder}/{attempt}/{PLAN}", json.dumps(document).encode())

    def add(self, attempt: str, number: int, part: FinishedPart) -> bool:
        """Note a finished part unless it has a note already; return whether this call wrote the note."""
        return self._store.put_if_absent(self._note(attempt, number), json.dumps(_row(number, part)).encode())

    def begun(self, attempt: str) -> Finished | None:
        """Return what an attempt builds, and what it took over; None if it has not begun."""
        name = f"{self._folder}/{attempt}/{PLAN}"
        raw = self._store.read(name)
        if raw is None:
            return None
        with json_values.decoding(f"{self._store.url}/{name}", "plan of a build"):
            return _finished(json_values.parsed(raw), [])

    def is_begun(self, attempt: str) -> bool:
        """Return whether an attempt has begun, and has been neither published nor abandoned."""
        return self._store.exists(f"{self._folder}/{attempt}/{PLAN}")

    def part(self, attempt: str, number: int) -> FinishedPart | None:
        """Return a part that has a note of its own; None if it has none."""
        name = self._note(attempt, number)
        raw = self._store.read(name)
        if raw is None:
            return None
        with json_values.decoding(f"{self._store.url}/{name}", "note of a part"):
            found, part = _part(json_values.parsed(raw))
            if found != number:
                raise ValueError(f"it is the note of part {found}")
            return part

    def begin_part(self, attempt: str, number: int) -> int:
        """Note that this process begins a part, and return how often others have begun it."""
        run = 0
        while not self._store.put_if_absent(name := f"{self._folder}/{attempt}/{number:05}-{run:02}.run", _token()):
            run += 1
        # Check afterwards: while the plan exists, so do the notes of all processes that began this part before.
        if not self.is_begun(attempt):
            self._store.delete(name)
            raise BuildRevokedError(f"build attempt {attempt} was published or abandoned meanwhile: build again")
        return run

    def claim(self, attempt: str, number: int, claim: int, host: str) -> bool:
        """Claim a part for a host, as the claim of this number; return False if another host was quicker."""
        return self._store.put_if_absent(self._claim(attempt, number, claim), _token(host=host))

    def claimant(self, attempt: str, number: int, claim: int) -> str | None:
        """Return the host that made the claim of this number."""
        name = self._claim(attempt, number, claim)
        raw = self._store.read(name)
        if raw is None:
            return None
        with json_values.decoding(f"{self._store.url}/{name}", "claim of a part"):
            return paths.check_attempt(json_values.parsed(raw)["host"])

    def standing(self, attempt: str) -> Standing:
        """Return which parts have notes of their own, and how many hosts have claimed each."""
        names = self._store.names(f"{self._folder}/{attempt}")
        claims: dict[int, int] = {}
        for number, claim in (map(int, found.groups()) for name in names if (found := _CLAIM.fullmatch(name))):
            claims[number] = max(claims.get(number, 0), claim + 1)
        return Standing(frozenset(int(found[1]) for name in names if (found := _NOTE.fullmatch(name))), claims)

    def _note(self, attempt: str, number: int) -> str:
        return f"{self._folder}/{attempt}/{number:05}.json"

    def _claim(self, attempt: str, number: int, claim: int) -> str:
        return f"{self._folder}/{attempt}/{number:05}-{claim:02}.host"

    def read(self, attempt: str) -> Finished | None:
        """Return all that an attempt has finished; None if its notes are incomplete."""
        # A process that was killed while writing a note has left a piece of it, under another name.
        names = [name for name in self._store.names(f"{self._folder}/{attempt}") if name.endswith(".json")]
        with Pool(_AT_ONCE, "cachelayer-unfinished") as threads:
            found = list(threads.map(lambda name: self._store.read(f"{self._folder}/{attempt}/{name}"), names))
        documents = dict(zip(names, found, strict=True))
        try:
            with json_values.decoding(f"{self._store.url}/{self._folder}/{attempt}", "set of notes"):
                plan = json_values.parsed(documents.pop(PLAN) or b"")
                return _finished(plan, [json_values.parsed(raw) for raw in documents.values() if raw is not None])
        except (CorruptionError, FormatError):
            # Another release wrote it, or it is damaged: then the build starts over.
            return None

    def forget(self, attempt: str) -> None:
        """Delete the notes of an attempt: the plan first, since without it nobody begins another part."""
        with suppress(StorageError):
            self._store.delete(f"{self._folder}/{attempt}/{PLAN}")
            self._store.delete_folder(f"{self._folder}/{attempt}")


def _finished(plan: Mapping[str, Any], rows: list[Any]) -> Finished:
    parts = dict(_part(row) for row in [*json_values.items("parts", plan["parts"]), *rows])
    length, is_divided = plan["source_length"], json_values.flag("is_divided", plan["is_divided"])
    if not is_divided and any(len(part.shards) != 1 for part in parts.values()):
        raise ValueError("a part of an undivided build must have exactly one shard")
    spec_json.from_json(plan["element_spec"])
    return Finished(
        json_values.mapping("plan", json_values.shallow("plan", plan["plan"])),
        plan["element_spec"],
        None if length is None else json_values.whole("source_length", length),
        parts,
        is_divided,
    )


def _row(number: int, part: FinishedPart) -> dict[str, Any]:
    return {
        "number": number,
        "shards": [{"attempt": shard.attempt, "file": shard.number, **asdict(shard.stats)} for shard in part.shards],
        "nullable": sorted(part.nullable),
        "elements": part.elements,
        "left_out": part.left_out,
        "first_left_out": part.first_left_out,
    }


def _part(found: Any) -> tuple[int, FinishedPart]:
    """Return the part that a note describes, and its number."""
    row = json_values.mapping("a part", found)
    part = FinishedPart(
        tuple(_shard(shard) for shard in json_values.items("shards", row["shards"])),
        frozenset(json_values.whole("a leaf", leaf) for leaf in json_values.items("nullable", row["nullable"])),
        json_values.whole("elements", row["elements"]),
        json_values.whole("left_out", row["left_out"]),
        tuple(
            json_values.text("what was left out", each) for each in json_values.items("left out", row["first_left_out"])
        ),
    )
    return json_values.whole("the number of a part", row["number"]), part


def _shard(found: Any) -> ShardFile:
    row = dict(json_values.mapping("a shard", found))
    attempt, number = (
        paths.check_attempt(row.pop("attempt")),
        json_values.whole("the number of a shard", row.pop("file")),
    )
    return ShardFile(attempt, number, check_stats(ShardStats(**row)))


def _token(**said: str) -> bytes:
    return json.dumps({**said, "token": uuid.uuid4().hex}).encode()


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
    records = None if finished is None else finished.records
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
