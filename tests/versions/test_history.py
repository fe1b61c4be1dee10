"""Who did what to a dataset, and when."""

from __future__ import annotations

import getpass
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cachelayer import CorruptionError, DatasetNotFoundError, InvalidNameError, LogEvent, Storage
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore


def test_every_change_is_an_event_the_oldest_first_and_a_lost_one_is_named(storage: Storage, tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    storage.submit([1, 2], "d@v1")
    storage.submit([1, 2, 3], "d@v2")
    for version in ("v1", "v2"):
        storage.tag(f"d@{version}", "best")
    storage.delete("d@v1", grace=0)
    events = storage.history("d")
    assert [(each.sequence, each.kind, each.details.get("version"), each.details.get("tag")) for each in events] == [
        (1, "publish", "v1", None),
        (2, "publish", "v2", None),
        (3, "tag", "v1", "best"),
        (4, "tag", "v2", "best"),
        (5, "delete", "v1", None),
        (6, "collect", None, None),
    ]
    who = (getpass.getuser(), socket.gethostname(), os.getpid())
    assert {(event.user, event.host, event.pid) for event in events} == {who}
    times = [datetime.fromisoformat(event.time) for event in events]
    assert [before, *times] == sorted([before, *times])
    (tmp_path / "d" / paths.log_entry(2)).unlink()
    with pytest.raises(CorruptionError, match=r"d/_log/0000000002\.json"):
        storage.history("d")


def test_an_event_is_one_readable_line() -> None:
    event = LogEvent(3, "tag", "2026-01-01T00:00:00+00:00", "ada", "host", 7, {"tag": "best", "versions": ["a", "b"]})
    assert str(event) == "3  2026-01-01T00:00:00+00:00  ada@host  tag tag=best versions=a,b"


def test_an_unknown_dataset_is_named(storage: Storage) -> None:
    storage.submit([1], "digits@v1")
    with pytest.raises(DatasetNotFoundError, match="'digits'"):
        storage.history("digit")
    with pytest.raises(InvalidNameError):
        storage.history("a/b")


def test_the_hint_for_a_name_with_a_typing_error_reads_no_other_dataset(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        storage.submit([1], f"digits{number}@v1")
    seen: set[tuple[str, ...]] = set()
    local_path, root = LocalStore.local_path, Path(storage.url)

    def noting(store: LocalStore, name: str) -> Path:
        seen.add((store.root / name).relative_to(root).parts[:1])
        return local_path(store, name)

    monkeypatch.setattr(LocalStore, "local_path", noting)
    for wrong in ("digit7", "digits20@v1"):
        with pytest.raises(DatasetNotFoundError, match="'digits"):
            storage.fetch(wrong)
        assert seen == {(), (wrong.partition("@")[0],)}
        seen.clear()
