"""Deleting and collecting: what nobody needs goes, everything else stays."""

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import document, invoke
from forks import in_a_fork
from leftovers import assert_only_versions_are_left, files_below, named_files, stored_files

import cachelayer
from cachelayer import BuildRevokedError, Storage
from cachelayer.builds.erase import Erasure
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Stat
from cachelayer.support.host import process_name
from cachelayer.versions.gc import Collected, collect
from cachelayer.versions.log import Log
from cachelayer.versions.stored_version import StoredVersion

JUNK = paths.file(paths.SHARDS, "ab" * 32, 0)


def put_junk(folder: Path, dataset_id: str = "d") -> list[Path]:
    """Put a shard that no version names."""
    found = [folder / dataset_id / f"{JUNK}.{suffix}" for suffix in ("index", "array_record")]
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"junk")
    return found


def names(collected: list[Collected]) -> set[str]:
    assert all(each.reason for each in collected)
    return {each.name for each in collected}


def age(path: Path, seconds: float) -> None:
    os.utime(path)
    past = path.stat().st_mtime - seconds
    os.utime(path, (past, past))


@pytest.mark.parametrize("is_put_again", [False, True])
def test_a_build_whose_files_were_taken_for_garbage_publishes_nothing_and_is_built_again(
    storage: Storage, tmp_path: Path, is_put_again: bool
) -> None:
    storage.submit([0], "d@v0")

    def source() -> Iterator[Any]:
        yield from range(3000)
        # It is paused for longer than its claim lasts, and than the grace.
        (tmp_path / "d" / paths.builds("v1") / "claim").unlink()
        before = {name: (tmp_path / "d" / name).read_bytes() for name in stored_files(storage)}
        assert len(storage.gc(grace=0.0)) > 1
        for name, raw in before.items() if is_put_again else ():
            # A copy of it, or a put that arrives late.
            (tmp_path / "d" / name).write_bytes(raw)
        yield 0

    with pytest.raises(BuildRevokedError, match="d@v1"):
        storage.submit(source, "d@v1", shard_bytes=9000, resume=False)
    assert list(storage.versions("d")) == ["v0"]
    ref = storage.submit(range(3000), "d@v1", shard_bytes=9000)
    assert {shard.generation for shard in ref._base.version.manifest.shards} == {1}
    assert_only_versions_are_left(storage, "d")


class DiesBeforeDeleting(LocalStore):
    def delete(self, name: str) -> None:
        raise KeyboardInterrupt


def test_what_a_collector_that_died_left_is_never_used_and_goes_with_the_next(storage: Storage, tmp_path: Path) -> None:
    made = storage.submit(range(100), "d@v1")
    storage.submit([0], "d@v0")
    storage.delete("d@v1")
    before = stored_files(storage)
    storage._catalog.commit("d", lambda head: head.without_version("v1", {}, force=False, grace=0.0))
    with pytest.raises(KeyboardInterrupt):
        collect(DiesBeforeDeleting(tmp_path / "d"), 0.0)
    assert stored_files(storage) == before
    # The same shard, whose old file is still there, is put under another name.
    again = storage.submit(range(100), "d@v1")
    assert again.digest == made.digest
    for ref, generation in ((made, 0), (again, 1)):
        assert {shard.generation for shard in ref._base.version.manifest.shards} == {generation}
    storage.gc(grace=0.0)
    assert_only_versions_are_left(storage, "d")
    assert len(again.read(range(100))) == 100


def test_what_is_younger_than_the_grace_stays(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d@v1")
    index, shard = put_junk(tmp_path)
    age(index, 100)
    assert storage.gc(grace=60) == []
    age(shard, 100)
    assert storage.gc(grace=60) == [Collected(f"d/{JUNK}", "no version names it")]
    assert storage.gc(grace=0.0) == []
    assert not index.exists()
    assert storage.verify("d@v1")


@pytest.mark.parametrize("has_log", [True, False])
def test_what_killed_writers_left_half_put_goes(storage: Storage, tmp_path: Path, has_log: bool) -> None:
    if has_log:
        storage.submit([1], "d@v1")
    put_junk(tmp_path)
    (tmp_path / "d/_builds/v2").mkdir(parents=True)
    old, new = (tmp_path / f"d/{JUNK.replace('/', '/.')}.index.{name}.tmp" for name in ("old", "new"))
    claim, link = (tmp_path / f"d/_builds/v2/{name}" for name in ("claim", f".claim.{'ab' * 16}.tmp"))
    for path in (old, new, claim, link):
        path.write_bytes(b"half")
    for path in (old, claim, link):
        age(path, 7200)
    assert f"d/{JUNK}" in names(storage.gc(grace=0.0))
    assert [path.exists() for path in (old, new, claim, link)] == [False, True, False, False]
    named = named_files(storage) if has_log else set()
    assert stored_files(storage) - named == {f"shards/{new.name}"}


def test_a_tagged_version_is_deleted_with_its_tags_where_that_is_forced(storage: Storage) -> None:
    for version in ("v1", "v2"):
        storage.submit([1], f"d@{version}")
    for version, tag in (("v2", "best"), ("v1", "best"), ("v1", "paper"), ("v2", "new")):
        storage.tag(f"d@{version}", tag)
    with pytest.raises(cachelayer.InvalidArgumentError, match="'paper'"):
        storage.delete("d@v1", grace=0)
    assert list(storage.versions("d")) == ["v1", "v2"]
    storage.delete("d@v1", force=True)
    assert (storage.tags("d"), list(storage.versions("d"))) == ({"new": "v2"}, ["v2"])
    assert storage.history("d")[-1].details["tags"] == ["best", "paper"]


def test_what_is_no_dataset_is_neither_listed_nor_collected(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d@v1")
    put_junk(tmp_path)
    for name in (
        "webapp/_builds/release-1.4/app.js",
        "webapp/shards/app.js",
        "other/shards/0123-0.js",
        "webapp/_log/.half.tmp",
        "elsewhere/kept",
        "latest/_log/0000000001.json",
        "lost+found/_log/0000000001.json",
        "stray",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    (tmp_path / "d" / "_builds" / "x").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")

    def others() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "d")}

    before = others()
    assert storage.datasets() == ["d"]
    assert names(storage.gc(grace=0.0)) == {f"d/{JUNK}"}
    assert others() == before


def damage_manifest(folder: Path) -> None:
    [path] = (folder / "manifests").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "token": "other"}))


def write_another_log(folder: Path) -> None:
    shutil.rmtree(folder / "_log")
    (folder / "_log").mkdir()
    (folder / "_log" / "0000000001.json").write_text('{"level": "info"}')


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no log": lambda folder: shutil.rmtree(folder / "_log"),
    "the log of another program": write_another_log,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_nothing_of_a_damaged_dataset_is_collected_and_the_rest_is(
    storage: Storage, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    for name in ("a", "d", "z"):
        storage.submit([1], f"{name}@v1")
        put_junk(tmp_path, name)
    damage(tmp_path / "d")
    before = stored_files(storage)
    with pytest.warns(cachelayer.CacheLayerWarning, match="'d'"):
        assert names(storage.gc(grace=0.0)) == {f"a/{JUNK}", f"z/{JUNK}"}
    assert stored_files(storage) == before


def test_a_damaged_manifest_hides_nothing_that_the_log_names(storage: Storage, tmp_path: Path) -> None:
    for name in ("a", "d"):
        storage.submit([1], f"{name}@v1")
        put_junk(tmp_path, name)
    before = named_files(storage)
    damage_manifest(tmp_path / "d")
    assert names(storage.gc(grace=0.0)) == {f"a/{JUNK}", f"d/{JUNK}"}
    assert stored_files(storage) == before


def test_a_damaged_version_can_be_deleted(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d@v1")
    damage_manifest(tmp_path / "d")
    storage.submit([2], "d@v2")
    with pytest.warns(cachelayer.CacheLayerWarning, match="'d'"):
        storage.delete("d@v2", grace=0)
    assert list(storage.versions("d")) == ["v1"]
    storage.delete("d@v1", grace=0)
    storage.gc(grace=0)
    assert stored_files(storage) == set()


def test_a_tag_names_a_version_until_it_is_removed_and_is_none_itself(storage: Storage) -> None:
    storage.submit([1], "d@v1")
    for tag in ("best", "old"):
        storage.tag("d@v1", tag)
    with pytest.raises(cachelayer.VersionNotFoundError, match="'best' is a tag"):
        storage.delete("d@best", grace=0)
    storage.tag("d@best", "better")
    storage.untag("d@better")
    with pytest.raises(cachelayer.AlreadyExistsError, match="d@best is a tag"):
        storage.submit(lambda: pytest.fail("was asked for its elements"), "d@best")
    assert storage.cache(lambda: pytest.fail("was built"), "d@best").dataset_version == "v1"
    with pytest.raises(cachelayer.AlreadyExistsError):
        storage.tag("d@v1", "v1")
    storage.untag("d@old")
    assert (storage.tags("d"), list(storage.versions("d"))) == ({"best": "v1"}, ["v1"])
    for name in ("old", "v1"):
        with pytest.raises(cachelayer.VersionNotFoundError, match=f"no tag '{name}'"):
            storage.untag(f"d@{name}")
    with pytest.raises(cachelayer.DatasetNotFoundError):
        storage.untag("e@best")


def test_a_reader_goes_on_for_the_grace_and_is_told_of_the_deletion_after_it(storage: Storage, tmp_path: Path) -> None:
    # Shards that it has not opened when the version is deleted.
    ref = storage.submit(range(100), "d@v1", shard_bytes=500)
    storage.submit([1], "d@v2")
    reader = cachelayer.open(ref.reference)
    assert reader[0] == 0
    storage.delete("d@v1", grace=3600)
    assert storage.gc(grace=0) == []
    assert reader[40] == 40
    gone = {f"d/{name.partition('.')[0]}" for name in stored_files(storage) - named_files(storage)}
    age(tmp_path / "d" / paths.log_entry(Log(LocalStore(tmp_path / "d")).head().sequence), 3601)
    assert names(storage.gc()) == gone
    assert stored_files(storage) == named_files(storage)
    assert Log(LocalStore(tmp_path / "d")).head().deleted == ()
    for late in (reader, ref):
        with pytest.raises(cachelayer.VersionNotFoundError, match="d@v1 was deleted"):
            late.read([-1])


@pytest.mark.parametrize("source", [[2], [1]])
def test_a_name_can_be_built_again_within_the_grace_and_the_old_files_go_after_it(
    storage: Storage, tmp_path: Path, source: list[int]
) -> None:
    old = storage.submit([1], "d@v1")
    storage.delete("d@v1", grace=60)
    before = stored_files(storage)
    assert storage.cache(source, "d@v1").read([0]).tolist() == source
    assert old.read([0]).tolist() == [1]
    assert storage.gc(grace=0) == []
    age(tmp_path / "d" / paths.log_entry(2), 61)
    gone = {f"d/{name.partition('.')[0]}" for name in before - named_files(storage)}
    assert names(storage.gc()) == gone
    assert len(gone) == (1 if source == [1] else 2)
    assert storage.gc() == []
    assert_only_versions_are_left(storage, "d")


def test_what_is_deleted_again_without_a_grace_goes_at_once(storage: Storage) -> None:
    storage.submit([1], "d@v1")
    storage.delete("d@v1")
    assert stored_files(storage)
    with pytest.raises(cachelayer.VersionNotFoundError):
        storage.delete("d@v1")
    storage.delete("d@v1", grace=0)
    assert stored_files(storage) == set()
    with pytest.raises(cachelayer.VersionNotFoundError):
        storage.delete("d@v1", grace=0)


class DeletesMeanwhile(LocalStore):
    """A store in which another process deletes a version while its manifest is read."""

    def __init__(self, root: Path, version: str) -> None:
        super().__init__(root)
        self.storage = root
        # Shared by the stores of its folders.
        self.versions = [version]

    def read(self, name: str) -> bytes | None:
        if name.startswith(f"{paths.MANIFESTS}/") and self.versions:
            Storage(self.storage).delete(f"d@{self.versions.pop()}", grace=0)
        return super().read(name)


@pytest.mark.parametrize("deleted", ["v1", "v2", "v3"])
def test_a_version_that_another_process_deletes_meanwhile_stops_no_collection(
    storage: Storage, tmp_path: Path, deleted: str
) -> None:
    for dataset_id in ("a", "d", "z"):
        for number in range(1, 4):
            storage.submit([number], f"{dataset_id}@v{number}")
        put_junk(tmp_path, dataset_id)
    storage.delete("d@v3")
    storage._catalog.store = DeletesMeanwhile(tmp_path, deleted)
    assert {f"{name}/{JUNK}" for name in "adz"} <= names(storage.gc(grace=0))
    with suppress(cachelayer.VersionNotFoundError):
        storage.delete("d@v3", grace=0)
    for dataset_id in ("a", "d", "z"):
        assert_only_versions_are_left(storage, dataset_id)
    assert deleted not in storage.versions("d")


def test_a_version_that_another_process_deletes_meanwhile_stops_no_erasure(storage: Storage, tmp_path: Path) -> None:
    for number in range(1, 4):
        storage.submit([number, number], f"d@v{number}")
    # The manifest of v1 is read when it is opened: the next one that is read is that of another version.
    again = Storage(tmp_path)
    read = again.fetch("d@v1")._base.version
    version = StoredVersion.with_manifest(DeletesMeanwhile(tmp_path, "v2").folder("d"), read.info, read.manifest)
    with pytest.warns(cachelayer.CacheLayerWarning, match="still in v1|is at work"):
        erased = Erasure(version, np.array([1]), "asked to", 0.0, False).erase()
    assert erased.manifest.erased == (1,)
    assert list(storage.versions("d")) == ["v1", "v3"]


def test_a_deleted_version_whose_manifest_is_gone_stops_no_collection(storage: Storage, tmp_path: Path) -> None:
    for name in ("a", "d", "z"):
        storage.submit([1], f"{name}@v1")
        put_junk(tmp_path, name)
    storage.delete("d@v1", grace=3600)
    for path in (tmp_path / "d/manifests").iterdir():
        path.unlink()
    assert names(storage.gc(grace=0)) == {f"a/{JUNK}", f"d/{JUNK}", f"z/{JUNK}"}
    storage.delete("d@v1", grace=0)
    storage.gc(grace=0)
    assert named_files(storage) == set()


@pytest.mark.parametrize("grace", [0.0, 3600.0])
def test_a_dry_run_lists_exactly_what_goes(storage: Storage, tmp_path: Path, grace: float) -> None:
    storage.submit([1], "d@v1")
    storage.submit([2], "d@v2")
    storage.delete("d@v2", grace=1e-9)
    put_junk(tmp_path)
    temporary = f"cachelayer-build-0123456789ab-{process_name().rpartition('-')[0]}-{2**22 + 1}"
    elsewhere = "cachelayer-build-0123456789ab-elsewhere-1"
    for name in (
        "_log/.0000000009.json.x.tmp",
        "shards/.half.tmp",
        f"_builds/v3/{'ab' * 16}/00001.json",
        "_builds/v3/claim",
        "plans/0123/0123.plan",
        f"_tmp/{temporary}/00000.array_record",
        f"_tmp/{elsewhere}/00000.array_record",
    ):
        path = tmp_path / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    for path in (tmp_path / "d").rglob("*"):
        age(path, 7200)
    (tmp_path / "d/_tmp" / elsewhere / "new").touch()
    before = files_below(storage, "d")
    would = storage.gc(grace=grace, dry_run=True)
    assert files_below(storage, "d") == before
    assert storage.gc(grace=grace) == would
    gone = {
        name for name in before - files_below(storage, "d") if name.partition("/")[0] != "_log" or name.endswith("tmp")
    }
    assert len(gone) > 8
    for name in gone:
        assert [each.name for each in would if f"d/{name}".startswith(each.name)], name
    assert storage.gc(grace=grace, dry_run=True) == storage.gc(grace=grace) == []
    assert {elsewhere} == {name.split("/")[1] for name in files_below(storage, "d") if name.startswith("_tmp")}


@pytest.mark.parametrize("grace", [-1, float("nan"), True, "1h"])
def test_a_grace_is_a_number_of_seconds(storage: Storage, grace: Any) -> None:
    storage.submit([1], "d@v1")
    for call in (lambda: storage.delete("d@v1", grace=grace), lambda: storage.gc(grace=grace)):
        with pytest.raises(cachelayer.InvalidArgumentError, match="grace"):
            call()
    assert list(storage.versions("d")) == ["v1"]


class Far(LocalStore):
    """A shared folder whose host has another clock than this one."""

    seconds = 0.0

    def stat(self, name: str) -> Stat | None:
        stat = super().stat(name)
        if stat is None or stat.modified is None:
            return stat
        return replace(stat, modified=stat.modified + self.seconds)


@pytest.fixture(params=["host", "store"])
def clock_ahead(
    request: pytest.FixtureRequest, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Set the clock of this host, or of the host of the store, ahead of the other by some seconds."""
    now = time.time

    def set_ahead(seconds: float) -> None:
        if request.param == "host":
            monkeypatch.setattr("time.time", lambda: now() + seconds)
        else:
            monkeypatch.setattr(Far, "seconds", -seconds)
            storage._catalog.store = Far(Path(storage.url))

    return set_ahead


@pytest.mark.parametrize("seconds", [400.0, 25 * 3600.0, -400.0, -25 * 3600.0])
def test_ages_are_by_the_clock_of_the_store(
    storage: Storage, tmp_path: Path, clock_ahead: Callable[..., None], seconds: float
) -> None:
    for number in (1, 2, 3):
        storage.submit([number], f"d@v{number}")
    clock_ahead(seconds)
    storage.delete("d@v1", grace=3600)
    entry = tmp_path / "d" / paths.log_entry(4)
    junk = put_junk(tmp_path)
    working = tmp_path / "d" / paths.WORKING / "cachelayer-build-0123456789ab-elsewhere-1"
    working.mkdir()
    looked = []

    def rows() -> Iterator[int]:
        yield from range(1000)
        (build,) = storage.builds("d")
        looked.append((build.state, 0 <= build.idle < 60))
        looked.append(in_a_fork(lambda: (storage.gc(), storage.gc(grace=0), storage.gc(grace=0, dry_run=True))))
        yield 0

    storage.submit(rows, "d@v4", shard_bytes=3000)
    assert looked == [("running", True), ([], [], [])]
    for path in (entry, *junk):
        age(path, 1800)
    assert storage.gc(grace=3600) == []
    assert names(storage.gc(grace=1000)) == {f"d/{JUNK}"}
    age(entry, 3700)
    assert {each.reason for each in storage.gc()} == {"version 'v1' was deleted"}
    assert working.exists()
    age(working, 25 * 3600)
    assert names(storage.gc()) == {f"d/{paths.WORKING}/{working.name}"}


@pytest.mark.parametrize("deleted", ["before", "meanwhile"])
@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_what_a_running_build_has_put_stays_though_a_deleted_version_had_it(
    tmp_path: Path, deleted: str, where: str
) -> None:
    url = str(tmp_path / "s") if where == "disk" else f"memory://{uuid.uuid4().hex}"
    storage = Storage(url, local_cache_bytes=0)
    options: dict[str, Any] = {"shard_bytes": 9000}
    old = storage.submit(range(3000), "d@v1", **options)
    if deleted == "before":
        storage.delete("d@v1", grace=1e-9)

    def source() -> Iterator[int]:
        yield from range(2999)
        if deleted == "meanwhile":
            with pytest.warns(cachelayer.CacheLayerWarning, match="a build of 'd' is at work"):
                storage.delete("d@v1", grace=0)
        # What is in memory, no other process sees.
        collected = in_a_fork(lambda: storage.gc(grace=0)) if where == "disk" else storage.gc(grace=0)
        assert collected == []
        yield 2999

    new = storage.submit(source, "d@v2", **options)
    assert (new.digest, new.read([0, 2999]).tolist()) == (old.digest, [0, 2999])
    assert {each.reason for each in storage.gc(grace=0)} == {"version 'v1' was deleted"}
    assert_only_versions_are_left(storage, "d")


class Rows:
    """Numbers; one of the last cannot be read while there is a file."""

    def __init__(self, broken: Path) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, number: int) -> int:
        if number == 2987 and self.broken.exists():
            raise OSError("cannot be read")
        return number


def test_what_an_interrupted_build_has_put_stays_for_the_grace_though_a_deleted_version_had_it(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Rows(tmp_path / "broken")
    storage.submit(rows, "d@v1", shard_bytes=9000)
    storage.delete("d@v1", grace=1e-9)
    rows.broken.touch()
    with pytest.raises(cachelayer.SourceError):
        storage.cache(rows, "d@v2", shard_bytes=9000)
    (build,) = storage.builds("d")
    assert build.shards > 2
    # The manifest of v1, and the shards that the build has not come to.
    assert 0 < len(storage.gc()) < build.shards
    rows.broken.unlink()
    assert len(storage.cache(rows, "d@v2", shard_bytes=9000)) == 3000
    assert f"resuming after {build.done:,} records" in capsys.readouterr().err
    assert_only_versions_are_left(storage, "d")


def test_the_files_of_two_equal_versions_go_with_the_second(storage: Storage) -> None:
    for version in ("v1", "v2"):
        storage.submit(range(3000), f"d@{version}", shard_bytes=9000)
    storage.delete("d@v2", grace=0)
    storage.delete("d@v1", grace=0)
    assert stored_files(storage) == set()


def test_a_build_whose_working_folder_is_deleted_says_so(storage: Storage, tmp_path: Path) -> None:
    def source(begin: int) -> Iterator[int]:
        for number in range(3000):
            if number == begin:
                LocalStore(tmp_path).delete_folder(f"d/{paths.WORKING}")
            yield number

    for begin in (0, 1500, 2999):
        with pytest.raises(BuildRevokedError, match="d: the folder in which it was built"):
            storage.submit(lambda begin=begin: source(begin), "d@v1", shard_bytes=9000)
    assert len(storage.submit(range(3000), "d@v1")) == 3000


def fill(disk: Path) -> None:
    """Take all room of a disk."""
    with suppress(OSError), (disk / f"filler-{uuid.uuid4().hex}").open("wb", buffering=0) as file:
        while file.write(os.urandom(4096)):
            pass
    assert os.statvfs(disk).f_bavail == 0


def free(disk: Path) -> int:
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


@pytest.mark.parametrize("tags", [0, 1000])
@pytest.mark.parametrize("way", ["rm", "gc"])
@pytest.mark.parametrize("small_disk", ["8m"], indirect=True)
def test_a_full_disk_is_freed(small_disk: Path, way: str, tags: int) -> None:
    storage = Storage(small_disk)
    for number in range(3):
        storage.submit([np.full(500_000, number, np.uint8)], f"d@v{number}")
    named = {f"a-tag-of-some-letters-{number}": "v2" for number in range(tags)}
    Log(storage._store.folder("d")).commit(lambda head: replace(head, tags=named, event={}))
    if way == "gc":
        for version in ("v0", "v1"):
            storage.delete(f"d@{version}", grace=1e-9)
    for version in ("v0", "v1"):
        fill(small_disk)
        with pytest.raises(cachelayer.StorageError, match="no space"):
            storage.tag("d@v2", "best")
        if way == "rm":
            invoke("rm", f"{small_disk}/d@{version}", "--yes", "--now")
        elif version == "v0":
            invoke("gc", small_disk)
        assert free(small_disk) > 300_000 or version == "v1"
    assert storage.verify("d@v2").ok
    assert sorted(storage.versions("d")) == ["v2"]


def test_a_dataset_that_is_not_collected_is_a_finding(storage: Storage, tmp_path: Path) -> None:
    for name in ("a", "d", "z"):
        storage.submit([1], f"{name}@v1")
        put_junk(tmp_path, name)
    damage_manifest(tmp_path / "d")
    storage.submit([2], "d@v0")
    storage.delete("d@v0", grace=1e-9)
    shutil.rmtree(tmp_path / "z" / "_log")
    told = document("gc", tmp_path, "--grace", "0", code=1)
    assert [one["name"] for one in told["deleted"]] == [f"a/{JUNK}"]
    assert "d/manifests" in told["failed"]["d"]
    assert "no log" in told["failed"]["z"]
    assert set(told["failed"]) == {"d", "z"}
    assert "nothing of 'z' is collected" in invoke("gc", tmp_path, "--grace", "0", code=1).stderr
    # A deletion that should free space at once, and cannot.
    storage.submit([2], "d@v2")
    assert document("rm", f"{tmp_path}/d@v2", "--yes", "--now", code=1) == {"deleted": "d@v2"}
    invoke("rm", f"{tmp_path}/d@v1", "--yes", "--now")
    shutil.rmtree(tmp_path / "z")
    storage.gc(grace=0)
    assert stored_files(storage) == set()


@pytest.mark.parametrize("moved", ["the storage", "the dataset"])
def test_a_version_that_was_moved_away_was_not_deleted(storage: Storage, tmp_path: Path, moved: str) -> None:
    here = Storage(tmp_path / "s")
    ref = here.submit(range(3000), "m@v1", shard_bytes=5000)
    other = Storage(tmp_path / "other")
    folder = tmp_path / "s" if moved == "the storage" else tmp_path / "s" / "m"
    folder.rename(tmp_path / "elsewhere")
    for use in (
        lambda: ref.read([2999]),
        lambda: next(iter(ref.stream(8, shuffle=True, seed=0))),
        lambda: other.cache(ref, "copied@v1"),
        lambda: here.copy(ref.reference.removeprefix(f"{here.url}/"), to=other),
        lambda: here.delete("m@v1"),
    ):
        with pytest.raises(cachelayer.DatasetNotFoundError, match="moved"):
            use()
