"""Build the parts of a version in any processes: of this host, of a cluster, or of several hosts together."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from cachelayer.arguments import integer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.parts import Parts
from cachelayer.builds.shard_target import shard_target
from cachelayer.builds.write_shards import write_parts
from cachelayer.engines import Engine
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.store import Store
from cachelayer.progress import Progress, current
from cachelayer.user_warnings import warn
from cachelayer.versions.claims import CLAIM, Claims
from cachelayer.versions.log import Log
from cachelayer.versions.notes import FinishedPart, Notes, read_part
from cachelayer.versions.publish import absent_files, lost_files


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
        plan: the plan of the build.
        generation: that of the log when the build began.
        parts: the source.
        options: how; with the element spec.
        is_shared: whether other hosts build parts too.
    """

    store: Store
    copies: CacheFolder | None
    dataset_id: str
    version: str
    plan: Mapping[str, Any]
    generation: int
    parts: Parts
    options: BuildOptions
    is_shared: bool

    def __call__(self, number: int) -> PartDone | None:
        """Build a part and note it; return None if another process is building it."""
        notes = Notes(self.store, self.dataset_id, self.version, self.plan)
        try:
            if not self.is_shared:
                return self._build(notes, number)
            with Claims(self.store, notes.folder).hold(part_claim(number)) as is_ours:
                return self._build(notes, number) if is_ours and not self._is_noted(notes, number) else None
        except StorageError as error:
            raise StorageError(f"{self.describe(number)}, on host {platform.node()}: {error}") from error

    def describe(self, number: int) -> str:
        return self.parts.describe(number)

    def _is_noted(self, notes: Notes, number: int) -> bool:
        """Return whether another process has built a part since the parts were listed."""
        part, log = read_part(self.store, notes.folder, number), Log(self.store, self.dataset_id)
        if part is None:
            return False
        return not lost_files((shard.file for shard in part.shards), log, log.head()) | absent_files(part.shards, log)

    def _build(self, notes: Notes, number: int) -> PartDone:
        done: list[FinishedPart] = []

        def note(number: int, part: FinishedPart) -> None:
            notes.add(number, part)
            done.append(part)

        with shard_target(self.store, self.copies, self.dataset_id, self.generation) as target:
            write_parts(self.parts, [number], target, self.options, current(), note)
        return PartDone(done[0].records, done[0].nbytes)


def part_claim(number: int) -> str:
    return f"{number:05}.{CLAIM}"


def run(task: PartTask, engine: Engine, progress: Progress, numbers: Iterable[int]) -> None:
    """Build parts with an engine."""
    name = type(engine).__name__
    results = engine.run(task, numbers)
    if not isinstance(results, Iterable):
        raise InvalidTypeError(f"engine {name}: run returned a {type(results).__name__}: yield the results of the task")
    for done in results:
        if isinstance(done, PartDone):
            progress.part_done(done.records, done.nbytes)
        elif done is not None:
            raise InvalidTypeError(
                f"engine {name}: run yielded a {type(done).__name__}: yield what the task returns, as it is, or nothing"
            )


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

    @property
    def claim(self) -> str:
        """The claim that shows that this host is at work."""
        return f"host-{self.index:05}.{CLAIM}"

    def in_order(self, count: int) -> list[int]:
        """Return the numbers of all parts: this host's own first, then those of the hosts after it."""
        return sorted(
            range(count), key=lambda number: ((number * self.count // count - self.index) % self.count, number)
        )


def unclaimed(numbers: Iterable[int], claims: Claims, names: Iterable[str]) -> Iterator[int]:
    """Yield the parts that nobody is building, as far as a listing of the claims tells."""
    claimed = set(names)
    return (number for number in numbers if part_claim(number) not in claimed or not claims.is_busy(part_claim(number)))


def warn_of_equal_parts(parts: Mapping[int, FinishedPart]) -> None:
    """Warn if two parts hold the same records: the function may have ignored its part number."""
    seen: dict[tuple[str, ...], int] = {}
    for number, part in sorted(parts.items()):
        other = seen.setdefault(tuple(shard.stats.sha256 for shard in part.shards), number)
        if other != number and part.records > 1:
            warn(
                f"parts {other} and {number} have the same {part.records} records: make the elements of a part from "
                "its number, and each element in one part only"
            )
            return
