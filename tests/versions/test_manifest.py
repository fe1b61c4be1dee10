"""Manifests: columns that are read as they were written, and a digest of the data alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelayer import ArraySpec, CorruptionError, FormatError
from cachelayer.arrayrecord.index import ShardStats
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.records.selection import Selection
from cachelayer.support.json_values import encoded
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.derive import without_records
from cachelayer.versions.manifest import FORMAT, KeptRecords, Manifest
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardFile, ShardTable
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion

SPEC = {"x": ArraySpec("float32", (None,)), "y": [ArraySpec("bool")]}
PLACES = st.sampled_from([None, (8, 98), (70_000, 98)])


def stats_of(
    places: tuple[int, int] | None, lengths: tuple[int, int], records: int, nbytes: int, **others: Any
) -> ShardStats:
    size, first = places or (None, None)
    least = (size or 0) * records + (first or 0)
    total, checksum = lengths
    return ShardStats(
        records,
        max(nbytes, least),
        **others,
        record_nbytes=size,
        first_position=first,
        lengths_crc32c=checksum,
        length_crc32cs=(checksum,),
        length_totals=(total * records,),
    )


STATS = st.builds(
    stats_of,
    PLACES,
    st.tuples(st.integers(0, 2**20), st.integers(0, 2**32 - 1)),
    records=st.integers(0, 2**40),
    nbytes=st.integers(0, 2**40),
    crc32c=st.integers(0, 2**32 - 1),
    sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
    compression=st.sampled_from(["none", "zstd"]),
    index_crc32c=st.integers(0, 2**32 - 1),
)


def version_of(of: Manifest) -> StoredVersion:
    info = VersionInfo("v1", "0" * 64, 0, of.digest, of.records, of.nbytes, "")
    return StoredVersion.with_manifest(LocalStore(Path("d")), info, of)


def some_kept(whole: Manifest) -> list[KeptRecords | None]:
    records, digest = whole.records, whole.unsliced_digest
    every, last = (Selection(range(records)), Selection(range(max(0, records - 1), records, 1)))
    return [
        None,
        KeptRecords(len(last), last.digest(digest, records), max(0, records - 1), -2),
        KeptRecords(records, every.digest(digest, records), 0, 1),
        KeptRecords(0, "ef" * 32),
    ]


SHARDS = st.lists(st.builds(ShardFile, STATS, st.integers(0, 5)), max_size=8)
STAT = ShardStats(3, 100, 7, "ab" * 32, "none", 9, lengths_crc32c=5, length_crc32cs=(1,), length_totals=(7,))


def manifest(count: int = 3) -> Manifest:
    shards = [ShardFile(STAT, generation) for generation in range(count)]
    return Manifest(ShardSet.of("typed/1", SPEC, ShardTable(shards)), {"time": "now"}, "token")


@given(shards=SHARDS, more=SHARDS)
def test_shards_behind_shards_are_all_of_them_in_order(shards: list[ShardFile], more: list[ShardFile]) -> None:
    joined = ShardTable(shards).then(ShardTable(more))
    assert list(joined) == [*shards, *more]
    assert ShardTable.from_json(json.loads(json.dumps(joined.to_json()))) == joined


@given(shards=SHARDS, which=st.integers(0, 3))
def test_a_manifest_is_read_as_it_was_written(shards: list[ShardFile], which: int) -> None:
    table = ShardTable(shards)
    assert list(table) == shards
    records = int(table.records.sum())
    rows, segments = ShardSet.of("typed/1", SPEC, table), (records - 1, 1) if records else ()
    whole = Manifest(rows, {"a": [1, None]}, "token", segments)
    kept = some_kept(whole)[which]
    written = replace(whole, kept=kept)
    again = Manifest.decode(written.encode(), "m")
    assert again == written
    assert (again.digest, again.rows.records) == (written.digest, records)
    assert again.records == (records if kept is None else kept.records)


def test_the_digest_is_of_the_data_alone() -> None:
    base = manifest()

    def with_rows(**changes: Any) -> Manifest:
        return replace(base, rows=replace(base.rows, **changes))

    def with_stats(**changes: Any) -> Manifest:
        changed = replace(base.shards[2], stats=replace(STAT, **changes))
        return with_rows(shards=ShardTable([*base.shards[:2], changed]))

    same = [
        replace(base, provenance={}, token="other"),
        with_rows(shards=ShardTable(replace(shard, generation=9) for shard in base.shards)),
        with_stats(nbytes=1, crc32c=1, index_crc32c=1, compression="zstd"),
        with_stats(lengths_crc32c=3, length_crc32cs=(2,), length_totals=(8,)),
    ]
    other = [
        with_rows(codec="bytes/1"),
        replace(base, rows=base.rows.with_spec(ArraySpec("int8"))),
        with_rows(shards=ShardTable(base.shards[:2])),
        with_stats(records=4),
        with_stats(sha256="cd" * 32),
    ]
    assert {one.digest for one in same} == {base.digest}
    assert len({base.digest, *(one.digest for one in other)}) == len(other) + 1


def test_erasing_records_changes_the_digest_and_names_what_it_replaces() -> None:
    base = replace(manifest(), segments=(4, 5))
    first = without_records(version_of(base), [7, 2], base.sets, "one")
    second = without_records(version_of(first), [2, 4], base.sets, "two")
    assert (first.erased, second.erased) == ((2, 7), (2, 4, 7))
    assert second.supersedes == (base.digest, first.digest)
    assert len({base.digest, first.digest, second.digest}) == 3
    assert [second.reason_of(record) for record in (2, 4, 7, 8)] == ["one", "two", "one", ""]
    assert second.unerased_nbytes == base.nbytes
    for one in (base, first, second):
        assert Manifest.decode(one.encode(), "m") == one
    assert replace(second, supersedes=(), unerased_nbytes=None, provenance={}).digest == second.digest


def test_a_manifest_cut_anywhere_is_refused() -> None:
    raw = manifest().encode()
    for length in range(len(raw)):
        with pytest.raises(CorruptionError, match=r"m\.json: not a whole manifest"):
            Manifest.decode(raw[:length], "m.json")


ARRAY = encoded(ColumnFile(9, 8, 200, "ab" * 32, 7, (7,), 0))
DAMAGE: dict[str, tuple[str, Any]] = {
    "a column too short": ("data.rows.shards.sha256", ["ab" * 32] * 2),
    "a column missing": ("data.rows.shards.crc32c", ...),
    "nested columns": ("data.rows.shards.records", [[3], [3], [3]]),
    "generations of fewer shards": ("data.rows.shards.generations", [0, 1]),
    "a generation that is no number": ("data.rows.shards.generations", [0, "1/../..", 2]),
    "a generation before the first": ("data.rows.shards.generations", [0, -1, 2]),
    "places of fewer shards": ("data.rows.shards.record_nbytes", [8]),
    "records past the end": ("data.rows.shards.record_nbytes", [2**31] * 3),
    "more bytes than there are": ("data.rows.shards.nbytes", [2**62] * 3),
    "an unknown compression": ("data.rows.shards.compression", ["none", "none", "lzma"]),
    "a compression that is no text": ("data.rows.shards.compression", [["none"], "none", "none"]),
    "lengths without a checksum": ("data.rows.shards.length_crc32cs", [[1, None, 1]]),
    "lengths without a file": ("data.rows.shards.lengths_crc32c", [None] * 3),
    "lengths without some files": ("data.rows.shards.lengths_crc32c", [5, None, 5]),
    "lengths less than none": ("data.rows.shards.length_totals", [[7, -1, 7]]),
    "lengths that are no integers": ("data.rows.shards.length_totals", [[7, 7.0, 7]]),
    "segments of other records": ("data.segments", [3, 3]),
    "records kept without a digest": ("data.kept", {"records": 3, "start": 0, "step": 1}),
    "records kept that are not there": ("data.kept", {"records": 3, "start": 8, "step": 1, "digest": "cd" * 32}),
    "records kept with the digest of others": ("data.kept", {"records": 3, "start": 0, "step": 1, "digest": "cd" * 32}),
    "records kept without a step": ("data.kept", {"records": 3, "start": 0, "step": 0, "digest": "cd" * 32}),
    "an erased record that is not there": ("data.erased", [9]),
    "erased records in no order": ("data.erased", [5, 2]),
    "a record erased twice": ("data.erased", [5, 5]),
    "an erased record that is no number": ("data.erased", [True]),
    "erased records that are no list": ("data.erased", 5),
    "a digest superseded that is none": ("supersedes", ["v1"]),
    "less than no bytes": ("unerased_nbytes", -1),
    "a plan that is no hash": ("provenance.plan", 7),
    "a base that is no facts": ("provenance.base", "v1"),
    "options that are a list": ("provenance.options", [1]),
    "an erasure without a reason": ("provenance.erasures", [{"records": [1]}]),
    "no data": ("data", ...),
    "records in an array": ("data.rows.array", ARRAY),
    "no spec": ("data.rows.element_spec", ...),
    "no format": ("format", ...),
}


@pytest.mark.parametrize(("place", "value"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_no_manifest_is_refused(place: str, value: Any) -> None:
    document = json.loads(manifest().encode())
    *folders, name = place.split(".")
    part = document
    for folder in folders:
        part = part[folder]
    if value is ...:
        del part[name]
    else:
        part[name] = value
    with pytest.raises((CorruptionError, FormatError), match=r"m\.json"):
        Manifest.decode(json.dumps(document).encode(), "m.json")


def test_a_manifest_of_a_newer_release_asks_for_an_update() -> None:
    document = json.loads(manifest().encode())
    with pytest.raises(FormatError, match=rf"format {FORMAT + 1}.*update cachelayer"):
        Manifest.decode(json.dumps({**document, "format": FORMAT + 1}).encode(), "m.json")


def test_a_shard_is_named_by_all_of_its_bytes_and_its_generation() -> None:
    changes: list[dict[str, Any]] = [{"sha256": "cd" * 32}, {"nbytes": 101}, {"crc32c": 8}, {"index_crc32c": 8}]
    others = [replace(STAT, **change) for change in [*changes, {"lengths_crc32c": 6}]]
    files = [ShardFile(stats, 0).file for stats in (STAT, *others)] + [ShardFile(STAT, 1).file]
    assert len(set(files)) == len(files)
    assert all(map(paths.is_file, files))
    assert files[-1] == files[0].removesuffix("-0") + "-1"
    assert [blob.name for blob in ShardFile(STAT, 0).blobs] == [
        f"{files[0]}.{end}" for end in ("lengths", "index", "array_record")
    ]
