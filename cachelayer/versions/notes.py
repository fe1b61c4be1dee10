"""Notes of what a build has finished: any build with the same plan goes on from them.

::

    <id>/_builds/<version>/<plan>/plan.json    what is built and how
    <id>/_builds/<version>/<plan>/00005.json   a finished part: its shards were put

``<plan>`` is a hash of the plan. Only a build whose source comes in parts has notes: one that must begin at its first
element begins there again. A note counts if its files are good. Notes are deleted when the version is published. Each
ends with its checksum: a damaged one counts as none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cachelayer import json_values
from cachelayer.errors import CorruptionError, FormatError, StorageError
from cachelayer.json_values import Count
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import canonical_json
from cachelayer.versions.publish import absent_files, lost_files
from cachelayer.versions.shard_table import ShardFile, ShardTable

_log = logger_of("builds")
_AT_ONCE = 16
_SHOWN = 10
_PLAN = "plan.json"
_NOTE = re.compile(r"([0-9]{5,})[.]json", re.ASCII)
PLAN_HASH = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True)
class PartResult:
    """The result of building a part of a source, some elements of it, or all parts together.

    Args:
        shards: its shards, which were put, in order.
        nullable: the numbers of the null bits that are set in some record.
        elements: the number of elements of the source in it.
        left_out: the number of these that were left out.
        first_left_out: the first of these: their numbers, fields, and what was expected there. No values: it is stored.
    """

    shards: tuple[ShardFile, ...] = ()
    nullable: frozenset[Count] = frozenset()
    elements: Count = 0
    left_out: Count = 0
    first_left_out: tuple[str, ...] = ()

    def then(self, later: PartResult) -> PartResult:
        """Return the result of this and of what follows it."""
        return PartResult(
            (*self.shards, *later.shards),
            self.nullable if later.nullable <= self.nullable else self.nullable | later.nullable,
            self.elements + later.elements,
            self.left_out + later.left_out,
            (*self.first_left_out, *later.first_left_out)[:_SHOWN],
        )

    @property
    def records(self) -> int:
        return sum(shard.stats.records for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of the shards, without indices."""
        return sum(shard.stats.nbytes for shard in self.shards)


class Notes:
    """The notes of the builds of a version with one plan.

    Args:
        dataset: the folder of the dataset.
        version: the version.
        plan: what is built and how, as JSON values.
    """

    def __init__(self, dataset: Store, version: str, plan: Mapping[str, Any]) -> None:
        self.dataset = dataset
        self.plan = plan
        self.version_folder = dataset.folder(paths.builds(version))
        self.folder = self.version_folder.folder(hashlib.sha256(canonical_json(plan)).hexdigest()[:32])

    def begin(self) -> None:
        """Note the plan."""
        self.folder.put(_PLAN, json_values.sealed({"plan": self.plan}))

    def add(self, number: int, part: PartResult) -> None:
        """Note a finished part."""
        document = json_values.encoded(replace(part, shards=()))
        document["shards"] = ShardTable(part.shards).to_json()
        self.folder.put(_note(number), json_values.sealed(document))
        _log.debug("%s/%s: part %d is finished, %d records", self.folder.url, _note(number), number, part.records)

    def finished(self, log: Log, known: Mapping[int, PartResult] | None = None) -> dict[int, PartResult]:
        """Return the finished parts whose files are good, by number.

        Args:
            log: the log of the dataset.
            known: parts that need not be read again.
        """
        known = known or {}
        if _plan(self.folder) is None:
            # Nobody can tell what these notes are of.
            return dict(known)
        with Pool(_AT_ONCE, "cachelayer-notes") as threads:
            numbers = sorted(noted_numbers(self.folder) - known.keys())
            read = dict(zip(numbers, threads.map(partial(read_part, self.folder), numbers), strict=True))
        noted = {number: part for number, part in read.items() if part is not None}
        parts, head = {**known, **noted}, log.head()
        lost = lost_files((shard.file for part in parts.values() for shard in part.shards), log, head)
        lost |= absent_files((shard for part in noted.values() for shard in part.shards), log)
        return {number: part for number, part in parts.items() if lost.isdisjoint(shard.file for shard in part.shards)}

    def others(self) -> dict[str, Mapping[str, Any]]:
        """Return the plans of other builds of the version, by the names of their folders."""
        found = {}
        for name in filter(PLAN_HASH.fullmatch, self.version_folder.names("")):
            plan = _plan(self.version_folder.folder(name))
            if name != self.folder.name and plan is not None:
                found[name] = plan
        return found

    def forget(self) -> None:
        """Delete the notes of all builds of the version, which is published."""
        try:
            for name in filter(PLAN_HASH.fullmatch, self.version_folder.names("")):
                self.version_folder.delete_folder(name)
        except StorageError as error:
            warn(f"notes are left in {self.version_folder.url}, until gc deletes them: {error}", room="builds")


def read_part(folder: Store, number: int) -> PartResult | None:
    """Return a finished part of the build that has its notes in a folder; None if it has no note that can be read."""
    raw = folder.read(_note(number))
    try:
        with json_values.decoding(f"{folder.url}/{_note(number)}", "note of a part"):
            if raw is None:
                return None
            document = json_values.unsealed(raw)
            shards = tuple(ShardTable.from_json(document["shards"]))
            part: PartResult = json_values.decoded(PartResult, "part", {**document, "shards": []})
            return replace(part, shards=shards)
    except (CorruptionError, FormatError) as error:
        _log.warning("a note is damaged, so its part is built again: %s", error)
        return None


def noted_numbers(folder: Store) -> set[int]:
    """Return the numbers of the finished parts of the build that has its notes in a folder."""
    return {int(match[1]) for name in folder.names("") if (match := _NOTE.fullmatch(name))}


def _note(number: int) -> str:
    return f"{number:05}.json"


def _plan(folder: Store) -> Mapping[str, Any] | None:
    """Return the plan of the build that has its notes in a folder; None if there is none that can be read."""
    raw = folder.read(_PLAN)
    try:
        with json_values.decoding(f"{folder.url}/{_PLAN}", "plan of a build"):
            if raw is None:
                return None
            return json_values.mapping("plan", json_values.shallow("plan", json_values.unsealed(raw)["plan"]))
    except (CorruptionError, FormatError) as error:
        _log.warning("the plan of a build is damaged, so what it has finished is not used: %s", error)
        return None
