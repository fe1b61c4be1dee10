"""Leases in an object store: a process shows that it is at work by writing an object again and again.

::

    <id>/_running/<attempt>          rewritten at every beat by the process that runs the attempt, deleted at its end
    <id>/_leases/<version>/<turn>    put if absent by the builder of the version; names its attempt; deleted at its end

Nobody compares clocks: an attempt is dead if its beat did not change for :data:`EXPIRY` seconds on the clock of the
process that watches it, or if that process sees that the builder has ended because it ran on the same host. The process
that takes over revokes it in the log first, so that it cannot publish if it was only paused.
"""

from __future__ import annotations

import json
import math
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from cachelayer import json_values
from cachelayer.errors import CorruptionError, InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.system_threads import start
from cachelayer.versions.process_identity import Process, this_process

EXPIRY = 30.0
"""Seconds without a beat after which an attempt counts as dead; ``CACHELAYER_LEASE_SECONDS`` overrides it.

On a local disk there are no beats: see :mod:`cachelayer.versions.file_lock`.
"""
_BEATS_PER_EXPIRY = 6
_SHOWN = 200


def expiry() -> float:
    """Return the seconds without a beat after which an attempt counts as dead.

    Raises:
        InvalidArgumentError: if ``CACHELAYER_LEASE_SECONDS`` is not a number above 0.
    """
    setting = os.environ.get("CACHELAYER_LEASE_SECONDS", str(EXPIRY))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"CACHELAYER_LEASE_SECONDS is {setting!r}: set it to a number of seconds above 0")
    return seconds


class Heartbeat:
    """Show from a thread that an attempt is at work, until it is stopped.

    Args:
        store: the store.
        dataset_id, attempt: the attempt.
        status: returns the progress that waiting processes are shown.

    Raises:
        StorageError: if the first beat cannot be written.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, attempt: str, status: Callable[[], str]) -> None:
        self._store = store
        self._name = paths.build_lease(dataset_id, attempt)
        self._status = status
        self._pid = os.getpid()
        self._process = this_process()
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
        beat = {
            "who": f"process {os.getpid()} on {platform.node()}",
            "status": self._status(),
            "beat": self._beats,
            "process": None if self._process is None else self._process.to_json(),
        }
        self._store.put(self._name, json.dumps(beat).encode())

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


class Life(Enum):
    """What is known about an attempt that is watched."""

    ALIVE = "it has beaten since the last look"
    DEAD = "it has ended, or has not beaten for the expiry time while it was watched"
    UNKNOWN = "it has not been watched for long enough"


class Watch:
    """Tell from the beats of attempts which of them are dead.

    Args:
        store: the store.
        dataset_id: the dataset.
    """

    def __init__(self, store: ObjectStore, dataset_id: str) -> None:
        self._store = store
        self._dataset_id = dataset_id
        self._seen: dict[str, _Seen] = {}

    def look(self, attempt: str) -> Life:
        """Return what is known about an attempt, from its beat now and at earlier calls."""
        # The read may be slow: measure from the moment of the request.
        asked = time.monotonic()
        beat = self._store.read(paths.build_lease(self._dataset_id, attempt))
        if beat is None or _has_ended(beat):
            return Life.DEAD
        seen = self._seen.get(attempt)
        if seen is None or seen.beat != beat:
            self._seen[attempt] = _Seen(beat, time.monotonic())
            return Life.UNKNOWN if seen is None else Life.ALIVE
        return Life.DEAD if asked - seen.since >= expiry() else Life.UNKNOWN

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


def _has_ended(beat: bytes) -> bool:
    """Return whether a beat came from a process of this host that has ended."""
    try:
        process = Process.from_json(json.loads(beat)["process"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return process is not None and process.has_ended()


@dataclass(frozen=True)
class Turn:
    """A turn to build a version.

    Args:
        number: 1 for the first; 0 if nobody has taken one.
        attempt: the attempt that took it, if that is known.
    """

    number: int
    attempt: str | None


class Turns:
    """The turns to build a version: one attempt after another, each after the one before is dead.

    Args:
        store: the store.
        dataset_id, version: the version.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, version: str) -> None:
        self._store = store
        self._folder = paths.version_lease(dataset_id, version)

    def last(self) -> Turn:
        """Return the turn that was taken last."""
        turn = Turn(0, None)
        while (raw := self._store.read(self._name(turn.number + 1))) is not None:
            turn = Turn(turn.number + 1, _attempt_of(raw))
        return turn

    @contextmanager
    def take(self, last: Turn, attempt: str) -> Iterator[bool]:
        """Take the turn after the last, and delete it at the end; yield False if another attempt has taken it."""
        number, builder = last.number + 1, os.getpid()
        entry = json.dumps({"attempt": attempt, "token": uuid.uuid4().hex}).encode()
        taken = self._store.put_if_absent(self._name(number), entry)
        try:
            yield taken
        finally:
            with suppress(StorageError):
                # An attempt that counts as dead leaves the turns to its successor.
                if taken and os.getpid() == builder and not self._store.exists(self._name(number + 1)):
                    self._forget(number)

    def _forget(self, last: int) -> None:
        for number in range(last, 0, -1):
            self._store.delete(self._name(number))

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:06}"


def _attempt_of(raw: bytes) -> str | None:
    try:
        with json_values.decoding("a turn", "turn"):
            return paths.check_attempt(json_values.parsed(raw)["attempt"])
    except CorruptionError:
        return None
