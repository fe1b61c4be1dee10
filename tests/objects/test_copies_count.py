"""The count of local copies: a copy costs the same beside any number, and no kill or deletion spoils the limit."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from copies_child import total
from hypothesis import given
from hypothesis import strategies as st
from killed_copies_child import CHANGES, LIMIT
from repository import SUPPORT

from cachelayer.objects.copies_count import Count
from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome

MANY = 10_000


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a disk: nothing here is lost with the power."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


def put(group: CopyGroup, name: str, nbytes: int) -> bool:
    return group.make(name, nbytes, lambda path: None) is CopyOutcome.HERE


def counted(folder: CacheFolder) -> int:
    """The bytes that the count says, as it is in the file."""
    count = Count.decode((folder.path / "lock").read_bytes())
    assert count is not None
    return count.total


def strew(group: CopyGroup, files: int) -> None:
    """Put copies of a byte there, as older releases do: nobody counts them."""
    for number in range(files):
        group.path(f"old-{number}").write_bytes(b"x")


def calls(work: Callable[[], object]) -> int:
    """How many functions of C and of Python some work calls: one or more for each file that it looks at."""
    made = 0

    def note(frame: FrameType, event: str, function: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made


def new_copy(folder: CacheFolder, group: CopyGroup) -> None:
    assert put(group, "new", 1)


def copy_without_room(folder: CacheFolder, group: CopyGroup) -> None:
    assert not put(group, "large", MANY + 11)


def copy_in_the_place_of_another(folder: CacheFolder, group: CopyGroup) -> None:
    before = counted(folder)
    assert put(group, "new", (folder.limit or 0) - before + 1)
    assert counted(folder) == folder.limit


def copy_of_what_was_built(folder: CacheFolder, group: CopyGroup) -> None:
    group.path("built").write_bytes(b"x")
    assert group.adopt([group.path("built")])


def drop(folder: CacheFolder, group: CopyGroup) -> None:
    group.drop("old-0")
    assert not group.has("old-0", 1)


@pytest.mark.slow
def test_a_copy_takes_no_more_calls_beside_ten_thousand_others(tmp_path: Path, clock: Clock) -> None:
    changes = [new_copy, copy_without_room, copy_of_what_was_built, drop, copy_in_the_place_of_another]
    found = []
    for files in (200, MANY):
        folder = CacheFolder(tmp_path / str(files), MANY + 10)
        group = folder.group("gs://a")
        strew(group, files)
        assert put(group, "first", 1)
        assert counted(folder) == files + 1
        for change in changes:
            if change is copy_in_the_place_of_another:
                # Nobody uses the copies that are there any more.
                group = folder.group("gs://new")
            found.append((change.__name__, calls(partial(change, folder, group))))
            assert counted(folder) == total(folder.path)
    assert found[: len(changes)] == found[len(changes) :]


def test_of_the_time_that_passes_at_most_a_hundredth_goes_into_listing_and_a_tenth_if_copies_are_refused(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CacheFolder(tmp_path, MANY)
    group = folder.group("gs://a")
    strew(group, 1000)
    listings = 0
    listed = CacheFolder.sizes

    def sizes(folder: CacheFolder) -> dict[Path, dict[str, int]]:
        nonlocal listings
        listings += 1
        return listed(folder)

    monkeypatch.setattr(CacheFolder, "sizes", sizes)
    for number in range(50):
        clock.now += 0.2
        assert put(group, str(number), 1)
    # Ten seconds. To list a thousand files takes some 10 ms.
    assert 9 <= listings <= 11
    listings = 0
    for number in range(50):
        clock.now += 0.02
        assert not put(group, f"large-{number}", MANY)
    assert 8 <= listings <= 11


def test_shards_that_are_uploaded_at_once_are_not_all_refused_for_one_that_has_no_room(
    tmp_path: Path, clock: Clock
) -> None:
    folder = CacheFolder(tmp_path, 250)
    group = folder.group("gs://a")
    shards = [group.path(f"shard-{number}") for number in range(3)]
    for shard in shards:
        shard.write_bytes(b"x" * 100)
    assert [group.adopt([shard]) for shard in shards] == [False, True, True]
    assert counted(folder) == total(tmp_path) == 200


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int | None, int, bool]]]:
    command = [sys.executable, str(SUPPORT / "killed_copies_child.py"), str(tmp_path_factory.mktemp("kills"))]
    found: dict[str, list[tuple[int | None, int, bool]]] = json.loads(subprocess.check_output(command))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_process_killed_anywhere_leaves_no_more_than_is_counted_and_no_folder_that_stays_full(
    kills: dict[str, list[tuple[int | None, int, bool]]], change: str
) -> None:
    assert len(kills[change]) >= 8
    for counted_nbytes, there, made_all in kills[change]:
        # What a build writes is counted once it is whole.
        assert counted_nbytes is None or there <= counted_nbytes <= LIMIT or change.startswith("adopted")
        assert there <= LIMIT or change == "adopted_too_large"
        assert made_all
    counted_nbytes, there, _ = kills[change][-1]
    assert counted_nbytes == there <= LIMIT


def test_deleted_copies_make_room_and_are_not_counted_for_long(tmp_path: Path, clock: Clock) -> None:
    folder = CacheFolder(tmp_path, 1000)
    group = folder.group("gs://a")
    strew(group, 999)
    assert put(group, "first", 1)
    for number in range(500):
        group.path(f"old-{number}").unlink()
    clock.now += 0.2
    assert put(group, "second", 400)
    assert counted(folder) == total(tmp_path) == 900


def test_copies_of_older_releases_are_counted_before_long(tmp_path: Path, clock: Clock) -> None:
    folder = CacheFolder(tmp_path, 1000)
    group = folder.group("gs://a")
    assert put(group, "first", 1)
    strew(group, 999)
    clock.now += 10
    assert not put(group, "second", 1)
    assert counted(folder) == total(tmp_path) == 1000


@pytest.mark.parametrize("seconds", [-1e9, -3600, 3600, 1e9])
def test_a_clock_that_is_set_makes_one_new_count(tmp_path: Path, clock: Clock, seconds: float) -> None:
    folder = CacheFolder(tmp_path, 10_000)
    group = folder.group("gs://a")
    strew(group, 1000)
    assert put(group, "first", 1)
    strew(folder.group("gs://b"), 1000)
    clock.now += seconds
    assert put(group, "second", 1)
    assert counted(folder) == total(tmp_path) == 2002
    strew(folder.group("gs://c"), 1000)
    assert put(group, "third", 1)
    assert counted(folder) == 2003


@pytest.mark.parametrize("what", ["everything", "the group", "the lock", "in-use"])
def test_a_folder_that_is_deleted_under_a_running_process_is_made_again_counted_and_held(
    tmp_path: Path, clock: Clock, what: str
) -> None:
    folder = CacheFolder(tmp_path / "cache", 100)
    group = folder.group("gs://a")
    assert put(group, "first", 60)
    path = {"everything": folder.path, "the group": group.path(""), "the lock": folder.path / "lock"}.get(what)
    shutil.rmtree(path or group.path("in-use"), ignore_errors=True)
    (path or group.path("in-use")).unlink(missing_ok=True) if what in ("the lock", "in-use") else None
    left = total(folder.path)
    assert put(group, "second", 30)
    assert counted(folder) == total(folder.path) == left + 30
    assert not put(folder.group("gs://b"), "third", 71)
    assert group.has("second", 30)
    assert put(folder.group("gs://b"), "third", 70 - left)


def test_a_lock_that_is_deleted_while_a_process_waits_for_it_is_not_the_one_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CacheFolder(tmp_path, 100)
    group = folder.group("gs://a")
    lock, deletions = fcntl.flock, [tmp_path / "lock"]

    def late_lock(file: Any, how: int) -> None:
        lock(file, how)
        if how == fcntl.LOCK_EX and deletions:
            deletions.pop().unlink()

    monkeypatch.setattr(fcntl, "flock", late_lock)
    assert put(group, "first", 60)
    assert not deletions
    assert counted(folder) == total(tmp_path) == 60


def wrong_counts() -> Iterator[bytes]:
    """Counts of this moment that no release wrote."""
    group = "0" * 32
    for files, size in ((10**400, 1), (10**9, -1), (-1, 1), (10**9, 10**400)):
        yield Count({group: size}, files, time.time()).encode()
    for name in ("../..", "thesis", group + "\n", ""):
        yield Count({name: 99}, 10**9, time.time()).encode()


STRANGE = [
    b"",
    b"\0" * 100,
    b"[]",
    b"{}",
    b"1",
    b"[" * 100_000,
    b'{"files": 1, "listed": 0, "nbytes": {"a": "b"}}',
    b"\xff",
    *wrong_counts(),
]


# Counts hold the time of their making, which must not be in the names of cases.
@pytest.mark.parametrize("content", STRANGE, ids=map(str, range(len(STRANGE))))
def test_what_is_no_count_is_made_anew(tmp_path: Path, content: bytes) -> None:
    folder = CacheFolder(tmp_path, 100)
    group = folder.group("gs://a")
    assert put(group, "first", 60)
    (tmp_path / "lock").write_bytes(content)
    assert not put(group, "second", 41)
    assert put(group, "third", 40)
    assert counted(folder) == total(tmp_path) == 100


def counts() -> Iterator[Count]:
    """Counts that are far too high, from another time, of no time at all, of groups that are not there."""
    for files in (0, 1, 10**12):
        for listed in (0.0, time.time(), 1e300, math.inf, math.nan):
            yield Count({"0" * 32: 2**62, "f" * 32: 5}, files, listed)


@pytest.mark.parametrize("count", list(counts()), ids=lambda count: f"{count.files} files at {count.listed:.0e}")
def test_a_wrong_count_is_never_believed_for_long(tmp_path: Path, clock: Clock, count: Count) -> None:
    folder = CacheFolder(tmp_path / "cache", 100)
    group = folder.group("gs://a")
    assert put(group, "first", 60)
    (tmp_path / "thesis").write_bytes(b"precious")
    (folder.path / "lock").write_bytes(count.encode())
    clock.now += 3600
    assert put(group, "second", 40)
    assert counted(folder) == total(folder.path) == 100
    assert (tmp_path / "thesis").read_bytes() == b"precious"


@given(
    st.dictionaries(st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(0, 2**63 - 1)),
    st.integers(0, 2**63 - 1),
    st.floats(allow_nan=False),
)
def test_a_count_is_read_as_it_was_written(nbytes: dict[str, int], files: int, listed: float) -> None:
    count = Count(nbytes, files, listed)
    assert Count.decode(count.encode()) == count
    assert Count.decode(count.encode()[:-1]) is None


def test_a_count_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache", 100)
    assert put(folder.group("gs://a"), "first", 60)
    assert (folder.path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_under_the_count_stops_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(tmp_path, 100)
    group = folder.group("gs://a")

    def no_space(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        assert put(group, "first", 60)
    assert not put(group, "second", 41)
    assert put(group, "third", 40)
