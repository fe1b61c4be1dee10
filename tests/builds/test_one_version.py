"""A list of records of any sizes is one version, however many build it, also if they are killed on the way."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from crash_child import die_before
from forks import FORKS
from leftovers import assert_only_versions_are_left, stored_files
from rows_for_workers import Listed

import cachelayer
from cachelayer import Storage

pytestmark = pytest.mark.slow

RECORDS = 2000
OPTIONS: dict[str, Any] = {"shard_bytes": 20_000}
SOURCES: dict[str, list[Any]] = {
    "texts": ["t" * (37 * number % 401) for number in range(RECORDS)],
    "bytes": [bytes([number % 251]) * (number * number % 503) for number in range(RECORDS)],
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


def begin_and_kill(folder: Path, kind: str, how: str) -> None:
    child = FORKS.Process(target=killed, args=(folder, kind, how))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def shards(storage: Storage) -> set[str]:
    return {name for name in stored_files(storage) if name.endswith(".array_record")}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_digest_does_not_depend_on_who_builds(tmp_path: Path, kind: str) -> None:
    refs = [cache(tmp_path / how, kind, how) for how in HOW]
    assert len({ref.digest for ref in refs}) == 1
    assert list(refs[0]) == SOURCES[kind]
    assert len(refs[0]._base.version.manifest.shards) > 10


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("texts", "alone", "workers"),
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
    begin_and_kill(tmp_path / "storage", kind, before)
    finished = shards(storage)
    assert len(finished) > 1
    ref = cache(tmp_path / "storage", kind, after)
    assert "resuming after" in capfd.readouterr().err
    assert ref.digest == expected
    assert finished <= {shard.name for shard in ref._base.version.manifest.shards}
    assert_only_versions_are_left(storage, "d")


def test_a_list_of_another_length_is_built_from_its_beginning(tmp_path: Path) -> None:
    begin_and_kill(tmp_path, "texts", "alone")
    storage, source = Storage(tmp_path), SOURCES["texts"][:-1]
    with pytest.warns(cachelayer.CacheLayerWarning, match="d@v1 is built from its beginning.*length"):
        assert list(storage.cache(source, "d", "v1", **OPTIONS)) == source
    assert_only_versions_are_left(storage, "d")


def test_a_list_of_other_contents_is_built_from_its_beginning(tmp_path: Path) -> None:
    begin_and_kill(tmp_path, "texts", "alone")
    storage, source = Storage(tmp_path), [text.upper() for text in SOURCES["texts"]]
    with pytest.warns(cachelayer.CacheLayerWarning, match="d@v1 is built from its beginning.*elements changed"):
        assert list(storage.cache(source, "d", "v1", **OPTIONS)) == source
    assert_only_versions_are_left(storage, "d")


def test_hosts_with_lists_of_other_lengths_are_refused(storage: Storage) -> None:
    def element(number: int) -> int:
        if number == 500:
            with pytest.raises(cachelayer.InvalidArgumentError, match="length"):
                storage.cache(Listed(999, int), "d", "v1", hosts=(1, 2))
        return number

    assert len(storage.cache(Listed(1000, element), "d", "v1", hosts=(0, 2))) == 1000
