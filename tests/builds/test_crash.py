"""A build that is killed at any moment leaves either a whole version or none."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_child import LEASE_SECONDS, WAYS, main, make
from forks import FORKS
from leftovers import assert_only_versions_are_left, noted_shards
from operations import OPTIONS, rows, submit_base
from samples import SHARE, some
from servers import new_place

import cachelayer

pytestmark = pytest.mark.slow


def whole(storage: cachelayer.Storage, version: str, records: int) -> bool:
    if "rows" not in storage.datasets() or version not in storage.versions("rows"):
        return False
    assert len(storage.fetch(f"rows@{version}")) == records
    assert storage.verify(f"rows@{version}", progress=False)
    return True


def storages(url: str, options: Any, other_folder: Path) -> tuple[cachelayer.Storage, cachelayer.Storage]:
    """A storage with the base, and another one whose base shares no shard with any build here."""
    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    other = cachelayer.Storage(other_folder)
    submit_base(storage)
    other.submit(rows(500, 560), "d@v1", **OPTIONS)
    return storage, other


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The digest that a way of making a version gives when nobody kills it."""

    @cache
    def digest(way: str) -> str:
        folder = tmp_path_factory.mktemp("undisturbed")
        return WAYS[way](*storages(str(folder / "storage"), None, folder / "other")).digest

    return digest


CASES = [("disk", way) for way in WAYS]
CASES += [("s3", "cache"), ("gcs", "parts"), ("s3", "copy")]


@pytest.mark.parametrize(("store", "way"), CASES)
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_again_and_again_the_version_is_that_of_one_run(
    store: str,
    way: str,
    stride: int,
    undisturbed: Callable[[str], str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))
    url, options = new_place(store, request, tmp_path)
    if store != "disk":
        stride = min(stride, 7)
    elif way == "workers" and stride > 1:
        # Each of its runs starts processes.
        stride *= 2
    storage, other = storages(url, options, tmp_path / "other")
    step, killed, kept = 3, 0, set[str]()
    while True:
        child = FORKS.Process(target=make, args=(url, options, other.url, way, step))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        # The next process goes on where this one was killed, so it dies later.
        killed, step = killed + 1, step + stride
        if "new" not in storage.versions("d"):
            noted = {*noted_shards(storage, "d", "new")}
            assert kept <= noted
            kept = noted
    ref = storage.fetch("d@new")
    assert killed > 1
    assert ref.digest == undisturbed(way)
    assert kept <= {shard.name for shard in ref._base.version.manifest.shards}
    assert_only_versions_are_left(storage, "d")


@pytest.mark.sampled
def test_a_build_that_is_killed_before_any_step_leaves_a_whole_version_or_none(tmp_path: Path) -> None:
    def killed_before(step: int) -> tuple[bool, bool]:
        """Return whether the build was killed, and whether its version is there."""
        # A storage for each: what is left in a log of others changes the number of steps.
        folder = tmp_path / str(step)
        storage = cachelayer.Storage(folder)
        child = FORKS.Process(target=main, args=(str(folder), "v1", 100, step))
        child.start()
        child.join()
        assert child.exitcode in {0, -signal.SIGKILL}
        is_there = whole(storage, "v1", 100)
        if child.exitcode:
            assert storage.cache(iter(rows(0, 100)), "rows@v1").read([99])["number"].tolist() == [99]
            assert whole(storage, "v1", 100)
        assert_only_versions_are_left(storage, "rows")
        return child.exitcode != 0, is_there

    tried = {}
    for step in some(range(1, 200)):
        tried[step] = killed_before(step)
        if not tried[step][0]:
            break
    first = min(step for step, (_, is_there) in tried.items() if is_there)
    # A sample has every step about the commit point.
    tried |= {step: killed_before(step) for step in range(max(1, first - SHARE), first) if step not in tried}
    published = [tried[step][1] for step in sorted(tried)]
    # None before the commit point, all after it: some steps still follow there.
    assert published == sorted(published)
    assert not published[0]
    assert (True, True) in tried.values()


@pytest.mark.parametrize("small_disk", ["3m"], indirect=True)
def test_a_full_disk_is_a_clear_error_and_harms_nothing_else(small_disk: Path) -> None:
    storage = cachelayer.Storage(small_disk)
    kept = storage.submit(rows(0, 100), "rows@v1")
    with pytest.raises(cachelayer.StorageError, match=r"(?i)no space"):
        storage.submit(rows(0, 20_000), "rows@v2", shard_bytes=500_000)
    assert list(storage.versions("rows")) == ["v1"]
    assert storage.verify("rows@v1")
    assert [row["number"] for row in kept] == list(range(100))
    storage.gc(grace=0)
    assert len(storage.cache(rows(0, 50), "rows@v3")) == 50


@pytest.mark.parametrize("small_disk", ["64m"], indirect=True)
@pytest.mark.parametrize("where", ["storage", "staging", "columns"])
def test_a_build_without_end_stops_before_the_disk_is_full(
    small_disk: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    least_free = [1.0]

    def endless() -> Iterator[dict[str, Any]]:
        while True:
            disk = os.statvfs(small_disk)
            least_free.append(disk.f_bavail / disk.f_blocks)
            yield {"noise": np.zeros(100_000, np.uint8)}

    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    storage = cachelayer.Storage("memory://without-end" if where == "staging" else small_disk, local_cache_bytes=0)
    storage.submit([{"n": n} for n in range(1000)], "d@v1")

    def build() -> None:
        if where == "columns":
            storage.add_columns("d@v1", new="v2", columns=lambda _: next(endless()))
        else:
            storage.submit(endless(), "d@v2")

    with pytest.raises(cachelayer.StorageError, match="max_records"):
        build()
    assert min(least_free) >= 0.01
    assert list(storage.versions("d")) == ["v1"]
