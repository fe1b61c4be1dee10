"""A build that is killed at any moment leaves either a whole version or none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from crash_child import LEASE_SECONDS, OPTIONS, RECORDS, REVOKED, WAYS, main, make, rows
from forks import FORKS
from log_entries import commit
from repository import SUPPORT
from samples import SHARE, some
from servers import Server, new_bucket

import cachelayer
from cachelayer.objects import paths
from cachelayer.versions.log import Log
from cachelayer.versions.unfinished import Unfinished

pytestmark = pytest.mark.slow

CHILD = SUPPORT.joinpath("crash_child.py")
BUILT = 4000


def start(folder: Path, version: str, records: int = BUILT) -> subprocess.Popen[str]:
    """A child that is about to build."""
    command = [sys.executable, str(CHILD), str(folder), version, str(records)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout as out:
        assert out.readline() == "ready\n"
    return child


def whole(storage: cachelayer.Storage, version: str, records: int = BUILT) -> bool:
    """Whether a version is there; it is whole then."""
    if "rows" not in storage.datasets() or version not in storage.versions("rows"):
        return False
    assert len(storage.fetch("rows", version)) == records
    assert storage.verify("rows", version, progress=False)
    return True


def assert_only_versions_are_left(storage: cachelayer.Storage, dataset_id: str) -> None:
    """After a collection, there is nothing that no version names."""
    storage.gc(grace=0.0)
    store = storage._store
    named: set[str] = set()
    for version in storage.versions(dataset_id):
        found = storage.fetch(dataset_id, version)._base.version
        named |= {name for shard in found.manifest.shards for name in shard.files} | {found.info.manifest}
    attempts = store.names(f"{dataset_id}/_builds")
    files = {
        f"{paths.BUILDS}/{each}/{name}" for each in attempts for name in store.names(f"{dataset_id}/_builds/{each}")
    }
    assert files == named
    assert not any(store.names(f"{dataset_id}/_unfinished/{each}") for each in store.names(f"{dataset_id}/_unfinished"))


def noted(storage: cachelayer.Storage) -> set[str]:
    """The shards that the attempt which finished most has noted as whole."""
    unfinished = Unfinished(storage._store, "d", "new")
    read = [found for attempt in unfinished.attempts() if (found := unfinished.read(attempt)) is not None]
    return max(({shard.name for shard in found.shards} for found in read), key=len, default=set())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The digest that a way of making a version gives when nobody kills it."""

    @cache
    def digest(way: str) -> str:
        storage = cachelayer.Storage(tmp_path_factory.mktemp("undisturbed"))
        storage.submit(rows(RECORDS), "d", "base", **OPTIONS)
        return WAYS[way](storage).digest

    return digest


CASES = [("local", way) for way in WAYS] + [("s3", "generator"), ("s3", "parts"), ("gcs", "sequence")]


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
    url, options = str(tmp_path / "storage"), None
    if store != "local":
        server: Server = request.getfixturevalue(store)
        url, options, stride = server.url(new_bucket(server)), server.storage_options(), min(stride, 4)
    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    storage.submit(rows(RECORDS), "d", "base", **OPTIONS)
    step, killed, kept = 3, 0, set[str]()
    while True:
        child = FORKS.Process(target=make, args=(url, options, way, step))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        # The next process goes on where this one was killed, so it dies later.
        killed, step = killed + 1, step + stride
        if "new" not in storage.versions("d"):
            assert kept <= noted(storage)
            kept = noted(storage)
    ref = storage.fetch("d", "new")
    assert killed > 2
    assert ref.digest == undisturbed(way)
    assert kept <= {shard.name for shard in ref._base.version.manifest.shards}
    assert storage.verify("d", "new", progress=False)
    assert_only_versions_are_left(storage, "d")


@pytest.mark.sampled
def test_a_build_that_is_killed_before_any_step_leaves_a_whole_version_or_none(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)

    def killed_before(step: int) -> tuple[bool, bool]:
        """Return whether the build was killed, and whether its version is there."""
        version = f"v{step}"
        child = FORKS.Process(target=main, args=(str(tmp_path), version, 100, step))
        child.start()
        child.join()
        assert child.exitcode in {0, -signal.SIGKILL}
        is_there = whole(storage, version, 100)
        if child.exitcode:
            assert storage.cache(rows(100), "rows", version).read([99])["number"].tolist() == [99]
            assert whole(storage, version, 100)
        return child.exitcode != 0, is_there

    tried = {}
    for step in some(range(1, 200)):
        tried[step] = killed_before(step)
        if not tried[step][0]:
            break
    first = min(step for step, (_, is_there) in tried.items() if is_there)
    # A sample has every step about the commit point.
    tried |= {step: killed_before(step) for step in range(first - SHARE, first) if step not in tried}
    published = [tried[step][1] for step in sorted(tried)]
    # None before the commit point, all after it: some steps still follow there.
    assert published == sorted(published)
    assert not published[0]
    assert (True, True) in tried.values()
    assert_only_versions_are_left(storage, "rows")


def running_attempt(folder: Path) -> str:
    """The attempt of the one build that runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = list((folder / "rows" / "_builds").glob("*/shard-00001.array_record"))
        if found:
            return found[0].parent.name
        os.sched_yield()
    raise AssertionError("the child did not begin to build")


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A build that is stopped in the middle."""
    child = start(tmp_path, "v1", 200_000)
    running_attempt(tmp_path)
    child.send_signal(signal.SIGSTOP)
    yield child
    child.kill()
    child.wait()


def test_gc_leaves_a_running_build_alone(tmp_path: Path, paused: subprocess.Popen[str]) -> None:
    assert cachelayer.Storage(tmp_path).gc(grace=0.0) == []
    assert running_attempt(tmp_path)


def test_a_builder_that_was_revoked_while_it_was_paused_cannot_publish(tmp_path: Path) -> None:
    child = start(tmp_path, "v1")
    attempt = running_attempt(tmp_path)
    child.send_signal(signal.SIGSTOP)
    storage = cachelayer.Storage(tmp_path)

    def revoke(head: Any) -> Any:
        return type(head)(**{**head.__dict__, "revoked": head.revoked | {attempt}})

    commit(Log(storage._store, "rows"), revoke)
    child.send_signal(signal.SIGCONT)
    assert child.wait() == REVOKED
    assert storage.versions("rows") == {}
    assert not (tmp_path / "rows" / "_builds" / attempt).exists()


def test_a_builder_whose_attempt_was_collected_while_it_was_paused_is_told(tmp_path: Path) -> None:
    child = start(tmp_path, "v1", 20_000)
    attempt = running_attempt(tmp_path)
    child.send_signal(signal.SIGSTOP)
    # On a file system without locks nothing tells that it is alive.
    (tmp_path / paths.build_lease("rows", attempt)).unlink()
    storage = cachelayer.Storage(tmp_path)
    assert storage.gc(grace=0.0) == [f"rows/{attempt}"]
    child.send_signal(signal.SIGCONT)
    assert child.wait() == REVOKED
    assert storage.versions("rows") == {}
    assert list((tmp_path / "rows" / "_builds").iterdir()) == []


def test_what_a_killed_build_left_is_collected_after_its_grace(tmp_path: Path) -> None:
    child = start(tmp_path, "v1", 200_000)
    attempt = running_attempt(tmp_path)
    child.kill()
    child.wait()
    storage = cachelayer.Storage(tmp_path)
    assert storage.gc(grace=3600) == []
    assert storage.gc(grace=0.0) == [f"rows/{attempt}"]
    assert not (tmp_path / "rows" / "_builds" / attempt).exists()


def test_a_full_disk_is_a_clear_error_and_harms_nothing_else(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        storage = cachelayer.Storage(small)
        kept = storage.submit(rows(100), "rows", "v1")
        with pytest.raises(cachelayer.StorageError, match=r"(?i)no space"):
            storage.submit(rows(20_000), "rows", "v2", shard_bytes=500_000)
        assert list(storage.versions("rows")) == ["v1"]
        assert storage.verify("rows", "v1")
        assert [row["number"] for row in kept] == list(range(100))
        assert len(storage.cache(rows(50), "rows", "v3")) == 50
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
        shutil.rmtree(small)
