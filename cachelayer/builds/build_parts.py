"""Building a version in parts: here, by an engine, or by several hosts together."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from cachelayer.arguments import integer
from cachelayer.arrayrecord.index import record_checksums
from cachelayer.builds.build import Built
from cachelayer.builds.encode import LeftOut
from cachelayer.builds.part_task import PartTask
from cachelayer.engines import Engine
from cachelayer.errors import BuildRevokedError, InvalidArgumentError, InvalidTypeError, SourceError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.progress.meter import Progress
from cachelayer.records.codec import codec_for
from cachelayer.versions.attempts import Attempts, pause
from cachelayer.versions.plan_differences import differences
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import Finished, FinishedPart, Standing, Unfinished

_AT_ONCE = 16


@dataclass(frozen=True)
class Hosts:
    """Processes that build a version together, as one of them sees them.

    Args:
        index: which of them this is, from 0.
        count: how many there are.
    """

    index: int
    count: int

    @classmethod
    def checked(cls, hosts: Any) -> Self:
        """The hosts that a user names.

        Raises:
            InvalidArgumentError, InvalidTypeError: where there can be no such.
        """
        if not isinstance(hosts, tuple) or len(hosts) != 2:
            raise InvalidTypeError(
                f"hosts {hosts!r}: pass (index, count), as (jax.process_index(), jax.process_count())"
            )
        index, count = integer("the index in hosts", hosts[0], 0), integer("the count in hosts", hosts[1], 1)
        if index >= count:
            raise InvalidArgumentError(f"hosts {hosts}: the index is less than the count")
        return cls(index, count)


def refuse_other_build(name: str, ours: Finished, theirs: Finished) -> None:
    """Refuse to help with a build that is not the one this host was asked for.

    Args:
        name: the version, for the message.
        ours: what this host was asked to build.
        theirs: what the host that leads builds.

    Raises:
        InvalidArgumentError: if they differ, with each difference.
    """
    differ = differences(_described(ours), _described(theirs))
    if differ:
        raise InvalidArgumentError(
            f"{name}: another host builds it otherwise: {'; '.join(differ)}. Pass the same source, made by the same "
            "code, and the same options on all of them; what a host has to itself, such as its rank, is told by "
            "hosts=(index, count) alone"
        )


def _described(build: Finished) -> Any:
    """What hosts that build together need to have in common, as JSON."""
    described = {
        **build.plan,
        "element_spec": build.element_spec,
        "number of elements": build.source_length,
        "is divided": build.is_divided,
    }
    # Tuples, say, are lists in what another host has written.
    return json.loads(json.dumps(described))


def build_parts(task: PartTask, engine: Engine, progress: Progress, finished: Mapping[int, FinishedPart]) -> None:
    """Build the parts that are not finished.

    Raises:
        CacheLayerError: what stopped the first part that failed.
    """
    missing = [number for number in range(task.parts.count) if number not in finished]
    progress.skip(sum(part.records for part in finished.values()))
    progress.parts(len(finished), task.parts.count)
    _run(task, engine, progress, iter(missing))


def build_together(shared: SharedParts, engine: Engine, progress: Progress) -> None:
    """Build this host's share of the parts, then what others left, until all are finished or nobody wants them.

    Args:
        shared: the parts.
        engine: builds them on this host.
        progress: is told of what is built here.

    Raises:
        CacheLayerError: what stopped the first part that failed here.
    """
    progress.skip(shared.records_taken_over)
    while shared.are_left() and shared.are_wanted():
        progress.parts(*shared.standing)
        if _run(shared.task, engine, progress, shared.claimed()):
            shared.check_built()
        else:
            pause()


def _run(task: PartTask, engine: Engine, progress: Progress, numbers: Iterator[int]) -> bool:
    """Build parts, and return whether there were any."""
    first = next(numbers, None)
    if first is None:
        return False
    built = engine.run(task, chain([first], numbers))
    for done in progress.waiting_for("parts that are being built", built):
        progress.part_done(done.records, done.nbytes)
    return True


class SharedParts:
    """The parts of one attempt, as one of the hosts that build them sees them.

    Args:
        task: builds parts.
        attempts: tells which hosts are at work.
        hosts: which of them this one is.
        name: the attempt by which others see whether this one is; the leader's is that of the parts.
        taken_over: the parts that an interrupted attempt had finished.
    """

    def __init__(
        self, task: PartTask, attempts: Attempts, hosts: Hosts, name: str, taken_over: Mapping[int, FinishedPart]
    ) -> None:
        self.task = task
        self.records_taken_over = sum(part.records for part in taken_over.values())
        self._attempt = task.attempt
        self._count = task.parts.count
        self._unfinished = Unfinished(task.store, task.dataset_id, task.version)
        self._attempts = attempts
        self._hosts = hosts
        self._name = name
        self._taken_over = taken_over.keys()
        self._claimants: dict[tuple[int, int], str | None] = {}
        self._mine: set[int] = set()
        self._standing = Standing(frozenset(), {})

    def are_wanted(self) -> bool:
        """Return whether the version is still to be published, by a leader that is at work."""
        if self._name == self._attempt:
            return True
        return self._unfinished.is_begun(self._attempt) and not self._attempts.dead([self._attempt])

    def are_left(self) -> bool:
        """Return whether parts are not finished, by what the store says now."""
        self._standing = self._unfinished.standing(self._attempt)
        return bool(self._left())

    @property
    def standing(self) -> tuple[int, int]:
        """How many parts are finished, by what the store said last, and how many there are."""
        return self._count - len(self._left()), self._count

    def _left(self) -> list[int]:
        """The parts that are not finished: this host's own first, then those of the hosts after it."""
        done = self._standing.finished | self._taken_over
        missing = [number for number in range(self._count) if number not in done]
        index, count = self._hosts.index, self._hosts.count
        return sorted(missing, key=lambda number: ((number * count // self._count - index) % count, number))

    def claimed(self) -> Iterator[int]:
        """The parts that this host is to build, each claimed before it is given: first those nobody has claimed."""
        free = deque(self._unclaimed())
        while free and self.are_wanted():
            number = free.popleft()
            if self._claim(number, 0):
                yield number
            elif self.are_left():
                # Others are at those that come next, too.
                free = deque(self._unclaimed())
        yield from self._claimed_of_the_dead()

    def _unclaimed(self) -> list[int]:
        return [number for number in self._left() if number not in self._standing.claims]

    def _claimed_of_the_dead(self) -> Iterator[int]:
        behind = {number: self._standing.claims[number] for number in self._left() if number in self._standing.claims}
        claimants = {number: self._claimant(number, count - 1) for number, count in behind.items()}
        others = {name for name in claimants.values() if name is not None and name != self._name}
        dead = self._attempts.dead(others)
        for number, count in behind.items():
            if claimants[number] in dead and self.are_wanted() and self._claim(number, count):
                yield number

    def check_built(self) -> None:
        """Raise if a part that was given is not finished when the engine has ended.

        Raises:
            SourceError: with the first such part.
            BuildRevokedError: if the attempt was published, or given up, meanwhile.
        """
        if not self._unfinished.is_begun(self._attempt):
            raise BuildRevokedError(f"build attempt {self._attempt} was published, or given up, meanwhile: build again")
        missing = self._mine.intersection(self._left()) if self.are_left() else ()
        if missing:
            raise SourceError(f"the engine ended without {self.task.describe(min(missing))}")

    def _claim(self, number: int, claim: int) -> bool:
        is_ours = self._unfinished.claim(self._attempt, number, claim, self._name)
        if is_ours:
            self._mine.add(number)
        return is_ours

    def _claimant(self, number: int, claim: int) -> str | None:
        key = (number, claim)
        if key not in self._claimants:
            self._claimants[key] = self._unfinished.claimant(self._attempt, number, claim)
        return self._claimants[key]


def collected(task: PartTask, finished: Mapping[int, FinishedPart]) -> Built:
    """What all parts came to.

    Args:
        task: built them.
        finished: the parts that were taken over from an attempt that was interrupted; the others are read.

    Raises:
        SourceError: where two parts have the same records, or one is missing.
    """
    unfinished = Unfinished(task.store, task.dataset_id, task.version)

    def of(number: int) -> FinishedPart | None:
        return finished.get(number) or unfinished.part(task.attempt, number)

    with ThreadPoolExecutor(_AT_ONCE, "cachelayer-parts") as threads:
        found = list(threads.map(of, range(task.parts.count)))
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        missing = [number for number, part in enumerate(found) if part is None]
        raise SourceError(f"of {len(found)} parts {len(missing)} were not built, the first of them part {missing[0]}")
    _refuse_twins(task, parts)
    spec = task.options.element_spec
    left_out = [LeftOut(part.left_out, part.elements, part.first_left_out) for part in parts]
    return Built(
        codec_for(spec).name,
        spec,
        frozenset(leaf for part in parts for leaf in part.nullable),
        [shard for part in parts for shard in part.shards],
        reduce(LeftOut.then, left_out, LeftOut(0, 0, ())),
    )


def _refuse_twins(task: PartTask, parts: list[FinishedPart]) -> None:
    """Raise if two parts hold the same records: the function ignored its part number.

    Raises:
        SourceError: with both numbers, unless all of their records are equal.
    """
    seen: dict[tuple[str, ...], int] = {}
    for number, part in enumerate(parts):
        twin = seen.setdefault(tuple(shard.stats.sha256 for shard in part.shards), number)
        if twin != number and part.records > 1 and not _are_all_equal(task, part.shards[0]):
            raise SourceError(
                f"parts {twin} and {number} have the same {part.records} records: make the elements of a part from its "
                "number, and each element in one part only"
            )


def _are_all_equal(task: PartTask, shard: ShardFile) -> bool:
    raw = task.store.read(paths.index_of(f"{task.dataset_id}/{shard.name}")) or b""
    return len(np.unique(record_checksums(raw))) == 1


def remove_others(store: ObjectStore, dataset_id: str, attempt: str, shards: Iterable[ShardFile]) -> None:
    """Remove what an attempt that has published wrote for parts that were begun twice."""
    folder = paths.build(dataset_id, attempt)
    named = {Path(name).name for shard in shards for name in (shard.name, paths.index_of(shard.name))}
    with suppress(StorageError):
        for name in store.names(folder):
            if name.startswith("shard-") and name not in named:
                store.delete(f"{folder}/{name}")
