"""Hosts that build a version together: which parts each of them builds, and when all parts are there.

::

    note of a part       it is finished, and its shards are in the store
    lease of a host      it is at work, and these parts are

A host builds its share of the parts in order. Then it helps the others, from the ends of their shares. Notes and the
names of leases tell all hosts who helps with which part, so that nobody reads the leases of all: :func:`helper_of`. Who
helps reads the lease of the host that has the part in its share, and of who helped before. Who comes late to a lease
builds a part that another builds too: the shards have the same names. All hosts see when all parts have notes; one of
them then reads the notes and publishes.
"""

from __future__ import annotations

import time
import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from cachelayer.builds.build_options import Hosts
from cachelayer.builds.part_builds import PartBuilder, joined, say_what_is_finished
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.stored_values import Wording, differences
from cachelayer.support.progress import Waiting, current
from cachelayer.versions.lease import CLAIM, HOST, HeldLease, Lease, Leases, polls
from cachelayer.versions.notes import PartResult, noted_numbers
from cachelayer.versions.publish import refuse_if_collected

_PUBLISHER = f"publisher.{CLAIM}"
"""The lease of the host that reads all notes and publishes."""
_SPREADING = 2654435761
"""A prime factor, by which consecutive parts come to places of a ring that are far from each other."""


def new_lease(hosts: Hosts, plan_hash: str) -> str:
    """Return the name of a lease that a host holds while it builds by a plan: another one for each call.

    A host that starts again would not get the lease of its first process if that still runs, and would be without one
    when that ends: gc would take its notes.
    """
    return f"{HOST}{hosts.index:05}-{plan_hash}-{uuid.uuid4().hex}.{CLAIM}"


def host_of(lease: str) -> int:
    """Return the index of the host that has a lease of a name."""
    return int(lease.split("-")[1])


def helper_of(part: int, helpers: Sequence[int], hosts: int) -> int:
    """Return the host that helps with a part, of those that do: the first from a place on a ring of all hosts.

    So a host that begins to help takes parts from one other host only, the next on the ring.
    """
    place = part * _SPREADING % hosts
    return helpers[bisect_left(helpers, place) % len(helpers)]


class Team:
    """The hosts that build a version, as one of them sees it, which has a lease."""

    def __init__(self, hosts: Hosts, leases: Leases, lease: HeldLease, builder: PartBuilder) -> None:
        plan = builder.plan
        self._plan = plan
        self._hosts = hosts
        self._count = plan.parts.count
        self._leases = leases
        self._lease = lease
        self._builder = builder
        self._built: dict[int, PartResult] = {}
        """The parts that this host has built."""
        self._waiting = Waiting(plan.request.name, plan.options.progress)

    def join(self) -> None:
        """Say what is finished; raise if a living host builds something else under the name of the version."""
        notes = self._plan.notes
        others = [name for name in self._leases.beating(HOST) if name != self._lease.name]
        same = [name for name in others if notes.folder.name in name]
        for name in others:
            if name not in same and self._leases.is_alive(name):
                facts = next((facts for plan_hash, facts in notes.other_plans().items() if plan_hash in name), {})
                differ = "; ".join(differences(facts, self._plan.facts, Wording.AMONG_HOSTS))
                raise InvalidArgumentError(
                    f"{self._plan.request.name}: another host builds something else: {differ}. Pass the same source, "
                    "made by the same code, and the same options on all hosts; only hosts=(index, count) may differ "
                    "between them"
                )
        noted = len(noted_numbers(notes.folder))
        joins = any(self._leases.holder(name) is not None for name in same)
        say_what_is_finished(self._plan, f"{noted} of {self._count} parts" if noted else "", joins=joins)

    def build(self) -> bool:
        """Build parts until all have notes; return False if another process has published the version."""
        request = self._plan.request
        noted: set[int] = set()
        while True:
            before = noted
            noted = noted_numbers(self._plan.notes.folder)
            # The host that publishes deletes the notes. So the log is read after their list, unless all that were there
            # before are still there.
            if not (before and before <= noted) and request.is_published:
                return False
            current().parts = (len(noted), self._count)
            missing = [number for number in range(self._count) if number not in noted]
            if not missing:
                return True
            self._refuse_if_collected(missing)
            chosen = self._next_parts(missing)
            if chosen:
                self._built |= self._builder.build(self._still_missing(chosen))
                self._lease.work_on((), at_once=True)
                self._waiting.over()
            else:
                self.wait("the parts that other hosts build")

    def _refuse_if_collected(self, missing: Sequence[int]) -> None:
        """Raise if gc has deleted shards that this host has put: it would put them again under the same names."""
        lost = [self._built.pop(number) for number in missing if number in self._built]
        if lost:
            log = self._plan.request.log
            files = [shard.file for part in lost for shard in part.shards]
            refuse_if_collected(log, log.head(), self._plan.request.version, files)

    def _next_parts(self, missing: Sequence[int]) -> Sequence[int]:
        """Return the parts that this host builds next, of those without notes; none if others build all of them."""
        index = self._hosts.index
        plan = self._plan.notes.folder.name
        leases = [name for name in self._leases.beating(HOST) if plan in name and name != self._lease.name]
        own = [number for number in missing if self._owner_of(number) == index]
        if own and not self._held_by({index}, leases):
            # The others may help with all but those that are begun.
            self._lease.work_on(own[:1], at_once=True)
            return own
        # The shares of others that are at work are finished, or being built.
        helpers = sorted({index, *map(host_of, leases)} - set(map(self._owner_of, missing)))
        mine = own or [each for each in missing if helper_of(each, helpers, self._hosts.count) == index]
        # Another process of this host may have these in work, or who helped before this host did.
        before = helpers[(helpers.index(index) + 1) % len(helpers)] if index in helpers else index
        others = self._held_by({index, before, *map(self._owner_of, mine)}, leases)
        in_work = set().union(*(lease.parts for lease in others))
        free = [number for number in reversed(mine) if number not in in_work]
        # Other hosts may soon help too.
        chosen = free[: -(-len(free) // 2)]
        if chosen:
            self._lease.work_on(chosen, at_once=True)
        return chosen

    def _owner_of(self, part: int) -> int:
        return self._hosts.owner_of(part, self._count)

    def _held_by(self, hosts: Collection[int], leases: Sequence[str]) -> list[Lease]:
        """Return the leases of some hosts that are at work, of those with these names."""
        return self._leases.holders([name for name in leases if host_of(name) in hosts])

    def _still_missing(self, part_numbers: Sequence[int]) -> Iterator[int]:
        """Yield the numbers of parts when they are about to be built, unless another host has built them meanwhile."""
        noted: set[int] = set()
        looks_next = time.monotonic() + polls()
        for number in part_numbers:
            began = time.monotonic()
            if began >= looks_next:
                noted = noted_numbers(self._plan.notes.folder)
                current().parts = (len(noted), self._count)
                # A list of very many notes takes a while.
                looks_next = time.monotonic() + max(polls(), 20 * (time.monotonic() - began))
            if number not in noted:
                self._lease.work_on({*self._lease.parts, number} - noted)
                yield number

    @contextmanager
    def publishing(self) -> Iterator[bool]:
        """Yield whether this host is the one that publishes now."""
        if self._leases.holder(_PUBLISHER) is not None:
            yield False
            return
        with self._leases.hold(_PUBLISHER) as lease:
            yield lease is not None

    def result(self) -> PartResult | None:
        """Return the result of all parts; None if files of some are gone, so that these are to be built again."""
        notes = self._plan.notes
        finished = notes.finished(self._plan.request.log, self._built)
        lost = set(range(self._count)) - finished.keys()
        for number in lost:
            notes.forget(number)
        return None if lost else joined(self._plan.parts, finished)

    def wait(self, what: str) -> None:
        """Wait for another host, before looking again."""
        with self._waiting.wait_for(what):
            self._leases.pause()
