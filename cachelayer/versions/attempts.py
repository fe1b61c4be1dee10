"""Who builds what: build attempts that others see at work, and builders of one version that take turns.

None of this decides what is published; that is the log's alone. It saves building the same thing twice, and keeps what
is being built from being collected.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.paths import parent_of
from cachelayer.objects.store import ObjectStore
from cachelayer.versions import lease
from cachelayer.versions.heartbeat import Heartbeat, Turns, Watch, expiry

R = TypeVar("R")
_POLLS_PER_EXPIRY = 15


class Attempts(Protocol):
    """The build attempts of one dataset."""

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:
        """Show others that an attempt is at work, and how far it is."""

    def are_running(self, attempts: list[str]) -> list[bool]:
        """Which of these attempts are at work."""

    def forget(self, attempt: str) -> None:
        """Remove what showed that a dead attempt was at work."""

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
        """What ``find`` finds, or what ``build`` builds where none of those who ask at once has built it.

        Args:
            version: what is built.
            find: looks for it.
            build: builds it, under the name of an attempt that is shown at work meanwhile.
            status: how far the build is.
            revoke: keeps a dead attempt from publishing; it is told which attempt builds after it.
            waiting: is told now and then who is waited for.
        """


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
        with lease.hold(self._store.path(name), remove=True):
            yield

    def are_running(self, attempts: list[str]) -> list[bool]:
        leases = (self._store.path(paths.build_lease(self._dataset_id, attempt)) for attempt in attempts)
        return [lease.is_held(path) for path in leases]

    def forget(self, attempt: str) -> None:
        self._store.delete(paths.build_lease(self._dataset_id, attempt))

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
        found = find()
        if found is not None:
            return found
        name = paths.version_lease(self._dataset_id, version)
        self._store.make_folder(parent_of(name))
        with lease.hold(self._store.path(name), on_wait=lambda: waiting("another process")):
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

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:
        beat = Heartbeat(self._store, self._dataset_id, attempt, status)
        try:
            yield
        finally:
            beat.stop()

    def are_running(self, attempts: list[str]) -> list[bool]:
        watch = Watch(self._store, self._dataset_id)
        dead: dict[str, bool | None] = {attempt: watch.is_dead(attempt) for attempt in attempts}
        while unknown := [attempt for attempt in attempts if dead[attempt] is None]:
            time.sleep(expiry() / _POLLS_PER_EXPIRY)
            dead.update((attempt, watch.is_dead(attempt)) for attempt in unknown)
        return [not dead[attempt] for attempt in attempts]

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
        turns, watch = Turns(self._store, self._dataset_id, version), Watch(self._store, self._dataset_id)
        while (found := find()) is None:
            last = turns.last()
            if last.attempt is not None and not watch.is_dead(last.attempt):
                waiting(watch.shown(last.attempt))
                time.sleep(expiry() / _POLLS_PER_EXPIRY)
                continue
            attempt = new_attempt()
            # It beats before its turn begins and until that has ended, so that nobody takes it for dead.
            with self.running(attempt, status), turns.take(last, attempt) as taken:
                if not taken:
                    continue
                if last.attempt is not None:
                    revoke(last.attempt, attempt)
                found = find()
                return build(attempt) if found is None else found
        return found
