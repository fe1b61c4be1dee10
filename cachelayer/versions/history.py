"""The history of a dataset: its log as events, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.system_threads import Pool
from cachelayer.versions.snapshot import Snapshot

_AT_ONCE = 16
_AT_A_TIME = 256
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class LogEvent:
    """One change of a dataset: who changed what, and when.

    Args:
        sequence: number of the entry, from 1.
        kind: ``publish``, ``tag``, ``untag``, ``delete``, ``copy``, ``revoke``, or another.
        time: when, in ISO 8601, UTC, by the clock of the host.
        user, host, pid: who; ``"unknown"``, or 0 for the process, if the entry does not say.
        details: what, by name: the version, the tag, the build attempts.
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


def history(store: ObjectStore, dataset_id: str, last: int) -> list[LogEvent]:
    """Return the events of the first ``last`` entries of a log, oldest first.

    Raises:
        CorruptionError: if an entry is missing or damaged.
    """

    def event(sequence: int) -> LogEvent:
        name = paths.log_entry(dataset_id, sequence)
        raw = store.read(name)
        if raw is None:
            raise CorruptionError(f"{store.url}/{name}: an entry of the log is missing")
        return LogEvent.of(Snapshot.decode(raw, f"{store.url}/{name}", sequence))

    found: list[LogEvent] = []
    with Pool(_AT_ONCE, "cachelayer-history") as threads:
        # A log may claim any number of entries: stop at the first that is missing, before asking for the rest.
        while len(found) < last:
            found += threads.map(event, range(len(found) + 1, min(last, len(found) + _AT_A_TIME) + 1))
    return found
