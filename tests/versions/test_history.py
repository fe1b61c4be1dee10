"""Who did what to a dataset, and when."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import cachelayer
from cachelayer import CorruptionError, DatasetNotFoundError, InvalidNameError, LogEvent
from cachelayer.objects import paths


def lived(storage: cachelayer.Storage) -> list[LogEvent]:
    """The history of a dataset to which some things happened."""
    storage.submit([1, 2], "d", "v1")
    storage.submit([1, 2, 3], "d", "v2")
    storage.tag("d", "v1", "best")
    storage.tag("d", "v2", "best")
    storage.delete("d", "v1", grace=0)
    return storage.history("d")


def changes(events: list[LogEvent]) -> list[tuple[int, str, str | None, str | None]]:
    return [(each.sequence, each.kind, each.details.get("version"), each.details.get("tag")) for each in events]


CHANGES = [
    (1, "publish", "v1", None),
    (2, "publish", "v2", None),
    (3, "tag", "v1", "best"),
    (4, "tag", "v2", "best"),
    (5, "delete", "v1", None),
]


def test_every_change_is_an_event_the_oldest_first(storage: cachelayer.Storage) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    events = lived(storage)
    assert changes(events)[:5] == CHANGES
    assert [event.kind for event in events[5:]] == ["collect"]
    assert {(event.user, event.host, event.pid) for event in events} == {
        (getpass.getuser(), socket.gethostname(), os.getpid())
    }
    times = [datetime.fromisoformat(event.time) for event in events]
    assert before <= times[0]
    assert times == sorted(times)


def test_an_event_is_one_readable_line() -> None:
    event = LogEvent(3, "tag", "2026-01-01T00:00:00+00:00", "ada", "host", 7, {"tag": "best", "version": "v1"})
    assert str(event) == "3  2026-01-01T00:00:00+00:00  ada@host  tag tag=best version=v1"
    deleted = replace(event, kind="delete", details={"tags": ["a", "b"]})
    assert str(deleted) == "3  2026-01-01T00:00:00+00:00  ada@host  delete tags=a,b"


def test_an_unknown_dataset_is_named(storage: cachelayer.Storage) -> None:
    storage.submit([1], "digits", "v1")
    with pytest.raises(DatasetNotFoundError, match="'digits'"):
        storage.history("digit")
    with pytest.raises(InvalidNameError):
        storage.history("a/b")


def test_a_lost_entry_is_named(storage: cachelayer.Storage, tmp_path: Path) -> None:
    lived(storage)
    (tmp_path / paths.log_entry("d", 2)).unlink()
    with pytest.raises(CorruptionError, match=r"d/_log/0000000002\.json: an entry of the log is missing"):
        storage.history("d")
