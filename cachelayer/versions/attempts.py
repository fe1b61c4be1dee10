"""Build attempts: show others that one is at work, and let the builders of a version take turns.

On a file system, an attempt holds a lock, which dies with its process. In an object store it writes an object again and
again, and its claim to build a version expires::

    <id>/_running/<attempt>          locked, or rewritten at every beat, by the attempt; deleted at its end
    <id>/_leases/<version>           locked by the builder of the version, or in an object store:
    <id>/_leases/<version>/<turn>    put if absent by the builder of the version; names its attempt; deleted at its end

Nobody compares clocks: an attempt is dead if its beat did not change for :data:`EXPIRY` seconds on the clock of the
process that watches it. The process that takes over revokes it in the log first, so that it cannot publish if it was
only paused. None of this decides what is published: the log alone does. It saves doing work twice, and keeps gc away
from running builds.
"""

from __future__ import annotations

import calendar
import json
import math
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cachelayer import json_values
from cachelayer.errors import CorruptionError, InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.progress import Waiting
from cachelayer.system_threads import start
from cachelayer.versions import file_lock

State = Literal["running", "interrupted", "unknown"]

EXPIRY = 30.0
"""Seconds without a beat after which an attempt counts as dead; ``CACHELAYER_LEASE_SECONDS`` overrides it."""
_BEATS_PER_EXPIRY = 6
_POLLS_PER_EXPIRY = 15
_BEGAN = "%Y%m%dT%H%M%S"
_LOCK_PAUSE = 0.05
"""Seconds between two looks at a lock that another process holds."""
_SHOWN = 200


class Attempts(Protocol):
    """The build attempts of one dataset."""

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:
        """Show others, while the context lasts, that an attempt is at work, and its progress."""

    def are_running(self, attempts: list[str], waiting: Waiting | None = None) -> list[bool]:
        """Return which attempts are at work; ``waiting`` shows the user for which of them this waits to be sure."""

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
        """Lead all processes that want to build a version, unless another leads already."""

    def wait(self, lead: Lead, waiting: Waiting) -> None:
        """Wait for a while before looking again whether another process still leads, and show whom this waits for."""


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


def expiry() -> float:
    """Return the seconds without a beat after which an attempt counts as dead."""
    setting = os.environ.get("CACHELAYER_LEASE_SECONDS", str(EXPIRY))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"CACHELAYER_LEASE_SECONDS is {setting!r}: set it to a number of seconds above 0")
    return seconds


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
        self._store.make_folder(paths.parent_of(name))
        return self._store.path(name)

    def are_running(self, attempts: list[str], waiting: Waiting | None = None) -> list[bool]:  # noqa: ARG002
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


class Heartbeat:
    """Show from a thread that an attempt is at work, until it is stopped.

    Args:
        store: the store.
        name: the object that is written.
        status: returns the progress that waiting processes are shown.
    """

    def __init__(self, store: ObjectStore, name: str, status: Callable[[], str]) -> None:
        self._store = store
        self._name = name
        self._status = status
        self._pid = os.getpid()
        self._pause = expiry() / _BEATS_PER_EXPIRY
        self._beats = 0
        self._stopped = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="cachelayer-heartbeat", daemon=True)
        try:
            start(self._thread, "to show that the build is at work")
        except StorageError:
            # Others would wait for this attempt.
            self._store.delete(self._name)
            raise

    def _beat(self) -> None:
        self._beats += 1
        who = f"process {os.getpid()} on {platform.node()}"
        self._store.put(self._name, json.dumps({"who": who, "status": self._status(), "beat": self._beats}).encode())

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            # If the store is away for a while, go on; if that lasts, others take over.
            with suppress(StorageError):
                self._beat()

    def stop(self) -> None:
        """Stop, and delete the beat; in a forked child do nothing, since the parent goes on."""
        if os.getpid() != self._pid:
            return
        self._stopped.set()
        self._thread.join()
        with suppress(StorageError):
            self._store.delete(self._name)


@dataclass
class _Seen:
    """A beat, and when this process first saw it, in seconds of the monotonic clock."""

    beat: bytes
    since: float


class BeatingAttempts:
    """Build attempts in an object store: a running one writes a beat again and again."""

    def __init__(self, store: ObjectStore, dataset_id: str) -> None:
        self._store = store
        self._dataset_id = dataset_id
        self._seen: dict[str, _Seen] = {}

    @contextmanager
    def running(self, attempt: str, status: Callable[[], str]) -> Iterator[None]:
        beat = Heartbeat(self._store, paths.build_lease(self._dataset_id, attempt), status)
        try:
            yield
        finally:
            beat.stop()

    def look(self, attempt: str) -> State:
        """Return what is known about an attempt, from its beat now and at earlier calls."""
        # The read may be slow: measure from the moment of the request.
        asked = time.monotonic()
        beat = self._store.read(paths.build_lease(self._dataset_id, attempt))
        if beat is None:
            return "interrupted"
        seen = self._seen.get(attempt)
        if seen is None or seen.beat != beat:
            self._seen[attempt] = _Seen(beat, time.monotonic())
            return "unknown" if seen is None else "running"
        return "interrupted" if asked - seen.since >= expiry() else "unknown"

    def are_running(self, attempts: list[str], waiting: Waiting | None = None) -> list[bool]:
        # Attempts that were watched before need no new wait.
        found = {attempt: self.look(attempt) for attempt in attempts}
        while unknown := [attempt for attempt in attempts if found[attempt] == "unknown"]:
            if waiting is not None:
                waiting.wait_for(self._waited_for(unknown[0]))
            pause()
            found.update((attempt, self.look(attempt)) for attempt in unknown)
        return [found[attempt] == "running" for attempt in attempts]

    def glance(self, attempt: str, idle: float) -> tuple[State, str]:
        if self.look(attempt) == "interrupted":
            return "interrupted", ""
        return "running" if idle < expiry() else "unknown", self.shown(attempt)

    def forget(self, attempt: str) -> None:
        self._store.delete(paths.build_lease(self._dataset_id, attempt))

    def dead(self, attempts: Collection[str]) -> set[str]:
        return {attempt for attempt in attempts if self.look(attempt) == "interrupted"}

    def wait(self, lead: Lead, waiting: Waiting) -> None:
        if not lead.attempt:
            # Another process has just taken the turn; the next look finds its name.
            return
        waiting.wait_for(self._waited_for(lead.attempt))
        pause()

    def _waited_for(self, attempt: str) -> str:
        return f"{self.shown(attempt)} (taken for dead after {expiry():g} s without a sign of life)"

    def shown(self, attempt: str) -> str:
        """Return who runs an attempt and how far it is, according to its last beat."""
        seen = self._seen.get(attempt)
        try:
            with json_values.decoding(attempt, "beat"):
                found = json_values.parsed(seen.beat if seen else b"")
                who, status = (json_values.text(name, found[name]) for name in ("who", "status"))
        except CorruptionError:
            return "another process"
        # The text goes to terminals, which obey control characters.
        return "".join(each for each in f"{who}, {status}"[:_SHOWN] if each.isprintable())

    @contextmanager
    def lead(self, version: str, status: Callable[[], str]) -> Iterator[Lead]:
        turns = paths.version_lease(self._dataset_id, version)
        number, last = self._last_turn(turns)
        if last is not None and self.look(last) != "interrupted":
            yield Lead(last, is_ours=False)
            return
        attempt = new_attempt()
        # Beat from before the turn begins until after it ends, so that nobody takes it for dead.
        with self.running(attempt, status), self._turn(turns, number + 1, attempt) as is_ours:
            yield Lead(attempt, is_ours=True, dead=last) if is_ours else Lead("", is_ours=False)

    def _last_turn(self, turns: str) -> tuple[int, str | None]:
        """Return the number of the turn that was taken last, and the attempt that took it, if that is known."""
        number, attempt = 0, None
        while (raw := self._store.read(_turn_name(turns, number + 1))) is not None:
            number, attempt = number + 1, _attempt_of(raw)
        return number, attempt

    @contextmanager
    def _turn(self, turns: str, number: int, attempt: str) -> Iterator[bool]:
        """Take a turn, and delete it and those before at the end; yield False if another attempt has taken it."""
        builder = os.getpid()
        entry = json.dumps({"attempt": attempt, "token": uuid.uuid4().hex}).encode()
        is_ours = self._store.put_if_absent(_turn_name(turns, number), entry)
        try:
            yield is_ours
        finally:
            with suppress(StorageError):
                # An attempt that counts as dead leaves the turns to its successor.
                if is_ours and os.getpid() == builder and not self._store.exists(_turn_name(turns, number + 1)):
                    for each in range(number, 0, -1):
                        self._store.delete(_turn_name(turns, each))


def _turn_name(turns: str, number: int) -> str:
    return f"{turns}/{number:06}"


def _attempt_of(raw: bytes) -> str | None:
    try:
        with json_values.decoding("a turn", "turn"):
            return paths.check_attempt(json_values.parsed(raw)["attempt"])
    except CorruptionError:
        return None
