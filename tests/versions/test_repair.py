"""``storage.repair``: what it finds, where it fetches from, what it refuses, and who is at work meanwhile."""

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leftovers import stored_files

import cachelayer
from cachelayer import Storage
from cachelayer.objects.local import LocalStore
from cachelayer.versions.snapshot import manifest_objects

ROWS = [{"n": number, "text": "x" * (number % 5), "x": np.full(100, number % 251, np.uint8)} for number in range(50)]
OPTIONS: dict[str, Any] = {"shard_bytes": 2_000}
VERSIONS = ("v1", "kept", "columns")


def fill(storage: Storage) -> Storage:
    """Publish a version of a few shards, some of its records, and the same with more columns."""
    storage.submit(ROWS, "d@v1", description="rows", **OPTIONS)
    storage.derive("d@v1", "kept", keep=[3, 1, *range(20, 50)])
    storage.add_columns("d@v1", "columns", {"more": np.arange(len(ROWS))})
    storage.tag("d@v1", "best")
    return storage


@pytest.fixture
def whole(tmp_path: Path) -> Storage:
    """The same versions, built in another storage: other manifests, the same digests."""
    return fill(Storage(tmp_path / "whole"))


@pytest.fixture(params=["disk", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    place = tmp_path / "storage" if request.param == "disk" else f"memory://{uuid.uuid4().hex}"
    return fill(Storage(place, local_cache=tmp_path / "copies"))


def change(storage: Storage, name: str, raw: bytes | None) -> None:
    storage._store.delete(name)
    if raw is not None:
        storage._store.put(name, raw)


def damage(storage: Storage, name: str) -> str:
    raw = storage._store.read(name) or b""
    change(storage, name, raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :])
    return name


def objects_of(storage: Storage, version: str) -> list[str]:
    """All objects of a version, relative to the storage."""
    stored = storage.fetch(f"d@{version}")._base.version
    beside = manifest_objects(stored.info)
    files = [blob.name for file in stored.manifest.files for blob in file.blobs]
    return [f"d/{name}" for name in (*beside, *files) if storage._store.stat(f"d/{name}")]


def contents(storage: Storage) -> dict[str, bytes | None]:
    names = {f"d/{name}" for name in stored_files(storage)}
    return {name: storage._store.read(name) for name in names}


@pytest.mark.parametrize("version", VERSIONS)
def test_three_damaged_objects_are_found_named_and_repaired(storage: Storage, whole: Storage, version: str) -> None:
    expected = [row["n"] for row in whole.fetch(f"d@{version}")]
    names = objects_of(storage, version)[-3:]
    damage(storage, names[0])
    change(storage, names[1], None)
    damage(storage, names[2])
    report = storage.verify(f"d@{version}")
    assert sorted(report.damaged) == sorted(names)
    with pytest.raises(cachelayer.CorruptionError, match=r"storage\.repair"):
        report.raise_if_bad()
    before = contents(storage)
    found = storage.repair(f"d@{version}", dry_run=True)
    assert (found.ok, found.repaired, {each.name for each in found.damaged}) == (False, False, {*names})
    assert {each.name: each.problem for each in found.damaged}[names[1]] == "missing"
    assert contents(storage) == before
    repaired = storage.repair(f"d@{version}", from_=whole)
    assert (repaired.ok, repaired.repaired, repaired.damaged) == (True, True, found.damaged)
    assert json.loads(json.dumps(repaired.to_json()))["source"] == whole.fetch(f"d@{version}").reference
    storage.verify(f"d@{version}").raise_if_bad()
    assert [row["n"] for row in storage.fetch(f"d@{version}")] == expected
    again = storage.repair(f"d@{version}", from_=whole.url)
    assert (again.ok, again.repaired, again.damaged) == (True, False, ())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", range(4))
def test_every_object_of_a_version_can_be_repaired(storage: Storage, whole: Storage, version: str, place: int) -> None:
    """The manifest too: the one that is made anew has the same digest, under the same name, time and tag."""
    name = objects_of(storage, version)[place]
    info, tags = storage.versions("d")[version], storage.tags("d")
    open_before = storage.fetch(f"d@{version}")
    for is_missing in (False, True):
        damage(storage, name)
        if is_missing:
            change(storage, name, None)
        is_bundle = name.endswith(".indices")
        assert bool(storage.verify(f"d@{version}")) is (is_bundle and storage._store.stat(name) is None)
        storage.repair(f"d@{version}", from_=whole.fetch(f"d@{version}"))
        storage.verify(f"d@{version}").raise_if_bad()
        after = storage.versions("d")[version]
        assert (after.digest, after.time, after.records) == (info.digest, info.time, info.records)
        assert (list(storage.versions("d")), storage.tags("d")) == (list(VERSIONS), tags)
        assert [row["n"] for row in storage.fetch(f"d@{version}")] == [row["n"] for row in open_before]
        name = objects_of(storage, version)[place]
    assert storage.gc(grace=0.0) is not None
    for each in VERSIONS:
        storage.verify(f"d@{each}").raise_if_bad()


def test_a_manifest_comes_back_byte_for_byte_from_a_copy_of_the_folder(tmp_path: Path) -> None:
    storage = fill(Storage(tmp_path / "storage"))
    shutil.copytree(tmp_path / "storage", tmp_path / "backup")
    before = contents(storage)
    for name in objects_of(storage, "kept"):
        damage(storage, name)
    report = storage.repair("d@kept", from_=tmp_path / "backup")
    assert {each.name for each in report.damaged} == {*objects_of(storage, "kept")}
    assert contents(storage) == before


def test_a_sync_of_the_log_and_then_of_the_rest_is_whole_though_others_publish_meanwhile(tmp_path: Path) -> None:
    storage = fill(Storage(tmp_path / "storage"))
    shutil.copytree(tmp_path / "storage/d/_log", tmp_path / "backup/d/_log")
    storage.submit(ROWS[:7], "d@later")
    shutil.copytree(
        tmp_path / "storage",
        tmp_path / "backup",
        ignore=shutil.ignore_patterns("_log", "_builds", "_tmp"),
        dirs_exist_ok=True,
    )
    backup = Storage(tmp_path / "backup")
    assert (list(backup.versions("d")), backup.tags("d")) == (list(VERSIONS), {"best": "v1"})
    assert [event.kind for event in backup.history("d")] == ["publish", "publish", "publish", "tag"]
    for version in VERSIONS:
        backup.verify(f"d@{version}").raise_if_bad()


def test_a_lost_manifest_and_damaged_shards_are_repaired_together(storage: Storage, whole: Storage) -> None:
    names = objects_of(storage, "v1")
    for name in (names[0], names[-1], names[-3]):
        damage(storage, name)
    report = storage.repair("d@v1", from_=f"{whole.url}/d@best")
    assert {each.name for each in report.damaged} == {names[0], names[-1], names[-3]}
    name, opened = objects_of(storage, "v1")[0], storage.fetch("d@v1")
    for missing in (name, names[-1]):
        change(storage, missing, None)
    storage.repair("d@v1", from_=whole)
    for version in VERSIONS:
        storage.verify(f"d@{version}").raise_if_bad()
    assert opened[0]["n"] == 0
    # What was opened before says what to do if its own files go.
    stored = opened._base.version
    with pytest.raises(cachelayer.VersionNotFoundError, match="repaired"), stored.reporting_deletion():
        raise cachelayer.CorruptionError("gone")


def test_what_has_other_records_is_refused_and_nothing_is_put(storage: Storage, whole: Storage, tmp_path: Path) -> None:
    other = Storage(tmp_path / "other")
    other.submit(ROWS[:-1], "d@v1", **OPTIONS)
    damage(storage, objects_of(storage, "v1")[-1])
    before = contents(storage)
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (cachelayer.DigestMismatchError, {"from_": other}),
        (cachelayer.DigestMismatchError, {"from_": other.fetch("d@v1")}),
        (cachelayer.DigestMismatchError, {"from_": whole.fetch("d@kept")}),
        (cachelayer.DigestMismatchError, {"from_": whole.fetch("d@v1")[:3]}),
        (cachelayer.DatasetNotFoundError, {"from_": tmp_path / "nothing"}),
        (cachelayer.VersionNotFoundError, {"from_": f"{whole.url}/d@none"}),
        (cachelayer.InvalidArgumentError, {}),
        (cachelayer.InvalidTypeError, {"from_": 7}),
        (cachelayer.UnknownOptionError, {"from_": whole, "shards": 3}),
        (cachelayer.UnknownOptionError, {"source": ROWS}),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            storage.repair("d@v1", **arguments)
    assert contents(storage) == before


def test_damaged_local_copies_are_removed(tmp_path: Path) -> None:
    storage = fill(Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path / "copies"))
    whole = fill(Storage(tmp_path / "whole"))
    storage.fetch("d@v1").mirror()
    copies = sorted(tmp_path.glob("copies/*/*.array_record"))
    copies[0].write_bytes(b"?" * copies[0].stat().st_size)
    assert storage.repair("d@v1", dry_run=True).local_copies == (str(copies[0]),)
    report = storage.repair("d@v1", from_=whole)
    assert (report.local_copies, report.damaged, copies[0].exists()) == ((str(copies[0]),), (), False)
    assert [row["n"] for row in storage.fetch("d@v1")] == list(range(50))


def test_what_a_newer_release_wrote_is_not_taken_for_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, whole = Storage(tmp_path / "storage"), Storage(tmp_path / "whole")
    whole.submit(ROWS, "d@v1")
    with monkeypatch.context() as newer:
        newer.setattr("cachelayer.versions.manifest.FORMAT", 2)
        storage.submit(ROWS, "d@v1")
    report, before = storage.verify("d@v1"), contents(storage)
    assert (report.ok, report.damaged) == (False, ())
    for repair in (lambda: storage.repair("d@v1", from_=whole), lambda: whole.copy("d@v1", storage)):
        with pytest.raises(cachelayer.FormatError, match="update cachelayer"):
            repair()
    assert contents(storage) == before


class Meanwhile(LocalStore):
    """A store in which something happens before the first file of it is sent elsewhere."""

    def __init__(self, root: Path, happens: Callable[[], object]) -> None:
        super().__init__(root)
        self._happens: Callable[[], object] | None = happens

    def download(self, name: str, path: Path, nbytes: int) -> int:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return super().download(name, path, nbytes)


@pytest.mark.parametrize("what", ["delete", "erase", "gc"])
def test_what_is_deleted_or_erased_meanwhile_does_not_come_back(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, whole = (Storage(tmp_path / name) for name in ("storage", "whole"))
    for each in (storage, whole):
        each.submit(ROWS, "d@v1", **OPTIONS)
    ref = whole.fetch("d@v1")
    shard = ref._base.version.manifest.shards[0]
    change(storage, f"d/{shard.name}", None)

    def erase() -> None:
        # The erased record is in the shard that is being put.
        fill(Storage(tmp_path / "third")).copy("d@v1", storage)
        with pytest.warns(cachelayer.CacheLayerWarning, match="at work"):
            storage.erase("d@v1", records=[0], reason="asked", grace=0)

    def delete() -> None:
        with pytest.warns(cachelayer.CacheLayerWarning, match="at work"):
            storage.delete("d@v1", grace=0)

    happens = {
        "delete": delete,
        "erase": erase,
        "gc": lambda: storage.gc(grace=0.0),
    }
    store = Meanwhile(Path(whole.url), happens[what]).folder("d")
    stored = type(ref._base.version)(store, ref._base.version.info)
    monkeypatch.setattr("cachelayer.storage.catalog.Catalog.same_as", lambda *_: stored)
    if what == "gc":
        assert storage.repair("d@v1", from_=whole).repaired
        storage.verify("d@v1").raise_if_bad()
        return
    with pytest.raises(cachelayer.VersionNotFoundError, match="d@v1"):
        storage.repair("d@v1", from_=whole)
    if what == "delete":
        storage.gc(grace=0)
    assert f"{shard.name}" not in stored_files(storage)
    if what == "erase":
        storage.verify("d@v1").raise_if_bad()


def test_damage_is_no_erasure_where_the_digest_was_published_again(storage: Storage) -> None:
    storage.erase("d@v1", records=[5], reason="request", grace=0)
    storage.submit(ROWS, "d@again", **OPTIONS)
    stored = storage.fetch("d@again")._base.version
    with pytest.raises(cachelayer.CorruptionError), stored.reporting_deletion():
        raise cachelayer.CorruptionError("damaged")
