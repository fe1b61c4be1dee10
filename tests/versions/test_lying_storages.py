"""A storage that states the digest of a version and holds other bytes: what is copied from it is proved first."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

import cachelayer
from cachelayer import CorruptionError, Storage
from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.lengths import encode_lengths
from cachelayer.provenance.environment import event
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.log import Log
from cachelayer.versions.publish import NewVersion, publish
from cachelayer.versions.shard_table import ShardFile

ROWS: dict[str, list[Any]] = {
    "plain": [0, 1, 2],
    "text": [{"text": "a", "n": 1}, {"text": "bb", "n": 2}],
}


def other(row: Any) -> Any:
    return {**row, "n": row["n"] + 1000} if isinstance(row, dict) else row + 1000


def build(folder: Path, rows: list[Any], *, columns: bool, compression: Any) -> Storage:
    storage = Storage(folder)
    storage.submit(rows, "d@v1", compression=compression)
    if columns:
        storage.add_columns("d@v1", "wide", {"more": np.full(len(rows), rows[0]["n"])})
    return storage


def with_claims_of(file: Any, honest: Any, raw: dict[str, bytes]) -> Any:
    """A file of a liar: its own bytes and checksums, the SHA-256 of an honest file, and an index that agrees."""
    if isinstance(file, ColumnFile):
        return replace(file, sha256=honest.sha256)
    sha256 = honest.stats.sha256
    raw["index"] = index.identity_of(sha256) + raw["index"][index.IDENTITY_NBYTES :]
    stats = replace(file.stats, sha256=sha256, index_crc32c=google_crc32c.value(raw["index"]))
    if "lengths" in raw and stats.lengths_crc32c is not None:
        stats = replace(stats, lengths_crc32c=google_crc32c.value(raw["lengths"]))
    return ShardFile(stats, file.generation)


def publish_lie(
    storage: Storage, honest: Storage, version: str, change: Callable[[Any, Any, dict[str, bytes]], Any]
) -> None:
    """Publish a version anew, each file of which states what the honest one states, and is what ``change`` returns."""
    stored = storage.fetch(f"d@{version}")._base.version
    truth = honest.fetch(f"d@{version}")._base.version.manifest
    files = []
    for file, true in zip(stored.manifest.files, truth.files, strict=True):
        names = [blob.name for blob in file.blobs]
        raw = {name.rpartition(".")[2]: storage._store.read(f"d/{name}") or b"" for name in names}
        lie = change(file, true, raw)
        for name in [blob.name for blob in lie.blobs]:
            storage._store.put(f"d/{name}", raw[name.rpartition(".")[2]])
        files.append(lie)
    storage.delete(f"d@{version}", grace=1e9)
    log = Log(storage._catalog.dataset("d"))
    manifest = stored.manifest.with_files(files)
    published = event("publish", version=version)
    publish(log, NewVersion(version, manifest, published))
    assert storage.fetch(f"d@{version}").digest == honest.fetch(f"d@{version}").digest


CASES = [("plain", "v1", None), ("plain", "v1", "zstd"), ("text", "v1", None), ("text", "wide", None)]


@pytest.fixture(params=CASES, ids=str)
def lie(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, Storage, str]:
    """An honest storage, a liar, and the version."""
    rows, version, compression = request.param
    options: Any = {"columns": version == "wide", "compression": compression}
    honest = build(tmp_path / "honest", ROWS[rows], **options)
    liar = build(tmp_path / "liar", list(map(other, ROWS[rows])), **options)
    publish_lie(liar, honest, version, with_claims_of)
    return honest, liar, version


def plain(ref: Any) -> list[Any]:
    return [{**row} if isinstance(row, dict) else int(row) for row in ref]


def test_only_verify_proves_what_a_storage_serves(lie: tuple[Storage, Storage, str]) -> None:
    honest, liar, version = lie
    assert plain(liar.fetch(f"d@{version}")) != plain(honest.fetch(f"d@{version}"))
    report = liar.verify(f"d@{version}")
    assert not report
    assert report.damaged


def test_a_lie_is_not_copied_into_an_empty_storage(lie: tuple[Storage, Storage, str], tmp_path: Path) -> None:
    honest, liar, version = lie
    to = Storage(tmp_path / "to")
    with pytest.raises(CorruptionError, match=liar.url):
        liar.copy(f"d@{version}", to)
    assert to.datasets() == []
    # What the liar left is in nobody's way.
    copy = honest.copy(f"d@{version}", to)
    assert plain(copy) == plain(honest.fetch(f"d@{version}"))
    assert to.verify(f"d@{version}")


@pytest.mark.parametrize("lost", ["shard", "shard and manifest", "manifest"])
def test_a_lie_heals_nothing(lie: tuple[Storage, Storage, str], tmp_path: Path, lost: str) -> None:
    honest, liar, version = lie
    expected = plain(honest.fetch(f"d@{version}"))
    victim = Storage(tmp_path / "victim")
    honest.copy(f"d@{version}", victim)
    before = victim.fetch(f"d@{version}")._base.version
    names = [before.manifest.files[-1].name] if "shard" in lost else []
    names += [f"manifests/{path.name}" for path in (tmp_path / "victim/d/manifests").iterdir() if "manifest" in lost]
    for name in names:
        (tmp_path / "victim/d" / name).unlink()
    for heal in (lambda: victim.repair(f"d@{version}", from_=liar), lambda: liar.copy(f"d@{version}", victim)):
        with pytest.raises(CorruptionError, match=liar.url):
            heal()
    assert victim.repair(f"d@{version}", from_=honest)
    assert victim.verify(f"d@{version}")
    assert plain(victim.fetch(f"d@{version}")) == expected


def test_lengths_and_places_that_are_not_those_of_the_records_are_found(tmp_path: Path) -> None:
    """Windows are cut by lengths. Records of one size are read where arithmetic says, or where the index does."""
    rows = [{"tokens": np.arange(number)} for number in (3, 1)]
    honest = Storage(tmp_path / "honest")
    honest.submit(rows, "d@v1")
    honest.submit([*map(np.int64, range(4))], "d@v2")

    def other_lengths(file: Any, true: Any, raw: dict[str, bytes]) -> Any:
        raw["lengths"], lengths = encode_lengths(np.array([[2], [2]], np.uint32))
        sums = {"length_crc32cs": tuple(lengths.checksums), "length_totals": tuple(lengths.totals)}
        return with_claims_of(ShardFile(replace(file.stats, **sums), file.generation), true, raw)

    def other_places(file: Any, true: Any, raw: dict[str, bytes]) -> Any:
        table = index.rows_of(raw["index"]).copy()
        table["position"][[1, 2]] = table["position"][[2, 1]]
        raw["index"] = raw["index"][: index.IDENTITY_NBYTES] + table.tobytes()
        return with_claims_of(file, true, raw)

    for version, change in (("v1", other_lengths), ("v2", other_places)):
        liar = Storage(tmp_path / f"liar-{version}")
        honest.copy(f"d@{version}", liar)
        publish_lie(liar, honest, version, change)
        assert not liar.verify(f"d@{version}")
        with pytest.raises(CorruptionError, match=liar.url):
            liar.copy(f"d@{version}", Storage(tmp_path / "to"))
    assert cachelayer.Storage(tmp_path / "to").datasets() == []
