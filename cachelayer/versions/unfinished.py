"""Notes of what a build has finished, from which another build resumes if it is interrupted.

::

    <id>/_unfinished/<version>/<attempt>/plan.json      what is built and how, and what it took over from other attempts
    <id>/_unfinished/<version>/<attempt>/00005.json     a finished part: its shards are whole in the store
    <id>/_unfinished/<version>/<attempt>/00005-00.run   put if absent by each process that begins a part
    <id>/_unfinished/<version>/<attempt>/00005-00.host  put if absent by each host that claims a part
    <id>/_unfinished/<version>/<attempt>/....kept       records of a slow build; see :mod:`.kept_records`

Notes are written during a build, and deleted when it is published or its attempt is collected. In a build that is not
divided, each shard is a part.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count, takewhile
from typing import Any

from cachelayer import json_values
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import BuildRevokedError, CorruptionError, FormatError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.records import spec_json
from cachelayer.system_threads import Pool
from cachelayer.versions.kept_records import KeptRecords, Piece, pieces_in
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
        """Number of records."""
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
        kept: the pieces of records that were kept beside the shards, in order; some may be in shards by now.
    """

    plan: Mapping[str, Any]
    element_spec: Any
    source_length: int | None = None
    parts: Mapping[int, FinishedPart] = field(default_factory=dict)
    is_divided: bool = False
    kept: tuple[Piece, ...] = ()

    @property
    def shards(self) -> Iterator[ShardFile]:
        """The shards of all parts."""
        return (shard for part in self.parts.values() for shard in part.shards)

    @property
    def nullable(self) -> frozenset[int]:
        """The numbers of the leaves that were None in some element so far."""
        return frozenset(leaf for part in self.parts.values() for leaf in part.nullable)

    @property
    def records(self) -> int:
        """Number of records in all parts."""
        return sum(part.records for part in self.parts.values())

    @property
    def records_and_kept(self) -> int:
        """Number of records in all parts, and kept beside them."""
        records = in_shards = self.in_whole_shards
        for piece in self.kept:
            records += max(0, piece.stop - max(piece.first, records))
        return self.records + records - in_shards

    @property
    def in_whole_shards(self) -> int:
        """Number of records in the shards that are finished without a gap, in a build that is not divided."""
        numbers = takewhile(self.parts.__contains__, count())
        return 0 if self.is_divided else sum(self.parts[number].records for number in numbers)


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
    """The notes of the attempts at one version.

    Args:
        store: the store.
        dataset_id, version: the version.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, version: str) -> None:
        self._store = store
        self._of = dataset_id, version
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
        """Return what an attempt builds, and what it took over; None if it has not begun.

        Raises:
            CorruptionError, FormatError: if the note was damaged.
        """
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
        """Return a part that has a note of its own; None if it has none.

        Raises:
            CorruptionError, FormatError: if the note was damaged.
        """
        name = self._note(attempt, number)
        raw = self._store.read(name)
        if raw is None:
            return None
        with json_values.decoding(f"{self._store.url}/{name}", "note of a part"):
            found, part = _part(json_values.parsed(raw))
            if found != number:
                raise ValueError(f"it is the note of part {found}")
            return part

    def shards_of(self, attempt: str, numbers: Sequence[int]) -> list[ShardFile]:
        """Return the shards of finished parts, whether the attempt built them or took them over from another.

        Raises:
            BuildRevokedError: if one of them is not noted: the attempt was published, or given up, meanwhile.
        """
        begun = self.begun(attempt)
        taken_over = {} if begun is None else begun.parts

        def found(number: int) -> FinishedPart | None:
            return taken_over.get(number) or self.part(attempt, number)

        with Pool(_AT_ONCE, "cachelayer-unfinished") as threads:
            parts = list(threads.map(found, numbers))
        if None in parts:
            raise BuildRevokedError(f"build attempt {attempt} was published, or given up, meanwhile: build again")
        return [shard for part in parts if part is not None for shard in part.shards]

    def begin_part(self, attempt: str, number: int) -> int:
        """Note that this process begins a part, and return how often others have begun it.

        Raises:
            BuildRevokedError: if the attempt's notes are gone: others have published it, or resume it.
        """
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
        """Return the host that made the claim of this number.

        Raises:
            CorruptionError: if the claim was damaged.
        """
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
        there = self._store.names(f"{self._folder}/{attempt}")
        names = [name for name in there if name.endswith(".json")]
        with Pool(_AT_ONCE, "cachelayer-unfinished") as threads:
            found = list(threads.map(lambda name: self._store.read(f"{self._folder}/{attempt}/{name}"), names))
        documents = dict(zip(names, found, strict=True))
        try:
            with json_values.decoding(f"{self._store.url}/{self._folder}/{attempt}", "set of notes"):
                plan = json_values.parsed(documents.pop(PLAN) or b"")
                finished = _finished(plan, [json_values.parsed(raw) for raw in documents.values() if raw is not None])
                return replace(finished, kept=pieces_in(there))
        except (CorruptionError, FormatError):
            # Another release wrote it, or it is damaged: then the build starts over.
            return None

    def kept(self, attempt: str, finished: Finished) -> KeptRecords:
        """Return the records that an attempt keeps beside its shards."""
        return KeptRecords(self._store, *self._of, attempt, finished.plan, finished.element_spec)

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
