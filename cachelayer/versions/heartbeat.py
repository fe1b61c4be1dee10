"""Leases in an object store: who is at work shows it by writing again and again.

::

    <id>/_running/<attempt>          written anew at every beat by who runs the attempt, deleted when it ends
    <id>/_leases/<version>/<turn>    put if absent by who builds the version: it names the attempt

Nobody compares clocks: an attempt is dead when its beat did not change for :data:`EXPIRY` seconds on the clock of who
watches it. Whoever takes over revokes it in the log first, so that it cannot publish if it was only paused.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore

EXPIRY = 30.0
"""Seconds without a beat after which an attempt is taken for dead; ``CACHELAYER_LEASE_SECONDS`` changes it."""
_BEATS_PER_EXPIRY = 6


def expiry() -> float:
    """Seconds without a beat after which an attempt is taken for dead."""
    return float(os.environ.get("CACHELAYER_LEASE_SECONDS", EXPIRY))


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
        self._beats = 0
        self._stopped = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._run, name="cachelayer-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        self._beats += 1
        beat = {"who": f"process {os.getpid()} on {platform.node()}", "status": self._status(), "beat": self._beats}
        self._store.put(self._name, json.dumps(beat).encode())

    def _run(self) -> None:
        while not self._stopped.wait(expiry() / _BEATS_PER_EXPIRY):
            # A store that is away for a while is no reason to stop; should it last, others take over.
            with suppress(StorageError):
                self._beat()

    def stop(self) -> None:
        """Stop, and leave nothing behind."""
        self._stopped.set()
        self._thread.join()
        with suppress(StorageError):
            self._store.delete(self._name)


@dataclass
class _Seen:
    """A beat, and when it was first seen: seconds of the monotonic clock."""

    beat: bytes | None
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

    def is_dead(self, attempt: str) -> bool:
        """Whether an attempt has ended, or did not beat for the time of the expiry while it was watched."""
        beat = self._store.read(paths.build_lease(self._dataset_id, attempt))
        if beat is None:
            return True
        seen = self._seen.get(attempt)
        if seen is None or seen.beat != beat:
            self._seen[attempt] = _Seen(beat, time.monotonic())
            return False
        return time.monotonic() - seen.since >= expiry()

    def shown(self, attempt: str) -> str:
        """Who runs an attempt and how far it is, as far as its last beat told."""
        seen = self._seen.get(attempt)
        try:
            found: Any = json.loads(seen.beat or b"") if seen else None
            return f"{found['who']}, {found['status']}"
        except (ValueError, TypeError, KeyError):
            return "another process"


class Turns:
    """Who builds a version: one attempt after another, each when the one before is dead.

    Args:
        store: where they are kept.
        dataset_id, version: what is built.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, version: str) -> None:
        self._store = store
        self._folder = paths.version_lease(dataset_id, version)
        self._turn = 0
        self._attempt: str | None = None

    def holder(self) -> str | None:
        """The attempt whose turn it is; None before the first."""
        while (raw := self._store.read(f"{self._folder}/{self._turn + 1:06}")) is not None:
            self._turn += 1
            self._attempt = _attempt_of(raw)
        return self._attempt

    def take(self, attempt: str) -> bool:
        """Take the turn after the one that :meth:`holder` told; False where another attempt took it."""
        entry = json.dumps({"attempt": attempt, "token": uuid.uuid4().hex}).encode()
        return self._store.put_if_absent(f"{self._folder}/{self._turn + 1:06}", entry)


def _attempt_of(raw: bytes) -> str | None:
    try:
        return str(json.loads(raw)["attempt"])
    except (ValueError, TypeError, KeyError):
        return None
