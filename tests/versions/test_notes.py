"""Builds that are not published: their notes, what is told of them, and what gc deletes."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from leftovers import files_below
from mutations import mutated
from samples import some

import cachelayer
from cachelayer import Storage, UnpublishedBuild
from cachelayer.arrayrecord.index import ShardStats
from cachelayer.errors import SourceError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.support import json_values
from cachelayer.support.host import process_name
from cachelayer.versions.log import Log
from cachelayer.versions.notes import Notes, PartResult, noted_numbers, read_part
from cachelayer.versions.shard_table import ShardFile

STATS = ShardStats(4, 300, 7, "ab" * 32, "none", 9, 8, 98, 4, (5, 6), (9, 2))
PARTS = {
    number: PartResult((ShardFile(replace(STATS, crc32c=number), generation),), frozenset({0}), 5, 1, ("what",))
    for number, generation in ((0, 0), (2, 1), (100_000, 0))
}


def notes_of(folder: Path, **plan: Any) -> Notes:
    return Notes(LocalStore(folder / "d"), "v1", plan)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    made = notes_of(tmp_path, shard_bytes=1)
    made.begin()
    for number, part in PARTS.items():
        add(made, number, part)
    return made


def add(notes: Notes, number: int, part: PartResult) -> None:
    """Note a part whose files are there."""
    for blob in part.shards[0].blobs:
        notes.dataset.put(blob.name, bytes(blob.nbytes))
    notes.add(number, part)


def test_what_is_noted_is_read_again_by_builds_with_the_same_plan(notes: Notes, tmp_path: Path) -> None:
    again, log = notes_of(tmp_path, shard_bytes=1), Log(notes.dataset)
    assert again.finished(log) == PARTS
    assert noted_numbers(again.folder) == set(PARTS)
    assert [read_part(again.folder, number) for number in (0, 1)] == [PARTS[0], None]
    assert (PARTS[0].records, PARTS[0].nbytes) == (4, 300)
    other = notes_of(tmp_path, shard_bytes=2)
    assert other.finished(log) == {}
    assert other.other_plans() == {notes.folder.name: {"shard_bytes": 1}}
    assert again.other_plans() == {}
    other.delete_all()
    assert again.finished(log) == {}


def test_notes_whose_files_were_deleted_do_not_count(notes: Notes) -> None:
    log = Log(notes.dataset)
    files = {number: part.shards[0].file for number, part in PARTS.items()}
    log.commit(lambda head: head.sweeping({files[0]}, {}))
    assert notes.finished(log).keys() == notes.finished(log, PARTS).keys() == {2, 100_000}
    # Those under another generation are not the ones that are named here.
    log.commit(lambda head: head.sweeping({files[2].removesuffix("-1") + "-0"}, {}))
    assert 2 in notes.finished(log)
    log.commit(lambda head: head.sweeping({files[2], files[100_000]}, {}))
    assert notes.finished(log) == {}
    add(notes, 0, replace(PARTS[0], shards=(replace(PARTS[0].shards[0], generation=3),)))
    assert notes.finished(log).keys() == {0}


def test_notes_whose_files_are_not_there_do_not_count(notes: Notes) -> None:
    log, names = Log(notes.dataset), [blob.name for number in (0, 2) for blob in PARTS[number].shards[0].blobs]
    notes.dataset.delete(names[0])
    assert notes.finished(log).keys() == {2, 100_000}
    notes.dataset.put(names[-1], b"cut")
    assert notes.finished(log).keys() == {100_000}


@pytest.mark.sampled
def test_damaged_notes_are_read_as_none(notes: Notes, tmp_path: Path) -> None:
    log = Log(notes.dataset)
    other = notes_of(tmp_path, shard_bytes=2)
    for name in ("plan.json", "00002.json"):
        raw = notes.folder.read(name) or b""
        # Somebody who can write there may seal anything.
        others = [json_values.sealed(document) for _, document in some(list(mutated(json_values.unsealed(raw))))]
        flipped = [raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :] for place in some(range(len(raw)))]
        for each in (b"", raw[:-1], b"\xff", b"[" * 100_000, *flipped, *others):
            notes.folder.put(name, each)
            found = notes.finished(log)
            # The name of the folder says which plan the notes are of.
            left = PARTS if name == "plan.json" else (0, 100_000)
            assert (each in others and name != "plan.json") or found == {number: PARTS[number] for number in left}
            assert found[0] == PARTS[0]
            assert all(paths.is_file(shard.file) for part in found.values() for shard in part.shards)
            other.other_plans()
        notes.folder.put(name, raw)
    assert notes.finished(log) == PARTS


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
