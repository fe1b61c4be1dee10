"""How long a build in an object store waits for one that was killed: not at all on its host, once elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import resume_child
from samples import some
from servers import Server, new_bucket

import cachelayer
from cachelayer.objects import paths
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import ObjectStore
from cachelayer.versions import attempts, heartbeat

EXPIRY = 3000.0
KILLED_AT = 6000
"""A record after some shards."""
OTHERS: list[dict[str, Any]] = [{"host": "elsewhere"}, {"boot": "another"}, {"namespace": 1}, {}]
"""What a beat says of a process whose end cannot be seen from here."""


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
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=clock.monotonic))
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

    def was_of(self, **other: Any) -> None:
        """Change what the beat says of the process."""
        name = paths.build_lease("rows", self.attempt)
        beat = json.loads(self.store.read(name) or b"")
        beat["process"] = {**beat["process"], **other} if other else None
        self.store.put(name, json.dumps(beat).encode())

    def check(self, ref: cachelayer.DataRef[Any]) -> None:
        """Its shards were used by another build, and nothing else of it is left."""
        assert self.attempt in ref._base.version.manifest.attempts
        assert len(ref) == resume_child.RECORDS
        assert self.store.names("rows/_running") == []
        assert self.store.names("rows/_leases/v1") == []


@pytest.fixture
def killed(server: Server) -> Killed:
    url, options = server.url(new_bucket(server), "a/prefix"), server.storage_options()
    assert resume_child.run(url, options, "generator", KILLED_AT) == -9
    store = open_store(url, options)
    (attempt,) = store.names("rows/_running")
    return Killed(url, options, store, attempt)


def test_a_builder_that_was_killed_on_this_host_is_not_waited_for(
    killed: Killed, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    killed.check(killed.cache())
    assert clock.pauses == 0
    assert "waiting" not in capfd.readouterr().err


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("server", "other"),
    [*(("gcs", other) for other in OTHERS), *(("s3", other) for other in some(OTHERS))],
    indirect=["server"],
)
def test_a_builder_that_was_killed_elsewhere_is_waited_for_once_and_it_is_said(
    killed: Killed, clock: Clock, capfd: pytest.CaptureFixture[str], other: dict[str, Any]
) -> None:
    killed.was_of(**other)
    killed.check(killed.cache())
    assert EXPIRY <= clock.seconds <= 1.2 * EXPIRY
    said = [line for line in capfd.readouterr().err.splitlines() if "waiting" in line]
    assert len(said) == 1
    assert said[0].startswith("rows@v1: waiting for process ")
    assert "taken for dead after 3000 s without a sign of life" in said[0]
