"""Who builds what: build attempts that others see at work, and builders of one version that take turns.

None of this decides what is published; that is the log's alone. It saves building the same thing twice, and keeps what
is being built from being collected.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.paths import parent_of
from cachelayer.objects.store import ObjectStore
from cachelayer.versions import file_lock
from cachelayer.versions.heartbeat import Heartbeat, Life, Turns, Watch, expiry

R = TypeVar("R")
_POLLS_PER_EXPIRY = 15


class Attempts(Protocol):
    """The build attempts of one dataset."""

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:
        """Show others that an attempt is at work, and how far it is."""

    def are_running(self, attempts: list[str], waiting: Callable[[str], None] | None = None) -> list[bool]:
        """Which of these attempts are at work.

        Args:
            attempts: the attempts.
            waiting: is told who is waited for, if that takes a while.
        """

    def forget(self, attempt: str) -> None:
        """Remove what showed that a dead attempt was at work."""

    def dead(self, attempts: Collection[str]) -> set[str]:
        """Those of these attempts that are known by now to have ended; asked again and again, it comes to know all."""

    @contextmanager
    def lead(self, version: str, *, status: Callable[[], str], revoke: Callable[[str, str], object]) -> Iterator[Lead]:
        """Lead the hosts that build a version together, unless another does already.

        Args:
            version: what is built.
            status: how far it is.
            revoke: keeps a dead attempt from publishing; it is told which attempt leads after it.
        """

    def once(
        self,
        version: str,
        find: Callable[[], R | None],
        build: Callable[[str], R],
        *,
        status: Callable[[], str],
        revoke: Callable[[str, str], object],
        waiting: Callable[[str], None],
    ) -> R:
        """What ``build`` builds, or what ``find`` finds where another of those who ask at once has built it.

        Args:
            version: what is built.
            find: looks for it, which the caller has done in vain.
            build: builds it, under the name of an attempt that is shown at work meanwhile.
            status: how far the build is.
            revoke: keeps a dead attempt from publishing; it is told which attempt builds after it.
            waiting: is told now and then who is waited for.
        """


@dataclass(frozen=True)
class Lead:
    """Who leads the hosts that build a version together.

    Args:
        attempt: the attempt that they build; empty where that is not known yet.
        is_ours: whether this process leads.
    """

    attempt: str
    is_ours: bool


def pause() -> None:
    """Wait before others are looked at again."""
    time.sleep(expiry() / _POLLS_PER_EXPIRY)


def new_attempt() -> str:
    """A name for a build attempt that no other has."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:12]}"


def attempts_of(store: ObjectStore, dataset_id: str) -> Attempts:
    """The build attempts of a dataset."""
    if isinstance(store, LocalStore):
        return LockedAttempts(store, dataset_id)
    return BeatingAttempts(store, dataset_id)


class LockedAttempts:
    """Build attempts on a file system: who is at work holds a lock, which dies with its holder."""

    def __init__(self, store: LocalStore, dataset_id: str) -> None:
        self._store = store
        self._dataset_id = dataset_id

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:  # noqa: ARG002 - nobody reads it
        name = paths.build_lease(self._dataset_id, attempt)
        self._store.make_folder(parent_of(name))
        with file_lock.hold(self._store.path(name), remove=True):
            # Now, and not after hours when the version is to be published.
            self._store.check_links(name)
            yield

    def are_running(
        self,
        attempts: list[str],
        waiting: Callable[[str], None] | None = None,  # noqa: ARG002 - it is known at once
    ) -> list[bool]:
        leases = (self._store.path(paths.build_lease(self._dataset_id, attempt)) for attempt in attempts)
        return [file_lock.is_held(path) for path in leases]

    def forget(self, attempt: str) -> None:
        self._store.delete(paths.build_lease(self._dataset_id, attempt))

    def dead(self, attempts: Collection[str]) -> set[str]:
        names = list(attempts)
        return {name for name, runs in zip(names, self.are_running(names), strict=True) if not runs}

    @contextmanager
    def lead(
        self,
        version: str,
        *,
        status: Callable[[], str],
        revoke: Callable[[str, str], object],  # noqa: ARG002 - who lost the lock is dead
    ) -> Iterator[Lead]:
        attempt, name = new_attempt(), paths.version_lease(self._dataset_id, version)
        self._store.make_folder(parent_of(name))
        with file_lock.try_hold(self._store.path(name), attempt) as holder:
            if holder != attempt:
                # It may be half written, or no name at all.
                yield Lead(holder if paths.is_attempt(holder) else "", is_ours=False)
                return
            with self.running(attempt, status):
                yield Lead(attempt, is_ours=True)

    def once(
        self,
        version: str,
        find: Callable[[], R | None],
        build: Callable[[str], R],
        *,
        status: Callable[[], str],
        revoke: Callable[[str, str], object],  # noqa: ARG002 - who lost the lock is dead
        waiting: Callable[[str], None],
    ) -> R:
        name = paths.version_lease(self._dataset_id, version)
        self._store.make_folder(parent_of(name))
        with file_lock.hold(self._store.path(name), on_wait=lambda: waiting("another process")):
            found = find()
            if found is not None:
                return found
            attempt = new_attempt()
            with self.running(attempt, status):
                return build(attempt)


class BeatingAttempts:
    """Build attempts in an object store: who is at work writes a beat again and again."""

    def __init__(self, store: ObjectStore, dataset_id: str) -> None:
        self._store = store
        self._dataset_id = dataset_id
        self._watch = Watch(store, dataset_id)

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:
        beat = Heartbeat(self._store, self._dataset_id, attempt, status)
        try:
            yield
        finally:
            beat.stop()

    def are_running(self, attempts: list[str], waiting: Callable[[str], None] | None = None) -> list[bool]:
        # What was watched before need not be watched anew.
        found = {attempt: self._watch.look(attempt) for attempt in attempts}
        while unknown := [attempt for attempt in attempts if found[attempt] is Life.UNKNOWN]:
            if waiting is not None:
                waiting(self._shown(unknown[0]))
            pause()
            found.update((attempt, self._watch.look(attempt)) for attempt in unknown)
        return [found[attempt] is Life.ALIVE for attempt in attempts]

    def forget(self, attempt: str) -> None:
        self._store.delete(paths.build_lease(self._dataset_id, attempt))

    def once(
        self,
        version: str,
        find: Callable[[], R | None],
        build: Callable[[str], R],
        *,
        status: Callable[[], str],
        revoke: Callable[[str, str], object],
        waiting: Callable[[str], None],
    ) -> R:
        while True:
            with self.lead(version, status=status, revoke=revoke) as lead:
                if lead.is_ours:
                    found = find()
                    return build(lead.attempt) if found is None else found
            if lead.attempt:
                waiting(self._shown(lead.attempt))
                pause()
            found = find()
            if found is not None:
                return found

    def _shown(self, attempt: str) -> str:
        return f"{self._watch.shown(attempt)} (taken for dead after {expiry():g} s without a sign of life)"

    def dead(self, attempts: Collection[str]) -> set[str]:
        return {attempt for attempt in attempts if self._watch.look(attempt) is Life.DEAD}

    @contextmanager
    def lead(self, version: str, *, status: Callable[[], str], revoke: Callable[[str, str], object]) -> Iterator[Lead]:
        turns = Turns(self._store, self._dataset_id, version)
        last = turns.last()
        if last.attempt is not None and self._watch.look(last.attempt) is not Life.DEAD:
            yield Lead(last.attempt, is_ours=False)
            return
        attempt = new_attempt()
        # It beats before its turn begins and until that has ended, so that nobody takes it for dead.
        with self.running(attempt, status), turns.take(last, attempt) as taken:
            if taken and last.attempt is not None:
                revoke(last.attempt, attempt)
                self.forget(last.attempt)
            yield Lead(attempt if taken else "", is_ours=taken)
