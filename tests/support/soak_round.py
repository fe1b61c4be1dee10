"""A round of the soak suite: processes change two storages at once, some are killed, and then all must be whole."""

from __future__ import annotations

import json
import os
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crash_child import LEASE_SECONDS, die_before
from faults import Fault, FaultProxy, answer, cut, lose, reset
from forks import FORKS
from leftovers import assert_only_versions_are_left
from operations import BUILDS, OPERATIONS, RECORDS, expected, submit_base

import cachelayer
from cachelayer import DataRef, Storage

CHILDREN = 3
NOT_OF_ERASED = {"columns", "join", "rewrite"}
"""Operations that are refused once records of their base are erased."""
LAST_STEP = 400
"""The last of a child's steps in a folder before which a child may die."""
REFUSALS = {
    "AlreadyExistsError", "BuildRevokedError", "BusyError", "NotFoundError", "DatasetNotFoundError", "RefusedError",
    "StorageError", "VersionNotFoundError",
}  # fmt: skip
"""What a call may raise while other processes change the dataset, or the store fails."""
WHEN_FILES_GO = {"CorruptionError", "ErasedRecordError"}
"""What it may raise too when an erasure, or a deletion without a grace, takes the files that it reads."""


@dataclass(frozen=True)
class Place:
    """A storage, and how it is reached."""

    url: str
    options: dict[str, Any] | None = None
    faulty_options: dict[str, Any] | None = None
    """The options with which children reach it, through the proxy of faults."""

    def storage(self, *, faulty: bool = False) -> Storage:
        options = self.faulty_options if faulty else self.options
        return cachelayer.Storage(self.url, storage_options=options, local_cache_bytes=0)


class Round:
    """What one round does; all of it is drawn from its seed, but not which process is the first at a place.

    It makes versions of these names, each by the operation that it is named after; it may erase records of the base,
    and delete versions, to make them again.
    """

    def __init__(self, seed: int, first: Place, second: Place) -> None:
        self.seed, self.first, self.second = seed, first, second
        self.chance = random.Random(seed)
        self.names = self.chance.sample([*OPERATIONS], 3)
        self.erased = self.chance.sample(range(RECORDS), 2) if self.chance.random() < 0.4 else []
        self.deletes = self.chance.random() < 0.3
        self.outcomes = Counter[str]()

    def __str__(self) -> str:
        drawn = [*self.names, *(["erasing"] if self.erased else []), *(["deleting"] if self.deletes else [])]
        return f"seed {self.seed} ({', '.join(drawn)})"

    def draw_tasks(self) -> list[tuple[str, Any]]:
        """Return what one child does, call by call."""
        kinds = ["make"] * 4 + ["collect"] * 2 + ["copy", "verify", "read", "collect there"]
        kinds += ["erase"] * bool(self.erased) + ["delete"] * self.deletes
        drawn = [self.chance.choice(kinds) for _ in range(self.chance.randint(4, 8))]
        return [(kind, self.erased if kind == "erase" else self.chance.choice(self.names)) for kind in drawn]

    def draw_faults(self) -> list[Fault]:
        kinds: list[Callable[..., Fault]] = [
            lambda **aim: answer(self.chance.choice([429, 500, 503]), **aim),
            lambda **aim: cut(self.chance.randrange(400), method="GET", **aim),
            lambda **aim: lose(method=self.chance.choice(["PUT", "POST", "DELETE"]), **aim),
            reset,
        ]
        aims = {"probability": 0.08, "times": 12}
        return [make(seed=self.chance.getrandbits(30), **aims) for make in self.chance.sample(kinds, 2)]

    def run(self, folder: Path, proxy: FaultProxy | None) -> int:
        """Run the round; return how many children were killed. Raise for whatever is not as it must be."""
        submit_base(self.first.storage())
        logs = [folder / f"{number}.jsonl" for number in range(CHILDREN)]
        children = []
        for log in logs:
            dies_at_step = proxy is None and self.chance.random() < 0.4
            step = self.chance.randint(1, LAST_STEP) if dies_at_step else None
            arguments = (self.first, self.second, self.draw_tasks(), log, step)
            children.append(FORKS.Process(target=work, args=arguments))
        if proxy is not None:
            proxy.add(*self.draw_faults())
        for child in children:
            child.start()
        victim = self.chance.choice(children)
        victim.join(self.chance.random() * (1.5 if proxy is None else 4))
        victim.kill()
        for child in children:
            child.join()
        if proxy is not None:
            proxy.clear()
        killed = [child for child in children if child.exitcode == -signal.SIGKILL]
        assert {child.exitcode for child in children} <= {0, -signal.SIGKILL}
        self._check_outcomes(logs)
        self._check_storages()
        return len(killed)

    def _check_outcomes(self, logs: list[Path]) -> None:
        allowed = REFUSALS | (WHEN_FILES_GO if self.erased or self.deletes else set())
        for log in logs:
            lines = log.read_text().splitlines() if log.exists() else []
            for task, error, text in map(json.loads, lines):
                self.outcomes[error or "done"] += 1
                assert not error or error in allowed, f"{task}: {text}"

    def _check_storages(self) -> None:
        """Raise unless all that was published is whole, all builds can go on, and nothing else is left."""
        first, second = self.first.storage(), self.second.storage()
        _verify_all(first)
        if first.fetch("d@v1").erased.size:
            self.names = [name for name in self.names if name not in NOT_OF_ERASED or name in first.versions("d")]
        for name in self.names:
            _make(first, name)
        if self.erased:
            first.erase("d@v1", records=self.erased, reason="soak")
        for name in self.names:
            self._check_version(first.fetch(f"d@{name}"), name)
        ref = first.fetch("d@v1")
        assert ref.erased.tolist() == sorted(self.erased)
        assert first.copy("d@v1", to=second, progress=False).digest == ref.digest
        _verify_all(second)
        for storage in (first, second):
            assert_only_versions_are_left(storage, "d")

    def _check_version(self, ref: DataRef[Any], name: str) -> None:
        if not self.erased or name in BUILDS:
            assert ref.digest == digest_of(name), f"{name} has other records than without faults"
            return
        present = sorted(map(_shown, ref.exclude(ref.erased)))
        wanted = sorted(map(_shown, expected(name)))
        left = [element for element in wanted if element[0] not in self.erased]
        # What was written anew before the erasure is in other shards, which it does not touch.
        assert present == left or (name == "rewrite" and present == wanted), f"{name} has other elements"


def _shown(element: dict[str, Any]) -> tuple[int, str]:
    values = {key: None if value is None else np.asarray(value).tolist() for key, value in element.items()}
    return int(element["number"]), json.dumps(values, sort_keys=True)


def _verify_all(storage: Storage) -> None:
    for version in storage.versions("d") if "d" in storage.datasets() else ():
        assert storage.verify(f"d@{version}", progress=False), f"{storage.url}: {version} is damaged"


def _make(storage: Storage, name: str) -> DataRef[Any]:
    return storage.fetch(f"d@{name}") if name in storage.versions("d") else OPERATIONS[name](storage, name)


_digests: dict[str, str] = {}


def digest_of(name: str) -> str:
    """Return the digest of what an operation makes when nothing fails."""
    if name not in _digests:
        storage = cachelayer.Storage(f"memory://undisturbed-{name}", local_cache_bytes=0)
        submit_base(storage)
        _digests[name] = OPERATIONS[name](storage, name).digest
    return _digests[name]


def work(first: Place, second: Place, tasks: list[tuple[str, Any]], log: Path, step: int | None) -> None:
    """Do the tasks in this process, and note what each one raised; or die before that step in the first folder."""
    os.environ["CACHELAYER_LEASE_SECONDS"] = str(LEASE_SECONDS)
    storage, other = first.storage(faulty=True), second.storage(faulty=True)
    if step is not None:
        die_before(first.url, step)
    for task in tasks:
        error = text = ""
        try:
            _do(task, storage, other)
        except cachelayer.CacheLayerError as raised:
            error, text = type(raised).__name__, traceback.format_exc()
        except Exception:  # noqa: BLE001
            error, text = "another error", traceback.format_exc()
        with log.open("a") as file:
            file.write(json.dumps([task, error, text]) + "\n")


def _do(task: tuple[str, Any], storage: Storage, other: Storage) -> None:
    kind, what = task
    if kind == "make":
        _make(storage, what)
    elif kind == "collect":
        storage.gc(grace=0)
    elif kind == "collect there":
        other.gc(grace=0)
    elif kind == "copy":
        version = what if what in storage.versions("d") else "v1"
        storage.copy(f"d@{version}", other, progress=False)
    elif kind == "verify":
        storage.verify("d@v1", progress=False)
    elif kind == "read":
        for batch in storage.fetch("d@v1").stream(16, shuffle=True, seed=1):
            assert (batch["payload"][:, 0] == batch["number"] % 251).all()
    elif kind == "erase":
        storage.erase("d@v1", records=what, reason="soak", grace=0)
    else:
        storage.delete(f"d@{what}", grace=0)
