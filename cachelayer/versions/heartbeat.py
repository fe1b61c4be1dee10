"""Leases in an object store: who is at work shows it by writing again and again.

::

    <id>/_running/<attempt>          written anew at every beat by who runs the attempt, deleted when it ends
    <id>/_leases/<version>/<turn>    put if absent by who builds the version: it names the attempt; deleted when it ends

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

from cachelayer import json_values
from cachelayer.errors import CorruptionError, InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.versions.processes import Process, this_process

EXPIRY = 30.0
"""Seconds without a beat after which an attempt is taken for dead; ``CACHELAYER_LEASE_SECONDS`` changes it."""
_BEATS_PER_EXPIRY = 6
_SHOWN = 200


def expiry() -> float:
    """Seconds without a beat after which an attempt is taken for dead.

    Raises:
        InvalidArgumentError: where ``CACHELAYER_LEASE_SECONDS`` is no number above 0.
    """
    told = os.environ.get("CACHELAYER_LEASE_SECONDS", str(EXPIRY))
    try:
        seconds = float(told)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"CACHELAYER_LEASE_SECONDS is {told!r}: set it to seconds, above 0")
    return seconds


class Heartbeat:
    """Shows that an attempt is at work, from a thread, until it is stopped.

    Args:
        store: where others look for it.
        dataset_id, attempt: what is at work.
        status: what others are shown: how far it is.

    Raises:
        StorageError: where the first beat cannot be written.
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
        self._thread.start()

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
            # A store that is away for a while is no reason to stop; should it last, others take over.
            with suppress(StorageError):
                self._beat()

    def stop(self) -> None:
        """Stop, and leave nothing behind; in a child that was forked it is its parent's that goes on."""
        if os.getpid() != self._pid:
            return
        self._stopped.set()
        self._thread.join()
        with suppress(StorageError):
            self._store.delete(self._name)


@dataclass
class _Seen:
    """A beat, and when it was first seen: seconds of the monotonic clock."""

    beat: bytes
    since: float


class Watch:
    """Tells from the beats of attempts which of them are dead.

    Args:
        store: where they beat.
        dataset_id: whose attempts they are.
    """

    def __init__(self, store: ObjectStore, dataset_id: str) -> None:
        self._store = store
        self._dataset_id = dataset_id
        self._seen: dict[str, _Seen] = {}

    def is_dead(self, attempt: str) -> bool | None:
        """Whether an attempt has ended, or did not beat for the time of the expiry while it was watched.

        Returns:
            False where it has beaten since it was last looked at, None where that is not known yet.
        """
        # A slow answer tells of a beat as it was when it was asked for, at the earliest.
        asked = time.monotonic()
        beat = self._store.read(paths.build_lease(self._dataset_id, attempt))
        if beat is None or _has_ended(beat):
            return True
        seen = self._seen.get(attempt)
        if seen is None or seen.beat != beat:
            self._seen[attempt] = _Seen(beat, time.monotonic())
            return None if seen is None else False
        return True if asked - seen.since >= expiry() else None

    def shown(self, attempt: str) -> str:
        """Who runs an attempt and how far it is, as far as its last beat told."""
        seen = self._seen.get(attempt)
        try:
            with json_values.decoding(attempt, "beat"):
                found = json_values.parsed(seen.beat if seen else b"")
                who, status = (json_values.text(name, found[name]) for name in ("who", "status"))
        except CorruptionError:
            return "another process"
        # It is shown on terminals, which control characters command.
        return "".join(each for each in f"{who}, {status}"[:_SHOWN] if each.isprintable())


def _has_ended(beat: bytes) -> bool:
    """Whether the process of a beat ran on this host and is seen to have ended."""
    try:
        process = Process.from_json(json.loads(beat)["process"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return process is not None and process.has_ended()


@dataclass(frozen=True)
class Turn:
    """A turn that was taken.

    Args:
        number: 1 for the first; 0 where none was taken.
        attempt: who took it, where that is known.
    """

    number: int
    attempt: str | None


class Turns:
    """Who builds a version: one attempt after another, each when the one before is dead.

    Args:
        store: where they are kept.
        dataset_id, version: what is built.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, version: str) -> None:
        self._store = store
        self._folder = paths.version_lease(dataset_id, version)

    def last(self) -> Turn:
        """The turn that was taken last."""
        turn = Turn(0, None)
        while (raw := self._store.read(self._name(turn.number + 1))) is not None:
            turn = Turn(turn.number + 1, _attempt_of(raw))
        return turn

    @contextmanager
    def take(self, last: Turn, attempt: str) -> Iterator[bool]:
        """Have the turn after the last one, and leave none behind; False where another attempt has it."""
        number, builder = last.number + 1, os.getpid()
        entry = json.dumps({"attempt": attempt, "token": uuid.uuid4().hex}).encode()
        taken = self._store.put_if_absent(self._name(number), entry)
        try:
            yield taken
        finally:
            with suppress(StorageError):
                # Who has been taken for dead leaves the turns to who came after it.
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
