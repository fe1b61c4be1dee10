"""How long a build in an object store waits for one that was killed on another host: once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import cachelayer
from cachelayer.versions import claims

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
    monkeypatch.setattr(claims, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: now}))
    monkeypatch.setattr(claims.Claims, "pause", pause)
    storage = cachelayer.Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    with pytest.raises(cachelayer.SourceError):
        storage.cache(rows, "d", "v1", shard_bytes=20_000)
    storage._store.put("d/_builds/v1/claim", b"other-1 token 1")
    assert len(storage.cache(rows, "d", "v1", shard_bytes=20_000, progress=True)) == 5000
    assert storage._store.names("d/_builds/v1") == []
    assert EXPIRY <= now <= 1.2 * EXPIRY
    [said] = [line for line in capfd.readouterr().err.splitlines() if "waiting" in line]
    assert said.startswith("d@v1: waiting for other-1 ")
    assert "3000 s" in said
