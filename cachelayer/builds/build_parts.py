"""Build a version in parts: by an engine in any processes, on one host or on several hosts together."""

from __future__ import annotations

import json
import platform
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from cachelayer.arguments import integer
from cachelayer.arrayrecord.index import record_checksums
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_shards import Built, EarlierShards, build
from cachelayer.builds.compare_source import by_first_record, check_shards, spread
from cachelayer.builds.encode import LeftOut
from cachelayer.builds.sharded_source import Part, Parts, Ranges, Sharded
from cachelayer.builds.source import Seekable
from cachelayer.builds.staging import Stage, staging
from cachelayer.engines import Engine
from cachelayer.errors import (
    BuildRevokedError,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    SourceError,
    StorageError,
)
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.store import ObjectStore
from cachelayer.progress import Progress, current
from cachelayer.provenance.contents import HERE_AND_THERE, differences
from cachelayer.records.codec import codec_for
from cachelayer.system_threads import Pool
from cachelayer.versions.attempts import Attempts, pause
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import Finished, FinishedPart, Standing, Unfinished

_FILES = 10**4
_RUNS = 100
"""The most shards of a part, and the most times that a part may be begun: both are encoded in the number of a file."""
_AT_ONCE = 16


@dataclass(frozen=True)
class PartDone:
    """What an engine hands back of a finished part; the rest lies in the store.

    Args:
        records: number of its records.
        nbytes: bytes of its shards, without indices.
    """

    records: int
    nbytes: int


@dataclass(frozen=True)
class PartTask:
    """Builds parts of a version, one a call, in any process that has this task; it may be run more than once.

    Args:
        store: where shards go.
        copies: keeps local copies of them; None for none.
        dataset_id, version: what is built.
        attempt: the build attempt that the parts belong to.
        parts: the source.
        options: how; with the element spec.
    """

    store: ObjectStore
    copies: CacheFolder | None
    dataset_id: str
    version: str
    attempt: str
    parts: Parts
    options: BuildOptions

    def __call__(self, number: int) -> PartDone:
        """Build a part unless it has been built already, and note the result."""
        unfinished = Unfinished(self.store, self.dataset_id, self.version)
        try:
            made = unfinished.part(self.attempt, number)
            if made is None:
                made = self._build(unfinished, number)
        except StorageError as error:
            raise StorageError(f"{self.describe(number)}, on host {platform.node()}: {error}") from error
        return PartDone(made.records, made.nbytes)

    def describe(self, number: int) -> str:
        return self.parts.describe(number)

    def check_repeats(self, finished: Mapping[int, FinishedPart]) -> None:
        """Raise if the source does not repeat the parts that are built already.

        This compares the first shard of the last part. If that part can begin at any record, it also compares some
        records of each shard of the other parts: of at most 18 parts if a function makes them, which may take long.
        """
        # What was left out is not known by its number in the source.
        known = {number: done for number, done in finished.items() if done.shards and not done.left_out}
        if not known:
            return
        last = max(known)
        part = self.parts.part(last)
        self._check_shard(part, known[last].shards[0])
        if not isinstance(part.source, Seekable):
            return
        numbers = sorted(known)
        if not isinstance(self.parts, Ranges):
            numbers = [numbers[place] for place in spread(len(numbers))]
        for number in numbers:
            one = part if number == last else self.parts.part(number)
            if isinstance(one.source, Seekable):
                self._check_part(one, one.source, known[number].shards)

    def _check_shard(self, part: Part, first: ShardFile) -> None:
        options, earlier = replace(self.options, max_records=first.stats.records), EarlierShards({0: first})
        with Progress("", None, enabled=False) as progress, _errors_of(part):
            build(part.source, Stage(Path()), self.attempt, options, progress, earlier=earlier, first_record=part.first)

    def _check_part(self, part: Part, source: Seekable, shards: Sequence[ShardFile]) -> None:
        spec = self.options.element_spec
        with _errors_of(part):
            check_shards(self.store, self.dataset_id, source, spec, by_first_record(shards), part.first)

    def _build(self, unfinished: Unfinished, number: int) -> FinishedPart:
        """Build a part, note it and return it; if another process noted it first, return that one's."""
        run = unfinished.begin_part(self.attempt, number)
        if run >= _RUNS:
            raise SourceError(
                f"{self.describe(number)} was begun {run} times but never finished: build with resume=False"
            )
        part = self.parts.part(number)
        built = self._shards_of(part, (number * _RUNS + run) * _FILES)
        left_out = built.left_out
        first = tuple(f"{part.name}: {text}" if part.name else text for text in left_out.first)
        made = FinishedPart(tuple(built.shards), built.nullable, left_out.of, left_out.count, first)
        if unfinished.add(self.attempt, number, made):
            return made
        for name in (name for shard in made.shards for name in shard.files):
            self.store.delete(f"{self.dataset_id}/{name}")
        return unfinished.part(self.attempt, number) or made

    def _shards_of(self, part: Part, first_file: int) -> Built:
        """Write the shards of a part, the first of them under this number."""
        options, files = replace(self.options, max_records=part.records), range(first_file, first_file + _FILES)
        with staging(self.store, self.copies, self.dataset_id, self.attempt, files) as stage:
            with _errors_of(part):
                built = build(
                    part.source,
                    stage,
                    self.attempt,
                    options,
                    current(),
                    first_record=part.first,
                    files=first_file,
                )
            if len(built.shards) > _FILES:
                raise InvalidArgumentError(
                    f"{part.name or f'the part from record {part.first} on'} makes {len(built.shards):,} shards, more "
                    f"than {_FILES:,}: make more parts, or larger shards"
                )
            if part.records is not None and built.left_out.of != part.records:
                raise SourceError(
                    f"the source promised {part.records} elements from {part.first} on, but gave {built.left_out.of}: "
                    "its length is wrong"
                )
        return built


@contextmanager
def _errors_of(part: Part) -> Iterator[None]:
    """Add the part to errors whose record numbers do not tell it."""
    try:
        yield
    except ElementError as error:
        if not part.name:
            raise
        hint = f"It is in {part.name}. {error.hint}".strip()
        raise type(error)(error.expected, error.got, path=error.path, record=error.record, hint=hint) from error
    except SourceError as error:
        if not part.name:
            raise
        raise type(error)(f"{part.name}: {error}") from error


@dataclass(frozen=True)
class Hosts:
    """The position of this process among those that build a version together.

    Args:
        index: which of them this is, from 0.
        count: how many there are.
    """

    index: int
    count: int

    @classmethod
    def checked(cls, hosts: Any) -> Self:
        """Check the hosts that a user passes."""
        if not isinstance(hosts, tuple) or len(hosts) != 2:
            raise InvalidTypeError(
                f"hosts {hosts!r}: pass (index, count), as (jax.process_index(), jax.process_count())"
            )
        index, count = integer("the index in hosts", hosts[0], 0), integer("the count in hosts", hosts[1], 1)
        if index >= count:
            raise InvalidArgumentError(f"hosts {hosts}: the index must be less than the count")
        return cls(index, count)


def refuse_other_build(name: str, ours: Finished, theirs: Finished) -> None:
    """Raise if another host builds something other than what this one was asked for.

    Args:
        name: the version, for the message.
        ours: what this host was asked to build.
        theirs: what the host that leads builds.
    """
    differ = differences(_described(ours), _described(theirs), HERE_AND_THERE)
    if differ:
        raise InvalidArgumentError(
            f"{name}: another host builds something else: {'; '.join(differ)}. Pass the same source, made by the same "
            "code, and the same options on all hosts; only hosts=(index, count) may differ between them"
        )


def _described(build: Finished) -> Any:
    """Return what must be equal on hosts that build together, as JSON."""
    described = {
        **build.plan,
        "element_spec": build.element_spec,
        "number of elements": build.source_length,
    }
    # Another host's note went through JSON, which turns tuples into lists.
    return json.loads(json.dumps(described))


class SharedParts:
    """The parts of one attempt, as one of the hosts that build them sees them.

    Args:
        task: builds parts.
        attempts: knows which hosts are at work.
        hosts: the position of this host among them.
        name: the attempt whose lease shows others that this host is at work; the leader's is that of the parts.
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
        """Read the store, and return whether parts are unfinished."""
        self._standing = self._unfinished.standing(self._attempt)
        return bool(self._left())

    @property
    def standing(self) -> tuple[int, int]:
        """The number of finished parts when the store was last read, and the number of all parts."""
        return self._count - len(self._missing()), self._count

    def _missing(self) -> list[int]:
        """Return the parts that are not finished."""
        done = self._standing.finished | self._taken_over
        return [number for number in range(self._count) if number not in done]

    def _left(self) -> list[int]:
        """Return the parts to build next that are not finished: this host's own, then those of the hosts after it."""
        index, count = self._hosts.index, self._hosts.count
        return sorted(self._missing(), key=lambda number: ((number * count // self._count - index) % count, number))

    def claimed(self) -> Iterator[int]:
        """Claim and yield the parts that this host is to build, first those that nobody has claimed."""
        free = deque(self._unclaimed())
        while free and self.are_wanted():
            number = free.popleft()
            if self._claim(number, 0):
                yield number
            elif self.are_left():
                # Other hosts are about to claim the next parts as well.
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
        """Raise if the engine has ended without finishing a part that this host claimed."""
        if not self._unfinished.is_begun(self._attempt):
            raise BuildRevokedError(f"build attempt {self._attempt} was published or abandoned meanwhile: build again")
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


def build_parts(task: PartTask, engine: Engine, progress: Progress, finished: Mapping[int, FinishedPart]) -> None:
    progress.skip(sum(part.records for part in finished.values()))
    progress.parts(len(finished), task.parts.count)
    _run(task, engine, progress, iter([number for number in range(task.parts.count) if number not in finished]))


def build_together(shared: SharedParts, engine: Engine, progress: Progress) -> None:
    """Build this host's share of the parts, then those that others left, until all are finished or nobody wants them.

    Args:
        shared: the parts.
        engine: builds them on this host.
        progress: counts what is built here.
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
    built: object = engine.run(task, chain([first], numbers))
    if not isinstance(built, Iterable):
        raise _wrong(engine, "returned", built)
    for done in progress.waiting_for("parts that are being built", iter(built)):
        if not isinstance(done, PartDone):
            raise _wrong(engine, "yielded", done)
        progress.part_done(done.records, done.nbytes)
    return True


def _wrong(engine: Engine, did: str, what: object) -> InvalidTypeError:
    return InvalidTypeError(
        f"{type(engine).__name__}.run() {did} a {type(what).__name__}: run() yields what the task returned, or nothing"
    )


def join_parts(task: PartTask, finished: Mapping[int, FinishedPart]) -> Built:
    """Join the results of all parts.

    Args:
        task: the task that built them.
        finished: the parts taken over from an interrupted attempt; the others are read from their notes.
    """
    unfinished = Unfinished(task.store, task.dataset_id, task.version)

    def of(number: int) -> FinishedPart | None:
        return finished.get(number) or unfinished.part(task.attempt, number)

    with Pool(_AT_ONCE, "cachelayer-parts") as threads:
        found = list(threads.map(of, range(task.parts.count)))
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        missing = [number for number, part in enumerate(found) if part is None]
        raise SourceError(f"{len(missing)} of {len(found)} parts were not built, the first of them part {missing[0]}")
    if isinstance(task.parts, Sharded):
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
    """Raise if two parts hold the same records: the function ignored its part number."""
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


def remove_unnamed_shards(store: ObjectStore, dataset_id: str, attempt: str, shards: Iterable[ShardFile]) -> None:
    """Remove files of parts that were built twice, after the version is published.

    Args:
        store, dataset_id: where they are.
        attempt: the attempt that published it, or one that it took over.
        shards: the shards of the version.
    """
    folder = paths.build(dataset_id, attempt)
    named = {Path(name).name for shard in shards for name in shard.files}
    with suppress(StorageError):
        for name in store.names(folder):
            if name.startswith("shard-") and name not in named:
                store.delete(f"{folder}/{name}")
