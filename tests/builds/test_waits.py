"""How long a build in an object store waits for one that was killed: once."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from crash_child import OPTIONS, RECORDS, generated, make
from forks import FORKS
from servers import Server, new_bucket

import cachelayer
from cachelayer.versions import claims

EXPIRY = 3000.0
KILLED_BEFORE = 20
"""A write after some shards."""


@dataclass
class Clock:
    """A clock that stands still but for the pauses of those who watch others."""

    seconds: float = 0.0
    pauses: int = field(default=0)

    def monotonic(self) -> float:
        return self.seconds

    def pause(self) -> None:
        self.pauses += 1
        self.seconds += EXPIRY / 10


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(EXPIRY))
    monkeypatch.setattr(claims, "time", SimpleNamespace(**{**vars(time), "monotonic": clock.monotonic}))
    monkeypatch.setattr(claims.Claims, "pause", lambda _: clock.pause())
    return clock


def test_a_builder_that_was_killed_is_waited_for_once_and_it_is_said(
    server: Server, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    url, options = server.url(new_bucket(server), "a/prefix"), server.storage_options()
    child = FORKS.Process(target=make, args=(url, options, "memory://other", "generator", KILLED_BEFORE))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    assert "claim" in storage._store.names("d/_builds/new")
    # As if it had run on another host: nothing there tells that it is gone.
    storage._store.put("d/_builds/new/claim", b"other-1 token 1")
    ref = storage.cache(generated, "d", "new", **{**OPTIONS, "progress": True})
    assert len(ref) == RECORDS
    assert storage._store.names("d/_builds/new") == []
    assert EXPIRY <= clock.seconds <= 1.2 * EXPIRY
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "waiting" in line]
    assert said.startswith("d@new: waiting for other-1 ")
    assert "3000 s" in said
