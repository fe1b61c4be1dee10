"""What is unfinished or running can be seen, and a dry run of gc changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from commands import invoke
from leftovers import files_below

import cachelayer
from cachelayer import Storage, UnpublishedBuild
from cachelayer.errors import SourceError
from cachelayer.temporary_files import process_name

SHARD_BYTES = 400_000
ROWS = 1000


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    url = str(tmp_path / "s") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return Storage(url, local_cache=None if request.param == "local" else tmp_path / "copies")


def rows(until: int = ROWS, then: Any = None) -> Iterator[Any]:
    for number in range(until):
        yield {"n": number, "x": np.full(2000, number, np.float32)}
    if then is not None:
        then()


def fail() -> None:
    raise OSError("the disk went away")


@contextmanager
def running(storage: Storage, version: str, **options: Any) -> Iterator[None]:
    """A build that has made some shards and waits."""
    waits, go_on = Event(), Event()

    def wait() -> None:
        waits.set()
        go_on.wait(60)

    with ThreadPoolExecutor(1) as threads:
        build = threads.submit(
            storage.submit, lambda: rows(ROWS, wait), "d", version, shard_bytes=SHARD_BYTES, **options
        )
        try:
            assert waits.wait(60)
            yield
        finally:
            go_on.set()
            build.result()


def only(storage: Storage) -> UnpublishedBuild:
    (found,) = storage.builds("d")
    return found


def test_an_interrupted_build_shows_its_shards(storage: Storage) -> None:
    with pytest.raises(SourceError, match="went away"):
        storage.cache(lambda: rows(900, fail), "d", "v1", resume=True, shard_bytes=SHARD_BYTES)
    found = only(storage)
    assert (found.version, found.state, found.can_be_resumed) == ("v1", "interrupted", True)
    assert found.shards > 1
    assert 0 < found.records <= 900
    assert found.nbytes > 8000 * found.records
    assert 0 <= found.idle <= found.age + 1 < 600
    shown = invoke("ls", f"{storage.url}/d").stdout if "memory" not in storage.url else ""
    assert not shown or all(text in shown for text in ("no version of d is published", "interrupted", "ago"))
    storage.submit([1], "d", "v1", resume=False)
    assert storage.builds("d") == []


@pytest.mark.parametrize("resume", [True, False])
def test_a_build_that_runs_is_seen_at_once(storage: Storage, resume: bool) -> None:
    storage.submit([1], "d", "v0")
    with running(storage, "v1", resume=resume):
        found = only(storage)
        while resume and not found.can_be_resumed:
            # Its threads write what was drawn, and tell nobody.
            found = only(storage)
        assert (found.version, found.state) == ("v1", "running")
        assert bool(found.plan) == resume
        assert found.status == process_name()
        assert storage.gc(grace=0) == []
    assert storage.builds("d") == []


def test_a_build_that_has_finished_nothing_is_seen_too(storage: Storage) -> None:
    seen = []

    def source() -> Iterator[Any]:
        seen.append(only(storage))
        yield 1

    storage.submit(source, "d", "v1")
    assert [(each.version, each.state, each.shards, each.plan) for each in seen] == [("v1", "running", 0, "")]


def test_a_silent_build_in_an_object_store_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path)
    with running(storage, "v1"):
        monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "1e-9")
        assert only(storage).state == "unknown"


def test_a_dry_run_names_what_gc_deletes_and_changes_nothing(storage: Storage) -> None:
    storage.submit(rows, "d", "v0")
    storage.submit(rows, "d", "v1")
    storage.append("d", "v1", "v2", rows())
    with pytest.raises(SourceError):
        storage.submit(lambda: rows(900, fail), "d", "v3", resume=True, shard_bytes=SHARD_BYTES)
    storage.delete("d", "v0", grace=1e-6)
    storage.delete("d", "v1")
    history = storage.history("d")
    files = files_below(storage, "d")
    would = storage.gc(grace=0, dry_run=True)
    assert {each.reason.partition(" ")[0] for each in would} == {"version", "no", "the"}
    assert (storage.history("d"), files_below(storage, "d"), len(storage.builds("d"))) == (history, files, 1)
    assert storage.gc(dry_run=True) == [each for each in would if each.reason.startswith("version 'v0'")]
    assert storage.gc(grace=0) == would
    assert storage.gc(grace=0, dry_run=True) == []
    with pytest.raises(cachelayer.InvalidTypeError, match="dry_run"):
        storage.gc(dry_run="yes")  # type: ignore[arg-type]
