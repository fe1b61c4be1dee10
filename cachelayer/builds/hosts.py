"""Hosts that build the parts of a version together; each claims the parts that it builds."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from cachelayer.arguments import integer
from cachelayer.builds.part_task import PartTask
from cachelayer.builds.sharded_source import stages_of
from cachelayer.errors import BuildRevokedError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.versions.attempts import Attempts
from cachelayer.versions.build_plan_differences import HERE_AND_THERE, differences
from cachelayer.versions.unfinished import Finished, FinishedPart, Standing, Unfinished


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
        """Check the hosts that a user passes.

        Raises:
            InvalidArgumentError, InvalidTypeError: if they are invalid.
        """
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

    Raises:
        InvalidArgumentError: if they differ, with each difference.
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
        self._stages = stages_of(task.parts)
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
        return self._count - sum(map(len, self._missing())), self._count

    def _missing(self) -> list[list[int]]:
        """Return the parts that are not finished, of each stage."""
        done = self._standing.finished | self._taken_over
        return [[number for number in stage if number not in done] for stage in self._stages]

    def _left(self) -> list[int]:
        """Return the parts to build next that are not finished: this host's own, then those of the hosts after it."""
        missing = next((stage for stage in self._missing() if stage), [])
        index, count = self._hosts.index, self._hosts.count
        return sorted(missing, key=lambda number: ((number * count // self._count - index) % count, number))

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
        """Raise if the engine has ended without finishing a part that this host claimed.

        Raises:
            SourceError: with the first such part.
            BuildRevokedError: if the attempt was published or abandoned meanwhile.
        """
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
