"""Claims: who is at work on what. A claim saves doing work twice, and tells gc that a build is at work.

It decides nothing: two processes that both think they hold one do the same work twice, and the log takes one result.

::

    <id>/_builds/<version>/claim                        the process that builds the version
    <id>/_builds/<version>/<plan>/host-00003.claim      a host that builds it together with others
    <id>/_builds/<version>/<plan>/00005.claim           the process that builds a part

On a file system a claim is a lock, which dies with its holder. In an object store its holder writes it again and again;
one that stays as it is for :func:`expiry` seconds counts as dead.
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
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Literal, Protocol

from cachelayer import json_values
from cachelayer.errors import CorruptionError, InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.system_threads import start
from cachelayer.versions import file_lock

CLAIM = "claim"
State = Literal["running", "interrupted", "unknown"]
EXPIRY = 30.0
_BEATS_PER_EXPIRY = 6
_POLLS_PER_EXPIRY = 15
_LOCK_PAUSE = 0.05
_SHOWN = 200


class Claims(Protocol):
    """The claims below one folder."""

    def hold(self, name: str, status: Callable[[], str]) -> AbstractContextManager[bool]:
        """Hold a claim, unless another holds it; yield whether it is held. ``status`` tells others the progress."""

    def is_busy(self, name: str) -> bool:
        """Return whether another may hold a claim. Repeated calls find a dead holder out, and remove its claim."""

    def holder(self, name: str) -> str:
        """Return who holds a claim and how far it is, for messages."""

    def glance(self, name: str, idle: float) -> tuple[State, str]:
        """Return whether the holder of a claim is at work, without waiting to be sure, and who it is if that is known.

        Args:
            name: the claim.
            idle: the seconds since it was written.
        """

    def pause(self) -> None:
        """Wait before looking again."""


def claims_of(store: ObjectStore, folder: str) -> Claims:
    """Return the claims below a folder."""
    return Locks(store, folder) if isinstance(store, LocalStore) else Beats(store, folder)


def expiry() -> float:
    """Return the seconds without a beat after which the holder of a claim counts as dead."""
    setting = os.environ.get("CACHELAYER_LEASE_SECONDS", str(EXPIRY))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"CACHELAYER_LEASE_SECONDS is {setting!r}: set it to a number of seconds above 0")
    return seconds


class Locks:
    """Claims on a file system: locked files."""

    def __init__(self, store: LocalStore, folder: str) -> None:
        self._store = store
        self._folder = folder

    @contextmanager
    def hold(self, name: str, status: Callable[[], str]) -> Iterator[bool]:  # noqa: ARG002 - nobody reads it
        path = self._store.make_folder(self._folder) / name
        with file_lock.try_hold(path, remove=True) as is_ours:
            if is_ours:
                # Find out now, not after hours when the version is published.
                self._store.check_links(f"{self._folder}/{name}")
            yield is_ours

    def is_busy(self, name: str) -> bool:
        return file_lock.is_held(self._store.path(f"{self._folder}/{name}"))

    def holder(self, name: str) -> str:  # noqa: ARG002 - a lock says nothing else
        return "another process"

    def glance(self, name: str, idle: float) -> tuple[State, str]:  # noqa: ARG002 - a lock answers at once
        try:
            return "running" if self.is_busy(name) else "interrupted", ""
        except StorageError:
            # The lock belongs to somebody else, or the disk is mounted read-only.
            return "unknown", ""

    def pause(self) -> None:
        time.sleep(_LOCK_PAUSE)


class Beats:
    """Claims in an object store: objects that their holders write again and again."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._seen: dict[str, tuple[bytes, float]] = {}
        """The last beat of each claim, and when this process first saw it, in seconds of the monotonic clock."""

    @contextmanager
    def hold(self, name: str, status: Callable[[], str]) -> Iterator[bool]:
        beat = _Beat(self._store, f"{self._folder}/{name}", status)
        if not beat.begin():
            yield False
            return
        try:
            yield True
        finally:
            beat.stop()

    def is_busy(self, name: str) -> bool:
        # The read may be slow: measure from the moment of the request.
        asked = time.monotonic()
        beat = self._store.read(f"{self._folder}/{name}")
        if beat is None:
            return False
        before, since = self._seen.get(name, (None, asked))
        if beat != before:
            self._seen[name] = (beat, time.monotonic())
        elif asked - since >= expiry():
            self._store.delete(f"{self._folder}/{name}")
            return False
        return True

    def holder(self, name: str) -> str:
        who = _shown(self._seen[name][0]) if name in self._seen else "another process"
        return f"{who} (taken for dead after {expiry():g} s without a sign of life)"

    def glance(self, name: str, idle: float) -> tuple[State, str]:
        beat = self._store.read(f"{self._folder}/{name}")
        if beat is None:
            return "interrupted", ""
        return "running" if idle < expiry() else "unknown", _shown(beat)

    def pause(self) -> None:
        time.sleep(expiry() / _POLLS_PER_EXPIRY)


def _shown(beat: bytes) -> str:
    """Return who wrote a beat and how far it is."""
    try:
        with json_values.decoding("a claim", "claim"):
            document = json_values.parsed(beat)
            who, status = (json_values.text(key, document[key]) for key in ("who", "status"))
    except CorruptionError:
        return "another process"
    # The text goes to terminals, which obey control characters.
    return "".join(each for each in f"{who}, {status}"[:_SHOWN] if each.isprintable())


class _Beat:
    """Writes a claim again and again from a thread, until it is stopped."""

    def __init__(self, store: ObjectStore, name: str, status: Callable[[], str]) -> None:
        self._store = store
        self._name = name
        self._status = status
        self._pid = os.getpid()
        self._token = uuid.uuid4().hex
        self._number = 0
        self._pause = expiry() / _BEATS_PER_EXPIRY
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cachelayer-claim", daemon=True)

    def begin(self) -> bool:
        """Put the claim unless it is there, and begin to beat; return False if another holds it."""
        if not self._store.put_if_absent(self._name, self._next()):
            return False
        try:
            start(self._thread, "to show that the build is at work")
        except StorageError:
            # Others would wait for it.
            self._store.delete(self._name)
            raise
        return True

    def _next(self) -> bytes:
        self._number += 1
        who = f"process {os.getpid()} on {platform.node()}"
        beat = {"who": who, "status": self._status(), "beat": self._number, "token": self._token}
        return json.dumps(beat).encode()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            # If the store is away for a while, go on; if that lasts, others take over.
            with suppress(StorageError):
                self._store.put(self._name, self._next())

    def stop(self) -> None:
        """Stop, and delete the claim if it is still ours; in a forked child do nothing, since the parent goes on."""
        if os.getpid() != self._pid:
            return
        self._stopped.set()
        self._thread.join()
        with suppress(StorageError):
            if self._token.encode() in (self._store.read(self._name) or b""):
                self._store.delete(self._name)


def is_alive(claims: Claims, name: str) -> bool:
    """Return whether the holder of a claim is at work, after watching it for as long as it takes to be sure."""
    until = time.monotonic() + expiry() * (1 + 1 / _POLLS_PER_EXPIRY)
    while claims.is_busy(name):
        if isinstance(claims, Locks) or time.monotonic() > until:
            return True
        claims.pause()
    return False


def is_at_work(store: ObjectStore, dataset_id: str, age: Callable[[str], float]) -> bool:
    """Return whether somebody may build a version of a dataset.

    Args:
        age: returns the seconds since an object was written, by the clock of the store.
    """
    for version in store.names(paths.builds(dataset_id)):
        folder = paths.builds(dataset_id, version)
        for name in _claims_below(store, folder):
            claims, last = claims_of(store, paths.parent_of(name)), name.rpartition("/")[2]
            if claims.glance(last, age(name))[0] == "running":
                return True
    return False


def _claims_below(store: ObjectStore, folder: str) -> Iterator[str]:
    """Yield the names of all claims of the builds of a version."""
    for name in store.names(folder):
        if name.endswith(CLAIM):
            yield f"{folder}/{name}"
        else:
            yield from (f"{folder}/{name}/{one}" for one in store.names(f"{folder}/{name}") if one.endswith(CLAIM))
