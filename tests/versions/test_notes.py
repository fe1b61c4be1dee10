"""Notes of builds: what is finished, as long as its files are good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mutations import mutated
from samples import some

from cachelayer.arrayrecord.index import ShardStats
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.support import json_values
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
    log.change(lambda head: head.sweeping({files[0]}, {}))
    assert notes.finished(log).keys() == notes.finished(log, PARTS).keys() == {2, 100_000}
    # Those under another generation are not the ones that are named here.
    log.change(lambda head: head.sweeping({files[2].removesuffix("-1") + "-0"}, {}))
    assert 2 in notes.finished(log)
    log.change(lambda head: head.sweeping({files[2], files[100_000]}, {}))
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
