"""Build attempts: show others that one is at work, and let the builders of a version take turns.

None of this decides what is published: the log alone does. It saves doing work twice, and keeps gc away from running
builds.
"""

from __future__ import annotations

import calendar
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.paths import parent_of
from cachelayer.objects.store import ObjectStore
from cachelayer.progress.meter import Waiting
from cachelayer.versions import file_lock
from cachelayer.versions.heartbeat import Heartbeat, Life, Turns, Watch, expiry

State = Literal["running", "interrupted", "unknown"]

_POLLS_PER_EXPIRY = 15
_BEGAN = "%Y%m%dT%H%M%S"
_LOCK_PAUSE = 0.05
"""Seconds between two checks of a lock that another process holds."""


class Attempts(Protocol):
    """The build attempts of one dataset."""

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:
        """Show others, while the context lasts, that an attempt is at work, and its progress."""

    def are_running(self, attempts: list[str], waiting: Waiting | None = None) -> list[bool]:
        """Return which of these attempts are at work.

        Args:
            attempts: the attempts.
            waiting: shows the user which attempt it waits for.
        """

    def glance(self, attempt: str, idle: float) -> tuple[State, str]:
        """Return whether an attempt is at work, without waiting to be sure, and who runs it and how far it is.

        Args:
            attempt: the attempt.
            idle: the seconds since it showed a sign of life.
        """

    def forget(self, attempt: str) -> None:
        """Remove the lease of a dead attempt."""

    def dead(self, attempts: Collection[str]) -> set[str]:
        """Return the attempts that are known to have ended; repeated calls find every one in the end."""

    @contextmanager
    def lead(self, version: str, status: Callable[[], str]) -> Iterator[Lead]:
        """Lead all processes that want to build a version, unless another leads already.

        Args:
            version: the version.
            status: returns the progress that waiting processes are shown.
        """

    def wait(self, lead: Lead, waiting: Waiting) -> None:
        """Wait for a while before looking again whether another process still leads.

        Args:
            lead: the process that leads.
            waiting: shows the user which attempt it waits for.
        """


@dataclass(frozen=True)
class Lead:
    """The process that leads all that want to build a version.

    Args:
        attempt: the attempt that builds it; empty if that is not known yet.
        is_ours: whether this process leads.
        dead: the attempt that led before. It may only be paused, so the new leader keeps it from publishing.
    """

    attempt: str
    is_ours: bool
    dead: str | None = None


def pause() -> None:
    """Wait before looking at other processes again."""
    time.sleep(expiry() / _POLLS_PER_EXPIRY)


def new_attempt() -> str:
    """Return a unique name for a build attempt, which begins with the time."""
    return f"{time.strftime(_BEGAN, time.gmtime())}-{uuid.uuid4().hex[:12]}"


def began_at(attempt: str) -> float:
    """Return when an attempt began that :func:`new_attempt` has named, in seconds since 1970."""
    return calendar.timegm(time.strptime(attempt.split("-")[0], _BEGAN))


def attempts_of(store: ObjectStore, dataset_id: str) -> Attempts:
    """Return the build attempts of a dataset."""
    if isinstance(store, LocalStore):
        return LockedAttempts(store, dataset_id)
    return BeatingAttempts(store, dataset_id)


class LockedAttempts:
    """Build attempts on a file system: a running one holds a lock, which dies with its holder."""

    def __init__(self, store: LocalStore, dataset_id: str) -> None:
        self._store = store
        self._dataset_id = dataset_id

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:  # noqa: ARG002 - nobody reads it
        name = paths.build_lease(self._dataset_id, attempt)
        with file_lock.hold(self._lock_file(name), remove=True):
            # Find out now, not after hours when the version is published.
            self._store.check_links(name)
            yield

    def _lock_file(self, name: str) -> Path:
        """Return the path of a lock, and make its folder if need be."""
        self._store.make_folder(parent_of(name))
        return self._store.path(name)

    def are_running(
        self,
        attempts: list[str],
        waiting: Waiting | None = None,  # noqa: ARG002 - a lock answers at once
    ) -> list[bool]:
        leases = (self._store.path(paths.build_lease(self._dataset_id, attempt)) for attempt in attempts)
        return [file_lock.is_held(path) for path in leases]

    def glance(self, attempt: str, idle: float) -> tuple[State, str]:  # noqa: ARG002 - a lock answers at once
        try:
            return "running" if self.are_running([attempt])[0] else "interrupted", ""
        except StorageError:
            # The lock belongs to somebody else, or the disk is mounted read-only.
            return "unknown", ""

    def forget(self, attempt: str) -> None:
        self._store.delete(paths.build_lease(self._dataset_id, attempt))

    def dead(self, attempts: Collection[str]) -> set[str]:
        names = list(attempts)
        return {name for name, runs in zip(names, self.are_running(names), strict=True) if not runs}

    @contextmanager
    def lead(self, version: str, status: Callable[[], str]) -> Iterator[Lead]:
        attempt, name = new_attempt(), paths.version_lease(self._dataset_id, version)
        with file_lock.try_hold(self._lock_file(name), attempt) as holder:
            if holder != attempt:
                # The name may be half written, or something else.
                yield Lead(holder if paths.is_attempt(holder) else "", is_ours=False)
                return
            with self.running(attempt, status):
                yield Lead(attempt, is_ours=True)

    def wait(self, lead: Lead, waiting: Waiting) -> None:  # noqa: ARG002 - a lock says nothing else
        waiting.wait_for("another process")
        time.sleep(_LOCK_PAUSE)


class BeatingAttempts:
    """Build attempts in an object store: a running one writes a beat again and again."""

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

    def are_running(self, attempts: list[str], waiting: Waiting | None = None) -> list[bool]:
        # Attempts that were watched before need no new wait.
        found = {attempt: self._watch.look(attempt) for attempt in attempts}
        while unknown := [attempt for attempt in attempts if found[attempt] is Life.UNKNOWN]:
            if waiting is not None:
                waiting.wait_for(self._shown(unknown[0]))
            pause()
            found.update((attempt, self._watch.look(attempt)) for attempt in unknown)
        return [found[attempt] is Life.ALIVE for attempt in attempts]

    def glance(self, attempt: str, idle: float) -> tuple[State, str]:
        if self._watch.look(attempt) is Life.DEAD:
            return "interrupted", ""
        return "running" if idle < expiry() else "unknown", self._watch.shown(attempt)

    def forget(self, attempt: str) -> None:
        self._store.delete(paths.build_lease(self._dataset_id, attempt))

    def wait(self, lead: Lead, waiting: Waiting) -> None:
        if not lead.attempt:
            # Another process has just taken the turn; the next look finds its name.
            return
        waiting.wait_for(self._shown(lead.attempt))
        pause()

    def _shown(self, attempt: str) -> str:
        return f"{self._watch.shown(attempt)} (taken for dead after {expiry():g} s without a sign of life)"

    def dead(self, attempts: Collection[str]) -> set[str]:
        return {attempt for attempt in attempts if self._watch.look(attempt) is Life.DEAD}

    @contextmanager
    def lead(self, version: str, status: Callable[[], str]) -> Iterator[Lead]:
        turns = Turns(self._store, self._dataset_id, version)
        last = turns.last()
        if last.attempt is not None and self._watch.look(last.attempt) is not Life.DEAD:
            yield Lead(last.attempt, is_ours=False)
            return
        attempt = new_attempt()
        # Beat from before the turn begins until after it ends, so that nobody takes it for dead.
        with self.running(attempt, status), turns.take(last, attempt) as taken:
            yield Lead(attempt, is_ours=True, dead=last.attempt) if taken else Lead("", is_ours=False)
