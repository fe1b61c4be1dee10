"""What builds that did not end have finished, for those that go on where they stopped.

::

    <id>/_unfinished/<version>/<attempt>/plan.json    what is built and how, and what it took over from others
    <id>/_unfinished/<version>/<attempt>/00005.json   a shard that lies whole in the store, put when it does

They are written while a version is built, and deleted when it is published or its attempt is collected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.versions.shard_table import ShardFile

_AT_ONCE = 16
_PLAN = "plan.json"


@dataclass(frozen=True)
class Finished:
    """What a build attempt has finished.

    Args:
        plan: what is built, and how: another build can go on only where this is the same.
        shards: the shards that lie whole in the store, by their numbers in the version.
        nullable: the numbers of the leaves that were None in some element so far.
        source_length: the number of elements of the source, where it was known.
        element_spec: the spec of the elements, as JSON.
    """

    plan: Mapping[str, Any]
    element_spec: Any
    source_length: int | None = None
    shards: Mapping[int, ShardFile] = field(default_factory=dict)
    nullable: frozenset[int] = frozenset()


class Unfinished:
    """What the attempts at one version have finished.

    Args:
        store: where it is kept.
        dataset_id, version: what is built.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, version: str) -> None:
        self._store = store
        self._folder = paths.unfinished(dataset_id, version)

    def attempts(self) -> list[str]:
        """The attempts that have left something, those that are at work among them."""
        return [name for name in self._store.names(self._folder) if paths.is_attempt(name)]

    def begin(self, attempt: str, finished: Finished) -> None:
        """Write what an attempt builds, and what it begins with."""
        document = {
            "plan": finished.plan,
            "element_spec": finished.element_spec,
            "source_length": finished.source_length,
            "shards": [_row(number, shard) for number, shard in finished.shards.items()],
            "nullable": sorted(finished.nullable),
        }
        self._store.put(f"{self._folder}/{attempt}/{_PLAN}", json.dumps(document).encode())

    def add(self, attempt: str, number: int, shard: ShardFile, nullable: Iterable[int]) -> None:
        """Note that a shard lies whole in the store."""
        document = {"shards": [_row(number, shard)], "nullable": sorted(nullable)}
        self._store.put(f"{self._folder}/{attempt}/{number:05}.json", json.dumps(document).encode())

    def read(self, attempt: str) -> Finished | None:
        """What an attempt has finished; None where that is not known whole."""
        # Who was killed while it wrote a note has left a part of it, under another name.
        names = [name for name in self._store.names(f"{self._folder}/{attempt}") if name.endswith(".json")]
        with ThreadPoolExecutor(_AT_ONCE, "cachelayer-unfinished") as threads:
            found = list(threads.map(lambda name: self._store.read(f"{self._folder}/{attempt}/{name}"), names))
        documents = dict(zip(names, found, strict=True))
        try:
            plan = json.loads(documents.pop(_PLAN) or b"")
            notes = [plan, *(json.loads(raw) for raw in documents.values() if raw is not None)]
            return Finished(
                plan["plan"],
                plan["element_spec"],
                plan["source_length"],
                {row["number"]: _shard(row) for note in notes for row in note["shards"]},
                frozenset(leaf for note in notes for leaf in note["nullable"]),
            )
        except (KeyError, TypeError, ValueError):
            # Written by another release, or damaged: then it is built anew.
            return None

    def forget(self, attempt: str) -> None:
        """Delete what was written of an attempt."""
        with suppress(StorageError):
            self._store.delete_folder(f"{self._folder}/{attempt}")


def _row(number: int, shard: ShardFile) -> dict[str, Any]:
    return {"number": number, "attempt": shard.attempt, "file": shard.number, **asdict(shard.stats)}


def _shard(row: Mapping[str, Any]) -> ShardFile:
    stats = {name: value for name, value in row.items() if name not in ("number", "attempt", "file")}
    return ShardFile(row["attempt"], row["file"], ShardStats(**stats))
