"""How long a build in an object store waits for one that was killed: once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import resume_child
from servers import Server, new_bucket

import cachelayer
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import ObjectStore
from cachelayer.versions import attempts

EXPIRY = 3000.0
KILLED_AT = 6000
"""A record after some shards."""


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
    monkeypatch.setattr(attempts, "time", SimpleNamespace(**{**vars(time), "monotonic": clock.monotonic}))
    monkeypatch.setattr(attempts, "pause", clock.pause)
    return clock


@dataclass(frozen=True)
class Killed:
    """What a builder left that was killed with SIGKILL.

    Args:
        url, options: where.
        store: the same.
        attempt: the name of its attempt.
    """

    url: str
    options: dict[str, Any]
    store: ObjectStore
    attempt: str

    def cache(self) -> cachelayer.DataRef[Any]:
        storage = cachelayer.Storage(self.url, storage_options=self.options, local_cache_bytes=0)
        return storage.cache(resume_child.generated, "rows", "v1", shard_bytes=resume_child.SHARD_BYTES, progress=True)

    def check(self, ref: cachelayer.DataRef[Any]) -> None:
        """Its shards were used by another build, and nothing else of it is left."""
        assert self.attempt in ref._base.version.manifest.attempts
        assert len(ref) == resume_child.RECORDS
        assert self.store.names("rows/_running") == []
        assert self.store.names("rows/_leases/v1") == []


@pytest.fixture
def killed(server: Server) -> Killed:
    url, options = server.url(new_bucket(server), "a/prefix"), server.storage_options()
    resume_child.build_and_die(url, options, KILLED_AT)
    store = open_store(url, options)
    (attempt,) = store.names("rows/_running")
    return Killed(url, options, store, attempt)


def test_a_builder_that_was_killed_is_waited_for_once_and_it_is_said(
    killed: Killed, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    killed.check(killed.cache())
    assert EXPIRY <= clock.seconds <= 1.2 * EXPIRY
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "waiting" in line]
    assert said.startswith("rows@v1: waiting for process ")
    assert "3000 s" in said
