"""A build that is killed at any moment leaves either a whole version or none."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_child import REVOKED, main, rows
from forks import FORKS
from log_entries import commit
from repository import SUPPORT
from samples import SHARE, some

import cachelayer
from cachelayer.objects import paths
from cachelayer.versions.log import Log

pytestmark = pytest.mark.slow

CHILD = SUPPORT.joinpath("crash_child.py")
RECORDS = 4000
ROUNDS, ROUNDS_OF_A_SOAK = 6, 100


def start(folder: Path, version: str, records: int = RECORDS) -> subprocess.Popen[str]:
    """A child that is about to build."""
    command = [sys.executable, str(CHILD), str(folder), version, str(records)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout as out:
        assert out.readline() == "ready\n"
    return child


def whole(storage: cachelayer.Storage, version: str, records: int = RECORDS) -> bool:
    """Whether a version is there; it is whole then."""
    if "rows" not in storage.datasets() or version not in storage.versions("rows"):
        return False
    assert len(storage.fetch("rows", version)) == records
    assert storage.verify("rows", version, progress=False)
    return True


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_OF_A_SOAK, marks=pytest.mark.soak)])
def test_a_build_that_is_killed_at_any_moment_leaves_a_whole_version_or_none(tmp_path: Path, rounds: int) -> None:
    storage = cachelayer.Storage(tmp_path)
    started = time.monotonic()
    child = start(tmp_path, "first")
    ready = time.monotonic()
    assert child.wait() == 0
    duration = time.monotonic() - ready
    assert whole(storage, "first"), started
    digest = storage.fetch("rows", "first").digest

    chance = random.Random(11)
    outcomes = []
    for number in range(rounds):
        version = f"v{number}"
        child = start(tmp_path, version)
        # Nothing is waited for here: the delay is the moment of the kill.
        time.sleep(1.05 * duration * (number + chance.random()) / rounds)
        child.kill()
        child.wait()
        outcomes.append(whole(storage, version))
        rebuilt = storage.cache(rows(RECORDS), "rows", version, shard_bytes=200_000)
        assert rebuilt.digest == digest
        if not outcomes[-1]:
            assert whole(storage, version)
    assert whole(storage, "first")
    assert not all(outcomes)
    storage.gc(grace=0.0)
    builds = {path.name for path in (tmp_path / "rows" / "_builds").iterdir()}
    named = {paths.attempt_of(info.manifest) for info in storage.versions("rows").values()}
    named.update(
        *(storage.fetch("rows", version)._base.version.manifest.attempts for version in storage.versions("rows"))
    )
    assert builds == named
    for version in storage.versions("rows"):
        assert whole(storage, version)


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
    storage.gc(grace=0.0)
    builds = {path.name for path in (tmp_path / "rows" / "_builds").iterdir()}
    named = {paths.attempt_of(info.manifest) for info in storage.versions("rows").values()}
    named.update(
        *(storage.fetch("rows", version)._base.version.manifest.attempts for version in storage.versions("rows"))
    )
    assert builds == named


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
