"""A list of records of any sizes is one version, however many build it, also if they are killed on the way."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crash_child import die_before
from forks import FORKS
from leftovers import assert_only_versions_are_left, noted_shards
from rows_for_workers import Listed, Rows, row

import cachelayer
from cachelayer import Storage

pytestmark = pytest.mark.slow

RECORDS = 2000
OPTIONS: dict[str, Any] = {"shard_bytes": 20_000}
SOURCES: dict[str, Any] = {
    "texts": ["t" * (37 * number % 401) for number in range(RECORDS)],
    "bytes": [bytes([number % 251]) * (number * number % 503) for number in range(RECORDS)],
    "one size": Listed(1007),
    "None late": Rows(1700, "print"),
}
HOW: dict[str, dict[str, Any]] = {
    "alone": {},
    "workers": {"workers": 2},
    "processes": {"engine": "processes", "workers": 3},
    "hosts": {"hosts": (1, 3)},
}
KILLED_BEFORE = 200
"""A step after some of the parts."""


def cache(folder: Path, kind: str, how: str) -> cachelayer.DataRef[Any]:
    return Storage(folder).cache(SOURCES[kind], "d", "v1", **OPTIONS, **HOW[how])


def killed(folder: Path, kind: str, how: str) -> None:
    """Build, and be killed on the way."""
    die_before(str(folder), KILLED_BEFORE)
    cache(folder, kind, how)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_version_does_not_depend_on_who_builds(tmp_path: Path, kind: str) -> None:
    refs = [cache(tmp_path / how, kind, how) for how in HOW]
    assert len({(ref.digest, str(ref.element_spec)) for ref in refs}) == 1
    assert len({tuple(shard.stats for shard in ref._base.version.manifest.shards) for ref in refs}) == 1
    assert len(refs[0]._base.version.manifest.shards) > 10
    if isinstance(SOURCES[kind], list):
        assert list(refs[0]) == SOURCES[kind]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("None late", "alone", "workers"),
        ("bytes", "alone", "hosts"),
        ("texts", "workers", "processes"),
        ("bytes", "workers", "alone"),
        ("texts", "hosts", "alone"),
        ("bytes", "hosts", "processes"),
    ],
)
def test_who_goes_on_after_a_kill_may_be_others_and_keeps_what_is_finished(
    tmp_path: Path, kind: str, before: str, after: str, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = cache(tmp_path / "whole", kind, "alone").digest
    storage = Storage(tmp_path / "storage")
    child = FORKS.Process(target=killed, args=(tmp_path / "storage", kind, before))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    noted = [Path(storage.url) / "d" / name for name in noted_shards(storage, "d", "v1")]
    finished = {path: path.stat().st_ino for path in noted}
    assert len(finished) > 1
    ref = cache(tmp_path / "storage", kind, after)
    assert "resuming after" in capfd.readouterr().err
    assert ref.digest == expected
    assert {path: path.stat().st_ino for path in finished} == finished
    assert {path.name for path in finished} <= {Path(shard.name).name for shard in ref._base.version.manifest.shards}
    assert_only_versions_are_left(storage, "d")


def test_workers_build_no_more_than_is_wanted_and_may_be_more_than_the_records(storage: Storage) -> None:
    limited = storage.submit(Listed(1000), "d", "v1", workers=2, max_records=900, **OPTIONS)
    assert limited.digest == storage.submit(Listed(900), "d", "v2", **OPTIONS).digest
    for records in (0, 1, 7):
        ref = storage.submit(Rows(records=records), "few", f"v{records}", workers=4, allow_empty=True)
        assert [element["x"] for element in ref] == list(range(records))


@pytest.mark.parametrize("options", [{"workers": 3}, {"hosts": (0, 2)}], ids=str)
def test_a_source_that_cannot_be_divided_is_built_by_one_process(storage: Storage, options: dict[str, Any]) -> None:
    with pytest.warns(cachelayer.CacheLayerWarning, match=next(iter(options))):
        ref = storage.cache(lambda: map(row, range(5000)), "d", "v1", **options)
    assert [element["x"] for element in ref] == list(range(5000))


@pytest.mark.parametrize(
    ("do", "error", "told"),
    [
        ("fail", cachelayer.SourceError, "record 3210"),
        ("misfit", cachelayer.ElementError, "record 3210"),
        ("die", cachelayer.SourceError, "SIGKILL"),
        ("exit", cachelayer.SourceError, r"EXIT\(7\)"),
    ],
)
def test_what_happens_in_a_worker_reaches_the_caller(
    storage: Storage, do: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        storage.submit(Rows(3210, do), "d", "v1", workers=2, shard_bytes=200_000)
    assert worker_processes() == []


def worker_processes() -> list[str]:
    """The worker processes of this one."""
    children: list[str] = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        # A thread of an earlier test may have ended meanwhile.
        with suppress(FileNotFoundError):
            children += (task / "children").read_text().split()
    return [pid for pid in children if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes()]
