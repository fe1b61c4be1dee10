"""Who waits for a build: for how long if it was killed, and what the store is asked meanwhile."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from faults import fault_proxy
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
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "3")
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
