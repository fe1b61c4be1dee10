"""A damaged or missing file is whole again after whatever puts its records: a build, a copy, a rewrite, a repair."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import pairwise
from servers import new_storage

import cachelayer
from cachelayer import Storage
from cachelayer.objects import paths
from cachelayer.versions.snapshot import manifest_stem

ROWS = [{"n": number, "text": "x" * (number % 5), "x": np.full(100, number % 251, np.uint8)} for number in range(50)]
OPTIONS: dict[str, Any] = {"shard_bytes": 9_000}


@dataclass(frozen=True)
class Place:
    """A storage whose version is damaged, and another with the same versions."""

    storage: Storage
    whole: Storage


def copy_again(place: Place) -> None:
    for version in ("v1", "w"):
        place.whole.copy(f"d@{version}", place.storage)


def copy_under_another_name(place: Place) -> None:
    place.whole.copy("d@w", place.storage, new="copied")


def delete_and_copy(place: Place) -> None:
    place.storage.delete("d@v1", grace=0)
    copy_under_another_name(place)


def delete_and_build(place: Place) -> None:
    """Another version shares the shards, so they stay; those of this build have names of a later generation."""
    place.storage.delete("d@v1", grace=0)
    place.storage.submit(ROWS, "d@v1", **OPTIONS)


MEND: dict[str, Callable[[Place], object]] = {
    "submit": lambda place: place.storage.submit(ROWS, "d@v2", **OPTIONS),
    "delete and build": delete_and_build,
    "rewrite": lambda place: place.storage.rewrite(place.whole.fetch("d@v1"), "d@r2", **OPTIONS),
    "append": lambda place: place.storage.append("d@empty", "v2", ROWS, **OPTIONS),
    "copy again": copy_again,
    "copy under another name": copy_under_another_name,
    "delete and copy": delete_and_copy,
    "repair": lambda place: place.storage.repair("d@v1", from_=place.whole),
}
DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :],
    "cut": lambda raw: raw[:-7],
    "missing": lambda raw: None,
}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Versions: one of a few shards, one that keeps some of their records, one with added columns, an empty one."""
    kind = request.param
    if kind == "disk":
        storage = Storage(tmp_path / "storage")
    elif kind == "memory":
        storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path / "copies")
    else:
        storage = new_storage(request.getfixturevalue(kind), local_cache=tmp_path / "copies")
    whole = Storage(tmp_path / "whole")
    for each in (storage, whole):
        each.submit([], "d@empty", element_spec={"n": int}, allow_empty=True)
        each.submit(ROWS, "d@v1", **OPTIONS)
        each.derive("d@v1", "w", keep=[3, 1, *range(20, 50)])
    return Place(storage, whole)


def damage(storage: Storage, version: str, suffix: str, change: Callable[[bytes], bytes | None]) -> str:
    stored = storage.fetch(f"d@{version}")._base.version
    files = [*(blob.name for blob in stored.manifest.files[-1].blobs), paths.kept_numbers(manifest_stem(stored.info))]
    store, name = storage._store, f"d/{next(name for name in files if name.endswith(suffix))}"
    raw = change(store.read(name) or b"")
    store.delete(name)
    if raw is not None:
        store.put(name, raw)
    return name


SUFFIXES = [".array_record", ".index", ".lengths"]
CASES = [
    *pairwise(["disk", "memory"], list(MEND), list(DAMAGE), SUFFIXES),
    *(
        (store, how, "flipped", ".array_record")
        for store in ("s3", "gcs", "azure")
        for how in ("submit", "copy again", "repair")
    ),
]


@pytest.mark.parametrize(("place", "how", "kind", "suffix"), CASES, indirect=["place"])
def test_what_puts_the_records_again_mends_every_version_that_shares_them(
    place: Place, how: str, kind: str, suffix: str
) -> None:
    damaged = "r" if how == "rewrite" else "v1"
    if how == "rewrite":
        place.storage.rewrite("d@v1", "r", **OPTIONS)
    name = damage(place.storage, damaged, suffix, DAMAGE[kind])
    report = place.storage.verify(f"d@{damaged}")
    assert not report
    assert f"{place.storage.url}/{name}" in str(report.problems)
    MEND[how](place)
    for version in ["v1"] if how == "delete and build" else place.storage.versions("d"):
        place.storage.verify(f"d@{version}").raise_if_bad()


@pytest.mark.parametrize("place", ["disk", "memory"], indirect=True)
@pytest.mark.parametrize("kind", DAMAGE)
def test_files_of_columns_and_of_kept_records_are_mended_too(place: Place, kind: str) -> None:
    columns = {"more": np.arange(len(ROWS))}
    for storage in (place.storage, place.whole):
        storage.add_columns("d@v1", "c", columns)
    damage(place.storage, "c", ".npy", DAMAGE[kind])
    assert not place.storage.verify("d@c")
    place.storage.add_columns("d@v1", "again", columns)
    place.storage.verify("d@c").raise_if_bad()
    for suffix, version in ((".npy", "c"), (".i64", "w")):
        damage(place.storage, version, suffix, DAMAGE[kind])
        assert not place.storage.verify(f"d@{version}")
        place.whole.copy(f"d@{version}", place.storage)
        place.storage.verify(f"d@{version}").raise_if_bad()


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_damaged_local_copy_is_replaced_by_a_build(place: Place, tmp_path: Path) -> None:
    copies = sorted((tmp_path / "copies").rglob("*.array_record"))
    for path in copies:
        path.write_bytes(DAMAGE["flipped"](path.read_bytes()) or b"")
    place.storage.submit(ROWS, "d@v2", **OPTIONS)
    again = Storage(place.storage.url, local_cache=tmp_path / "copies", verify="always")
    assert [row["n"] for row in again.fetch("d@v1")] == [row["n"] for row in ROWS]
    assert sorted((tmp_path / "copies").rglob("*.array_record")) == copies


@pytest.mark.parametrize("place", ["disk", "memory"], indirect=True)
@pytest.mark.parametrize("how", ["copy", "repair"])
def test_a_file_with_the_same_records_and_other_bytes_takes_the_place_of_a_damaged_one(
    place: Place, tmp_path: Path, how: str
) -> None:
    other = Storage(tmp_path / "other")
    other.submit(ROWS, "d@v1", compression="zstd", **OPTIONS)
    assert other.copy("d@v1", place.storage).digest == place.storage.fetch("d@v1").digest
    before = place.storage.versions("d")["v1"]
    damage(place.storage, "v1", ".array_record", DAMAGE["flipped"])
    other.copy("d@v1", place.storage) if how == "copy" else place.storage.repair("d@v1", from_=other)
    place.storage.verify("d@v1").raise_if_bad()
    after = place.storage.versions("d")["v1"]
    assert (after.digest, after.time, list(place.storage.versions("d"))) == (
        before.digest,
        before.time,
        ["empty", "v1", "w"],
    )
    assert place.storage.history("d")[-1].kind == "repair"
    assert {*place.storage.fetch("d@v1")._base.version.manifest.shards.compressions} == {"none", "zstd"}
    # This version has the damaged file still.
    assert not place.storage.verify("d@w")


@pytest.mark.parametrize("place", ["disk"], indirect=True)
def test_what_is_damaged_in_both_places_is_an_error_and_all_else_is_mended(place: Place) -> None:
    name = damage(place.storage, "v1", ".array_record", DAMAGE["flipped"])
    with pytest.raises(cachelayer.CorruptionError, match=Path(name).name):
        place.storage.copy("d@v1", place.storage, new="copied")
    first = place.storage.fetch("d@v1")._base.version.manifest.shards[0]
    place.storage._store.delete(f"d/{first.name}")
    damage(place.whole, "v1", ".array_record", DAMAGE["cut"])
    with pytest.raises(cachelayer.CorruptionError, match=Path(name).name):
        place.storage.repair("d@v1", from_=place.whole)
    assert place.storage.verify("d@v1").damaged == (name,)
    with pytest.raises(cachelayer.CorruptionError, match=Path(name).name):
        place.whole.copy("d@v1", place.storage)
