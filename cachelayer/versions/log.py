"""The log of a dataset: the one place where versions are published, tagged and deleted.

Each entry is a whole snapshot, put under the next number if that is absent. A writer that loses the race for a number
reads the winner's entry and decides again. Each entry holds a random token, by which a writer recognises its own entry
if the reply to its put was lost.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self

from cachelayer import counting, json_values
from cachelayer.errors import BusyError, CorruptionError, FormatError, StorageError, VersionNotFoundError
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn
from cachelayer.versions.snapshot import Snapshot

_log = logger_of("log")
_PATIENCE = 300.0
"""Seconds after which a writer that keeps losing the race for the next entry gives up."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 2.0
_AT_ONCE = 16
"""Entries that a history reads at once."""
_AT_A_TIME = 256
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class LogEvent:
    """One change of a dataset: who changed what, and when.

    Args:
        sequence: number of the entry, from 1.
        kind: ``publish``, ``tag``, ``untag``, ``delete``, ``copy``, ``collect``, or another.
        time: when, in ISO 8601, UTC, by the clock of the host.
        user, host, pid: who; ``"unknown"``, or 0 for the process, if the entry does not say.
        details: what, by name: the version, the tag, the number of files.
    """

    sequence: int
    kind: str
    time: str
    user: str
    host: str
    pid: int
    details: Mapping[str, Any]

    @classmethod
    def of(cls, entry: Snapshot) -> Self:
        """Return the event of an entry."""
        details = dict(entry.event)
        kind, time, user, host = (str(details.pop(name, _UNKNOWN)) for name in ("kind", "time", "user", "host"))
        pid = details.pop("pid", 0)
        return cls(entry.sequence, kind, time, user, host, pid if type(pid) is int else 0, details)

    def __str__(self) -> str:
        what = [
            f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
            for name, value in self.details.items()
        ]
        return f"{self.sequence}  {self.time}  {self.user}@{self.host}  {' '.join([self.kind, *what])}"


class Log:
    """The log of one dataset. This object remembers the newest entry that it has seen, and searches on from there.

    Args:
        folder: the folder of the dataset.
    """

    def __init__(self, folder: Store) -> None:
        self.folder = folder
        self._seen: Snapshot | None = None
        self._swept: dict[int, frozenset[str]] = {}

    def head(self) -> Snapshot:
        """Return the newest snapshot; an empty one if nothing was ever published."""
        seen = self._seen
        if seen is not None:
            last = self._last(seen.sequence)
            head = seen if last == seen.sequence else self._entry(last)
        else:
            pointed = self._pointer()
            last, head = self._newest(pointed)
            if head is None and last == pointed:
                # The storage was copied by other means, and not as it was at one moment, or an entry was removed.
                last = self._last(0)
                head = self._entry(last)
                warn(
                    f"{self.folder.url}/{paths.LOG_HEAD} names entry {pointed} of the log, and the "
                    f"newest that is there is {last}: versions that later entries published are missing here. If the "
                    "storage was copied by other means, copy it again; the next entry that is written ends this "
                    "warning",
                    room="log",
                )
        if head is None:
            raise self._missing(last)
        self._seen = head
        return head

    def _newest(self, pointed: int) -> tuple[int, Snapshot | None]:
        """Return the number of the newest entry, given that of an entry, and the newest entry if it is there."""
        if self.folder.local_path(paths.LOG) is not None:
            last = self._last(pointed)
            return last, self._entry(last)
        with Pool(1, "cachelayer-log") as thread:
            # The entry is the newest one, unless its writer was interrupted: both answers come in one round trip.
            reading = thread.submit(self._entry, pointed)
            last = self._last(pointed)
            return last, reading.result() if last == pointed else self._entry(last)

    def _last(self, sequence: int) -> int:
        """Return the number of the newest entry, given that of an entry. The entries between may be damaged."""
        while self.folder.exists(paths.log_entry(sequence + 1)):
            sequence += 1
        return sequence

    def _pointer(self) -> int:
        """Return the number of an entry, from which the newest one is found soon; 0 if it is missing or damaged."""
        raw = self.folder.read(paths.LOG_HEAD)
        with suppress(CorruptionError, FormatError), json_values.decoding(paths.LOG_HEAD, "pointer"):
            return json_values.integer("sequence", json_values.unsealed(raw or b"")["sequence"])
        return 0

    def _entry(self, sequence: int) -> Snapshot | None:
        if sequence == 0:
            return Snapshot()
        name = paths.log_entry(sequence)
        raw = self.folder.read(name)
        return None if raw is None else Snapshot.decode(raw, f"{self.folder.url}/{name}", sequence)

    def deleted_since(self, head: Snapshot, generation: int) -> frozenset[str]:
        """Return the files that were deleted from the end of a generation up to a head.

        A file is good if no entry since the generation in its name has deleted it.
        """
        for sequence in head.sweeps[generation:]:
            if sequence not in self._swept:
                entry = head if sequence == head.sequence else self._entry(sequence)
                if entry is None:
                    raise self._missing(sequence)
                self._swept[sequence] = entry.swept
        return frozenset().union(*(self._swept[sequence] for sequence in head.sweeps[generation:]))

    def history(self) -> list[LogEvent]:
        """Return the events of all entries, the oldest first."""
        last, events = self.head().sequence, list[LogEvent]()
        with Pool(_AT_ONCE, "cachelayer-history") as threads:
            # A log may claim any number of entries: stop at the first that is missing, before asking for the rest.
            while len(events) < last:
                sequences = range(len(events) + 1, min(last, len(events) + _AT_A_TIME) + 1)
                events += threads.map(self._event, sequences)
        return events

    def _event(self, sequence: int) -> LogEvent:
        entry = self._entry(sequence)
        if entry is None:
            raise self._missing(sequence)
        return LogEvent.of(entry)

    def _missing(self, sequence: int) -> CorruptionError:
        name = paths.log_entry(sequence)
        return CorruptionError(f"{self.folder.url}/{name}: an entry of the log is missing")

    def change(self, decide: Callable[[Snapshot], Snapshot]) -> Snapshot:
        """Put what a function makes of the newest snapshot as the next entry, and return it.

        If another writer adds an entry first, the function decides again, on that one. Between two tries is a random
        pause, which grows from try to try::

            log.change(lambda head: head.with_tag(version, tag, event))

        Args:
            decide: returns the snapshot that follows a snapshot, or the same if there is nothing to change. If it
                raises VersionNotFoundError because another has deleted a version meanwhile, it decides again.
        """
        until = time.monotonic() + _PATIENCE
        if self._seen is not None and not self.folder.exists(paths.log_entry(self._seen.sequence)):
            # The dataset was removed by other means.
            self._seen = None
        for number in count():
            head = self.head()
            try:
                decided = decide(head)
            except VersionNotFoundError:
                if self.head().sequence == head.sequence:
                    raise
            else:
                entry = head if decided is head else self._commit(decided)
                if entry is not None:
                    return entry
            if time.monotonic() > until:
                break
            # Random, so that writers that lost together do not meet again; no secret depends on it.
            time.sleep(random.random() * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(number, 20)))  # noqa: S311
        raise BusyError(
            f"{self.folder.url}/{paths.LOG}: for {_PATIENCE:g} s, other writers added every "
            f"next entry first, up to {self.head().sequence}: is a program publishing, tagging or deleting in a loop? "
            "Try again later"
        )

    def _commit(self, decided: Snapshot) -> Snapshot | None:
        """Put a changed head as the next entry, and return it; None if another entry came first."""
        sequence = decided.sequence + 1
        # What an entry deleted stands in that entry alone.
        swept = decided.swept if decided.sweeps[-1:] == (sequence,) else frozenset[str]()
        entry = replace(decided, sequence=sequence, swept=swept)
        raw, name = entry.encode(uuid.uuid4().hex), paths.log_entry(sequence)
        if not (self.folder.put_if_absent(name, raw) or self.folder.read(name) == raw):
            counting.count(lost_races=1)
            _log.info("%s/%s: another writer added it first, so this one decides again", self.folder.url, name)
            return None
        self._seen = entry
        _log.info("%s: entry of the log: %s", self.folder.url, LogEvent.of(entry))
        try:
            self.folder.put(paths.LOG_HEAD, json_values.sealed({"sequence": sequence}))
        except StorageError as error:
            # The entry is there: a pointer that cannot be written must not look like a failure.
            _log.warning("the pointer to the newest entry of the log stays behind: %s", error)
        return entry


def has_log(folder: Store) -> bool:
    """Return whether a folder has our log; False for a folder that this user may not read."""
    try:
        return folder.exists(paths.log_entry(1))
    except StorageError as error:
        # Any other error is a failure of the store itself.
        if isinstance(error.__cause__, PermissionError):
            return False
        raise
