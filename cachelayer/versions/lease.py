"""Leases: who builds, what of it, and whether they still do. A lease saves work, and tells gc that a build is running.

A lease decides nothing: two processes that both think they build a version do the same work twice, and the log takes
one result.

::

    <id>/_builds/<version>/claim                               the process that builds it, while the others wait
    <id>/_builds/<version>/host-00003-<plan>-<token>.claim     a host that builds it together with others
    <id>/_builds/<version>/<token>.claim                       a copy, a repair or an erasure

    <process> <token> <beat> <records done> <of all> <parts in work>

Who holds a lease writes it again and again: each write is a beat. A lease is dead after :func:`expiry` seconds without
a beat, by the clock of the process that watches it; at once if its holder ran on this host and has ended. Who only
looks once compares its age, by the clock of the store: :func:`ages_of`.
"""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal, Self

from cachelayer.errors import InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import storage_errors
from cachelayer.objects.store import Stat, Store
from cachelayer.support.arguments import seconds_of_environment
from cachelayer.support.host import is_running, process_name
from cachelayer.support.logs import logger_of
from cachelayer.support.progress import Progress
from cachelayer.support.system_threads import Pool, start

_log = logger_of("builds")
CLAIM = "claim"
"""The lease of the process that builds a version while others wait, and the suffix of all other leases."""
HOST = "host-"
"""The prefix of the lease of a host that builds a version together with others."""
PROBE = ".clock-"
"""The first letters of objects that are put to see the clock of a bucket."""
Facts = Mapping[str, Stat | None]
"""Facts about objects, as a list tells them, by the names of the objects; None about a folder."""
Age = Callable[[str], float]
"""Returns the seconds since an object was written, by its name relative to the dataset; infinite if it is not there."""
State = Literal["running", "interrupted", "unknown"]
EXPIRY = 30.0
_BEATS_PER_EXPIRY = 6
_POLLS_PER_EXPIRY = 15
_NEWS_PER_EXPIRY = 30
"""How often others are told of other parts: a bucket takes about one write a second to one name."""
_THREADS = 16
_MOST_LETTERS = 200
_MOST_DIGITS = 18
_held: set[str] = set()
"""The tokens of the leases that this process holds."""


def expiry() -> float:
    """Return the seconds without a beat after which the holder of a lease counts as dead."""
    return seconds_of_environment("CACHELAYER_LEASE_SECONDS", EXPIRY)


def polls() -> float:
    """Return the seconds after which who waits for another process looks again."""
    return expiry() / _POLLS_PER_EXPIRY


@dataclass(frozen=True)
class Lease:
    """What a builder says of itself."""

    holder: str = ""
    """The name of the process, for a terminal too."""
    token: str = ""
    done: int | None = None
    """Records that are finished; None if the holder does not say."""
    total: int | None = None
    """Records of the whole work; None if the holder does not say."""
    parts: Collection[int] = ()
    """The parts in work: nobody else need begin them."""

    @classmethod
    def decoded(cls, raw: bytes) -> Self:
        """Return what a lease says, whatever is in the place of one."""
        words = raw.decode("ascii", "replace").split(" ")
        words += [""] * (6 - len(words))
        return cls(
            # Terminals obey control characters.
            holder="".join(filter(str.isprintable, words[0][:_MOST_LETTERS])),
            token=words[1],
            done=_number(words[3]),
            total=_number(words[4]),
            parts={number for text in words[5].split(",") if (number := _number(text)) is not None},
        )

    @property
    def is_over(self) -> bool:
        """Whether the holder ran on this host and has ended, or is this process and let go."""
        return is_running(self.holder) is False if self.holder != process_name() else self.token not in _held

    def state(self, idle: float) -> State:
        """Return the state of the work, given the seconds since the last beat by the clock of the store."""
        if self.is_over:
            return "interrupted"
        return "running" if idle < expiry() else "unknown"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


class HeldLease:
    """The lease of a builder in this process, which a thread renews."""

    def __init__(self, folder: Store, name: str, progress: Progress | None) -> None:
        self._folder = folder
        self.name = name
        self._progress = progress
        self.parts: Collection[int] = ()
        """The parts in work."""
        self.token = uuid.uuid4().hex
        self._beat = -1
        self._beaten = -math.inf
        """The monotonic time of the last beat, unless that failed: others take no lease over so soon after a beat."""
        self._told: Collection[int] = ()
        """The parts that the last beat named."""
        self._expiry = expiry()
        self._putting = threading.Lock()
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._beat_on, name="cachelayer-lease", daemon=True)

    def encoded(self) -> bytes:
        """Return the next beat."""
        self._beat += 1
        self._beaten = time.monotonic()
        self._told = self.parts
        counts = ("-", "-") if self._progress is None else (self._progress.done, self._progress.total)
        words = process_name(), self.token, self._beat, *counts, ",".join(map(str, sorted(self._told)))
        return " ".join(map(str, words)).encode()

    def work_on(self, parts: Collection[int], *, at_once: bool = False) -> None:
        """Say which parts are in work: at once, or soon."""
        self.parts = parts
        if at_once:
            self._put()

    def _put(self) -> None:
        # If the store is away for a while, go on; if that lasts, others take over.
        try:
            with self._putting:
                self._folder.put(self.name, self.encoded())
        except StorageError as error:
            self._beaten = -math.inf
            _log.warning("a lease is not renewed, and others may take the work over: %(error)s", {"error": error})

    def _beat_on(self) -> None:
        last = time.monotonic()
        while not self._stopped.wait(self._expiry / _NEWS_PER_EXPIRY):
            is_due = time.monotonic() - last >= self._expiry / _BEATS_PER_EXPIRY
            if is_due or self._told != self.parts:
                last = time.monotonic()
                self._put()

    def end(self) -> None:
        """Let go: delete the lease, unless another process may have it now."""
        self._stopped.set()
        if self.thread.ident is not None:
            self.thread.join()
        with suppress(StorageError):
            is_ours = time.monotonic() - self._beaten < self._expiry
            if is_ours or self.token.encode() in (self._folder.read(self.name) or b""):
                self._folder.delete(self.name)
        remove_if_empty(self._folder)


def remove_if_empty(folder: Store) -> None:
    """Remove the folder of the builds of a version from a disk, if nothing is in it."""
    path = folder.local_path("")
    if path is not None:
        with suppress(OSError):
            path.rmdir()


class Leases:
    """The leases in the folder of the builds of a version."""

    def __init__(self, folder: Store) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[bytes, float]] = {}
        """The last beat of each lease, and the monotonic time at which this process first saw that beat."""
        self._beats: dict[str, tuple[float, float]] = {}
        """When the store says that each lease was written last, and the monotonic time at which that was first seen."""
        self._dead: dict[str, bytes] = {}
        """The last beat of each lease of a dead process that could not be deleted."""

    @contextmanager
    def hold(self, name: str = "", progress: Progress | None = None) -> Iterator[HeldLease | None]:
        """Hold a lease of a name, else one beside those of all others. Yield None if another process holds it."""
        holder = os.getpid()
        held = HeldLease(self._folder, name or f"{uuid.uuid4().hex}.{CLAIM}", progress)
        _held.add(held.token)
        is_ours = False
        try:
            is_ours = self._take(held)
            outcome = "taken" if is_ours else "another process has it"
            lease_url = f"{self._folder.url}/{held.name}"
            _log.debug("%(object)s: %(outcome)s", {"object": lease_url, "outcome": outcome})
            if is_ours:
                start(held.thread, "to show that the build is at work")
            yield held if is_ours else None
        finally:
            _held.discard(held.token)
            # A child that was forked meanwhile leaves the lease to its parent.
            if is_ours and os.getpid() == holder:
                held.end()

    def _take(self, held: HeldLease) -> bool:
        if self._folder.put_if_absent(held.name, held.encoded()):
            return True
        dead = self._dead.pop(held.name, None)
        if dead is None or self._folder.read(held.name) != dead:
            return False
        self._folder.put(held.name, held.encoded())
        return True

    def holder(self, name: str) -> Lease | None:
        """Return the lease of a process that may be at work. Repeated calls find a dead one out, and delete it."""
        # The read may be slow: measure from the moment of the request.
        looked_at = time.monotonic()
        beat = self._folder.read(name)
        if beat is None:
            return None
        lease = Lease.decoded(beat)
        before, since = self._seen.get(name, (None, looked_at))
        if lease.is_over or (beat == before and looked_at - since >= expiry()):
            url = f"{self._folder.url}/{name}"
            _log.info(
                "%(object)s: %(holder)s gives no sign of life, so its work is taken over",
                {"object": url, "holder": lease.holder},
            )
            try:
                # Another that watches may have deleted it, and hold it anew.
                if self._folder.read(name) == beat:
                    self._folder.delete(name)
            except StorageError as error:
                # Who may write and not delete puts a lease of its own over this one.
                _log.info("%(object)s cannot be deleted: %(error)s", {"object": url, "error": error})
                self._dead[name] = beat
            return None
        if beat != before:
            self._seen[name] = (beat, time.monotonic())
        return lease

    def is_alive(self, name: str) -> bool:
        """Return whether the holder of a lease is at work. This may watch it for :func:`expiry` seconds."""
        first = None
        while (lease := self.holder(name)) is not None:
            beat = self._seen[name][0]
            if is_running(lease.holder) or first not in (None, beat):
                return True
            first = beat
            self.pause()
        return False

    def beating(self, prefix: str) -> list[str]:
        """Return the names that begin alike of the leases of processes that may be at work, by one list.

        Repeated calls find out those without a beat.
        """
        asked = time.monotonic()
        names = []
        for name, stat in self._folder.facts("").items():
            if stat is not None and name.startswith(prefix) and name.endswith(CLAIM):
                before, since = self._beats.get(name, (None, asked))
                if stat.modified != before:
                    self._beats[name] = (stat.modified, time.monotonic())
                if stat.modified != before or asked - since < expiry():
                    names.append(name)
        return names

    def holders(self, names: Sequence[str]) -> list[Lease]:
        """Return the leases with these names of the processes that may be at work."""
        with Pool(_THREADS, "cachelayer-leases") as threads:
            return [lease for lease in threads.map(self.holder, names) if lease is not None]

    def pause(self) -> None:
        """Wait before looking again."""
        time.sleep(polls())


def leases_in(folder: Store, names: Iterable[str] | None = None) -> dict[str, Lease]:
    """Return all leases in a folder, as one look shows them, by their names. It is listed if nobody has the names."""
    names = folder.names("") if names is None else names
    raws = {name: folder.read(name) for name in names if name.endswith(CLAIM)}
    return {name: Lease.decoded(raw) for name, raw in raws.items() if raw is not None}


def has_running_build(dataset: Store, age: Age, names: Iterable[str] | None = None) -> bool:
    """Return whether a version may be under construction, given the ages of objects, and perhaps the names of all."""
    if names is None:
        folders = map(paths.builds, dataset.names(paths.BUILDS))
        names = [f"{folder}/{name}" for folder in folders for name in dataset.names(folder)]
    return any(lease.state(age(name)) == "running" for name, lease in leases_in(dataset, names).items())


def ages_of(dataset: Store, known: Facts, only_shown: bool = False) -> Age:
    """Return the function of the ages of objects by the clock of the store; those that are known are not asked for."""
    now = clock_of(dataset, only_shown=only_shown)

    def age(name: str) -> float:
        stat = known.get(name) or dataset.stat(name)
        return math.inf if stat is None else now() - stat.modified

    return age


def clock_of(dataset: Store, *, only_shown: bool) -> Callable[[], float]:
    """Return the function of the time when it is called first, by the clock of the store.

    A time that is ``only_shown`` may be by the clock of this host, for a user who may not write to the store.
    """

    @cache
    def now() -> float:
        try:
            return _time_of(dataset)
        except (InvalidArgumentError, StorageError):
            if not only_shown:
                raise
            return time.time()

    return now


def _time_of(dataset: Store) -> float:
    """Return the time of the store, whose clock may differ from the clock of this host by hours."""
    folder = dataset.local_path("")
    if folder is not None:
        with storage_errors("see the clock of", folder):
            # The server of a network file system sets this time. It takes no room, so that a full disk has a clock.
            os.utime(folder)
        stat = dataset.stat("")
    else:
        probe = paths.builds(f"{PROBE}{uuid.uuid4().hex}")
        dataset.put(probe, b"")
        stat = dataset.stat(probe)
        dataset.delete(probe)
    return time.time() if stat is None else stat.modified
