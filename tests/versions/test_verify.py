"""Damage is found: by verify, and where a damaged record is read."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import examples

import cachelayer
from cachelayer import Storage

ROWS = [{"n": number, "x": np.full(300, number % 251, np.uint8)} for number in range(400)]


@pytest.fixture(params=[None, "zstd"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    Storage(tmp_path).submit(ROWS, "d@v1", shard_bytes=60_000, compression=request.param)
    return tmp_path


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(f"d/{pattern}"))


def flip(path: Path, place: int, bit: int = 2) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1 << bit
    replace(path, bytes(raw))


def replace(path: Path, raw: bytes) -> None:
    """Write a file anew: a stream that was not read to its end may still read the one that it has mapped."""
    path.unlink()
    path.write_bytes(raw)


def test_a_version_as_it_was_written_verifies(folder: Path) -> None:
    report = Storage(folder).verify("d@v1")
    assert report
    assert report.ok
    assert (report.records, report.problems) == (400, ())
    assert report.shards == len(files(folder, "shards/*.array_record")) > 1
    report.raise_if_bad()
    always = Storage(folder, verify="always").fetch("d@v1")
    assert [row["n"] for row in always] == list(range(400))


@pytest.mark.parametrize(
    ("suffix", "verify"), [("array_record", "never"), ("array_record", "always"), ("index", "open")]
)
def test_a_shard_that_was_cut_short_is_refused_before_it_is_mapped(folder: Path, suffix: str, verify: Any) -> None:
    path = files(folder, f"shards/*.{suffix}")[0]
    path.write_bytes(path.read_bytes()[:-100])
    ref = Storage(folder, verify=verify).fetch("d@v1")
    with pytest.raises(cachelayer.CorruptionError, match=path.name):
        list(ref)
    report = ref[1:].verify(progress=False)
    assert report == Storage(folder).verify("d@v1")
    assert not report
    assert path.name in report.problems[0]


def test_a_manifest_that_was_changed_is_refused(folder: Path) -> None:
    path = files(folder, "manifests/*.json")[0]
    whole = path.read_bytes()
    for raw in (whole.replace(b"provenance", b"Provenance"), whole[:-50], None):
        path.unlink()
        if raw is not None:
            path.write_bytes(raw)
        with pytest.raises(cachelayer.CorruptionError, match="'v1'" if raw else "missing"):
            Storage(folder).fetch("d@v1")
        assert not Storage(folder).verify("d@v1")


@pytest.mark.slow
@pytest.mark.sampled
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    rows = [{"n": number, "text": "x" * number} for number in range(30)]
    Storage(tmp_path).submit(rows, "d@v1")
    chance = random.Random(5)
    for path in [*files(tmp_path, "shards/*"), *files(tmp_path, "manifests/*")]:
        whole = path.read_bytes()
        for place in chance.sample(range(len(whole)), examples(120)):
            flip(path, place, chance.randrange(8))
            assert not Storage(tmp_path).verify("d@v1"), (path.name, place)
            try:
                ref = Storage(tmp_path, verify="always").fetch("d@v1")
                assert [row["text"] for row in ref] == [row["text"] for row in rows]
            except (cachelayer.CorruptionError, cachelayer.FormatError):
                pass
            replace(path, whole)
    assert Storage(tmp_path).verify("d@v1")


def test_the_damaged_record_is_refused_and_no_other(tmp_path: Path) -> None:
    Storage(tmp_path).submit(ROWS, "d@v1")
    (path,) = files(tmp_path, "shards/*.array_record")
    flip(path, path.read_bytes().index(bytes([77]) * 300) + 150)
    ref = Storage(tmp_path, verify="always").fetch("d@v1")
    for number in range(len(ref)):
        # The payload of a record repeats after 251.
        if number == 77:
            for read in (lambda: ref[77], lambda: ref.read([76, 77]), lambda: list(ref.stream(400))):
                with pytest.raises(cachelayer.CorruptionError, match=f"{path.name}: record 77 .*checksum"):
                    read()
        else:
            assert ref[number]["x"].tolist() == ROWS[number]["x"].tolist()
    assert "record 77" in Storage(tmp_path).verify("d@v1").problems[0]


@pytest.mark.parametrize("verify", ["never", "open", "always"])
def test_a_position_outside_the_file_is_never_read(tmp_path: Path, verify: Any) -> None:
    Storage(tmp_path).submit([b"x" * number for number in range(100)], "d@v1")
    path = files(tmp_path, "shards/*.index")[0]
    whole = path.read_bytes()
    for place in (7, 5, 4):
        path.write_bytes(whole)
        flip(path, 16 * 51 + place, 7)
        ref = Storage(tmp_path, verify=verify).fetch("d@v1")
        for read in (lambda ref: ref.read([50]), lambda ref: ref[50]):
            with pytest.raises(cachelayer.CorruptionError):
                read(ref)


def test_records_of_all_sizes_are_checked(tmp_path: Path) -> None:
    records = [b"", *(bytes(size) for size in (1, 70_000, 0, 3, 5_000_000, 2)), *([b"x"] * 3000)]
    for version, compression in (("v1", None), ("v2", "zstd")):
        Storage(tmp_path).submit(records, f"d@{version}", compression=compression)
        assert Storage(tmp_path).verify(f"d@{version}").records == len(records)
    Storage(tmp_path).submit([], "d@v3", element_spec=bytes, allow_empty=True)
    assert Storage(tmp_path).verify("d@v3").ok
