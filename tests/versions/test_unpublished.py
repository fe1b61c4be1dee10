"""What is unfinished or running can be seen, and a dry run of gc changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from leftovers import files_below

import cachelayer
from cachelayer import Storage, UnpublishedBuild
from cachelayer.errors import SourceError
from cachelayer.support.host import process_name

SHARD_BYTES = 400_000
ROWS = 1000


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    url = str(tmp_path / "s") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return Storage(url, local_cache=None if request.param == "local" else tmp_path / "copies")


def row(number: int) -> dict[str, Any]:
    return {"n": number, "x": np.full(2000, number, np.float32)}


class Rows:
    """Rows by number; the last one is asked for after something else is done.

    Args:
        then: what is done.
    """

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Any]:
        # The last record is one of those that a plan compares, before anything is built.
        if number == ROWS - 2:
            self.then()
        return row(number)


def fail() -> None:
    raise OSError("the disk went away")


def only(storage: Storage) -> UnpublishedBuild:
    (found,) = storage.builds("d")
    return found


def test_an_interrupted_build_shows_its_shards(storage: Storage) -> None:
    with pytest.raises(SourceError, match="went away"):
        storage.cache(Rows(fail), "d@v1", resume=True, shard_bytes=SHARD_BYTES)
    found = only(storage)
    assert (found.version, found.state, found.status) == ("v1", "interrupted", "")
    assert found.shards > 1
    assert 0 < found.done < ROWS
    assert 0 <= found.idle < 600
    shown = invoke("ls", f"{storage.url}/d").stdout if "memory" not in storage.url else ""
    assert not shown or all(text in shown for text in ("no version of d is published", "interrupted", "idle"))
    storage.submit([1], "d@v1", resume=False)
    assert storage.builds("d") == []


@pytest.mark.parametrize("resume", [True, False])
def test_a_build_that_runs_is_seen_at_once(storage: Storage, resume: bool) -> None:
    def look() -> None:
        found = only(storage)
        assert (found.version, found.state, found.status) == ("v1", "running", process_name())
        while resume and not found.shards:
            # Its threads write what was drawn, and tell nobody.
            found = only(storage)
        assert storage.gc(grace=0) == []

    storage.submit(Rows(look), "d@v1", shard_bytes=SHARD_BYTES, resume=resume)
    assert storage.builds("d") == []


def test_a_silent_build_in_an_object_store_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path)
    storage._store.put("d/_builds/v1/claim", b"other-1 token 1")
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "1e-9")
    assert only(storage).state == "unknown"


def test_a_dry_run_names_what_gc_deletes_and_changes_nothing(storage: Storage) -> None:
    rows = list(map(row, range(ROWS)))
    storage.submit(rows, "d@v0")
    storage.submit(rows, "d@v1")
    storage.append("d@v1", "v2", rows)
    with pytest.raises(SourceError):
        storage.submit(Rows(fail), "d@v3", resume=True, shard_bytes=SHARD_BYTES)
    storage.delete("d@v0", grace=1e-6)
    storage.delete("d@v1")
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
