"""Builds of one version at once: one builds, and the others wait for it and say so."""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faults import fault_proxy
from forks import FORKS
from servers import Server, new_storage

import cachelayer
from cachelayer import Storage
from cachelayer.versions import lease

EXPIRY = 3000.0


def test_a_builder_that_was_killed_is_waited_for_once_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = 0.0

    def pause(_: object) -> None:
        nonlocal now
        now += EXPIRY / 10

    def rows() -> Iterator[int]:
        yield from range(5000)
        if errors:
            raise errors.pop()

    errors = [OSError("the disk went away")]

    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(EXPIRY))
    # The clock stands still but for the pauses of those who watch others.
    monkeypatch.setattr(lease, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: now}))
    monkeypatch.setattr(lease.Leases, "pause", pause)
    storage = cachelayer.Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    with pytest.raises(cachelayer.SourceError):
        storage.cache(rows, "d@v1", shard_bytes=20_000)
    storage._store.put("d/_builds/v1/claim", b"other-1 token 1")
    assert len(storage.cache(rows, "d@v1", shard_bytes=20_000, progress=True)) == 5000
    assert storage._store.names("d/_builds/v1") == []
    assert EXPIRY <= now <= 1.2 * EXPIRY
    [said] = [line for line in capfd.readouterr().err.splitlines() if "waiting" in line]
    assert said.startswith("d@v1: waiting for other-1 ")
    assert "3000 s" in said


def test_who_waits_for_a_build_reads_and_writes_nothing(gcs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # A builder on a busy machine is not taken for dead.
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "15")
    waiters = 12
    has_begun, may_end = threading.Event(), threading.Event()
    storage = new_storage(gcs)

    def rows() -> Iterator[int]:
        has_begun.set()
        assert may_end.wait(60)
        yield from range(10)

    with fault_proxy(gcs.endpoint) as proxy, ThreadPoolExecutor(waiters + 1) as threads:
        building = threads.submit(storage.cache, rows, "d@v1")
        assert has_begun.wait(60)

        def wait(_: int) -> list[int]:
            options = gcs.storage_options(proxy.endpoint)
            here = Storage(storage.url, storage_options=options, local_cache_bytes=0)
            return list(here.cache(rows, "d@v1"))

        waiting = [threads.submit(wait, number) for number in range(waiters)]
        deadline = time.monotonic() + 60
        while sum("/claim" in exchange.path for exchange in proxy.exchanges()) < 3 * waiters:
            assert time.monotonic() < deadline
        may_end.set()
        assert [each.result() for each in waiting] == [list(building.result())] * waiters
        assert {exchange.method for exchange in proxy.exchanges()} <= {"GET", "HEAD"}


def build_and_leave_a_mark(folder: str) -> Any:
    Path(folder, f"built-{os.getpid()}-{threading.get_ident()}").touch()
    return [{"n": number} for number in range(500)]


def cached(folder: str) -> str:
    ref = cachelayer.Storage(folder).cache(lambda: build_and_leave_a_mark(folder), "d@v1")
    return ref.digest


def tagged(folder: str, who: int) -> None:
    for number in range(25):
        cachelayer.Storage(folder).tag("d@v1", f"tag-{who}-{number}")


@pytest.mark.parametrize("workers", [partial(ThreadPoolExecutor, 8), partial(ProcessPoolExecutor, 4, FORKS)])
@pytest.mark.slow
def test_those_that_cache_at_once_build_once(tmp_path: Path, workers: Callable[[], Executor]) -> None:
    with workers() as pool:
        digests = set(pool.map(cached, [str(tmp_path)] * 8))
    assert len(digests) == 1
    assert len(list(tmp_path.glob("built-*"))) == 1


@pytest.mark.slow
def test_no_entry_of_the_log_is_lost(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")
    with ProcessPoolExecutor(3, FORKS) as pool:
        list(pool.map(tagged, [str(tmp_path)] * 3, range(3)))
    assert len(storage.tags("d")) == 75
    assert len(list((tmp_path / "d" / "_log").glob("*.json"))) == 76
