"""Deleting and collecting: what nobody needs goes, everything else stays."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_child import rows
from forks import FORKS

import cachelayer
from cachelayer import Storage
from cachelayer.access.dataref import DataRef
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.versions.log import Log


def attempts(folder: Path, dataset_id: str = "d") -> set[str]:
    return {path.name for path in (folder / dataset_id / "_builds").iterdir()}


def attempt_of(storage: Storage, version: str) -> str:
    return paths.attempt_of(storage.versions("d")[version].manifest)


def test_a_reader_that_is_open_goes_on_after_its_version_was_deleted(storage: Storage) -> None:
    ref = storage.submit(rows(500), "d", "v1")
    batches = iter(ref.stream(50, shuffle=True, seed=1))
    first = next(batches)
    storage.delete("d", "v1", grace=0)
    seen = [*first["number"].tolist(), *(n for batch in batches for n in batch["number"].tolist())]
    assert sorted(seen) == list(range(500))
    with pytest.raises(cachelayer.VersionNotFoundError):
        storage.fetch("d", "v1")


def test_deleting_a_version_leaves_builds_that_run_alone(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v0")

    def source() -> Iterator[int]:
        yield 1
        storage.delete("d", "v0", grace=0)
        assert storage.gc(grace=0.0) == []
        yield 2

    ref = storage.submit(source, "d", "v1")
    assert ref.read([0, 1]).tolist() == [1, 2]
    assert attempts(tmp_path) == {attempt_of(storage, "v1")}


def test_what_is_younger_than_the_grace_stays(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v1")
    folder = tmp_path / "d" / "_builds" / "dead"
    folder.mkdir()
    (folder / "shard-00000.array_record").touch()
    os.utime(folder, (0, 0))
    assert storage.gc(grace=60) == []
    os.utime(folder / "shard-00000.array_record", (0, 0))
    assert storage.gc(grace=60) == ["d/dead"]
    assert storage.gc(grace=0.0) == []
    assert storage.verify("d", "v1")


def test_what_killed_writers_left_half_put_goes(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v1")
    old, new = (tmp_path / "d" / "_log" / f".0000000002.json.{name}.tmp" for name in ("old", "new"))
    never_begun = tmp_path / paths.build_lease("d", "never-begun")
    never_begun.parent.mkdir(exist_ok=True)
    for path in (old, new, never_begun):
        path.write_bytes(b"half")
    for path in (old, never_begun):
        os.utime(path, (0, 0))
    assert storage.gc(grace=0.0) == []
    assert (old.exists(), new.exists(), never_begun.exists()) == (False, True, False)
    assert storage.verify("d", "v1")


def foreign_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.read_bytes() == b"mine"}


def test_what_is_no_dataset_is_neither_listed_nor_collected(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v1")
    (tmp_path / "d" / "_builds" / "dead").mkdir()
    kept = tmp_path / "elsewhere" / "kept"
    for name in (
        "webapp/_builds/release-1.4/app.js",
        "webapp/_builds/20260101T000000-0123456789ab/app.js",
        "webapp/_running/app.pid",
        "webapp/_log/.half.tmp",
        "elsewhere/kept",
        "latest/_log/0000000001.json",
        "lost+found/_log/0000000001.json",
        "stray",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (0, 0))
    (tmp_path / "d" / "_builds" / "x").symlink_to(kept.parent)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    before = foreign_files(tmp_path)
    assert len(before) == 8
    assert storage.datasets() == ["d"]
    assert storage.gc(grace=0.0) == ["d/dead"]
    assert foreign_files(tmp_path) == before


def test_a_log_that_is_not_ours_stops_neither_the_list_nor_the_rest(storage: Storage, tmp_path: Path) -> None:
    for name in ("a", "z"):
        storage.submit([1], name, "v1")
        (tmp_path / name / "_builds" / "dead").mkdir()
    (tmp_path / "app" / "_log").mkdir(parents=True)
    (tmp_path / "app" / "_log" / "0000000001.json").write_text('{"level": "info"}')
    (tmp_path / "app" / "_builds" / "release").mkdir(parents=True)
    with pytest.warns(cachelayer.CacheLayerWarning, match="'app'"):
        assert storage.gc(grace=0.0) == ["a/dead", "z/dead"]
    assert (tmp_path / "app" / "_builds" / "release").is_dir()
    assert storage.datasets() == ["a", "app", "z"]


def damage(storage: Storage, folder: Path, version: str) -> Path:
    path = folder / "d" / storage.versions("d")[version].manifest
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "token": "other"}))
    return path


def test_a_damaged_version_can_be_deleted(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v1")
    storage.submit([2], "d", "v2")
    damage(storage, tmp_path, "v1")
    storage.delete("d", "v1", grace=0)
    assert attempts(tmp_path) == {attempt_of(storage, "v2")}
    assert list(storage.versions("d")) == ["v2"]


def test_nothing_is_collected_while_a_damaged_manifest_hides_what_is_needed(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v1")
    storage.submit([2], "d", "v2")
    storage.submit([3], "other", "v1")
    for dataset_id in ("d", "other"):
        (tmp_path / dataset_id / "_builds" / "dead").mkdir()
    damage(storage, tmp_path, "v1")
    with pytest.warns(cachelayer.CacheLayerWarning, match="'d'"):
        assert storage.gc(grace=0.0) == ["other/dead"]
    with pytest.warns(cachelayer.CacheLayerWarning, match="'d'"):
        storage.delete("d", "v2", grace=0)
    assert list(storage.versions("d")) == ["v1"]
    storage.delete("d", "v1", grace=0)
    storage.gc(grace=0.0)
    assert attempts(tmp_path) == set()


def test_a_tag_is_no_version(storage: Storage) -> None:
    storage.submit([1], "d", "v1")
    storage.tag("d", "v1", "best")
    for call in (lambda: storage.delete("d", "best", grace=0), lambda: storage.tag("d", "best", "better")):
        with pytest.raises(cachelayer.VersionNotFoundError, match="'best' is a tag"):
            call()
    with pytest.raises(cachelayer.AlreadyExistsError, match="d@best is a tag"):
        storage.submit(lambda: pytest.fail("was asked for its elements"), "d", "best")
    assert storage.cache(lambda: pytest.fail("was built"), "d", "best").dataset_version == "v1"


def test_a_tag_that_was_removed_names_nothing(storage: Storage) -> None:
    storage.submit([1], "d", "v1")
    for tag in ("best", "old"):
        storage.tag("d", "v1", tag)
    storage.untag("d", "old")
    assert storage.tags("d") == {"best": "v1"}
    assert list(storage.versions("d")) == ["v1"]
    for name, reason in (("old", "there are best"), ("v1", "it is a version")):
        with pytest.raises(cachelayer.VersionNotFoundError, match=f"no tag '{name}': {reason}"):
            storage.untag("d", name)
    with pytest.raises(cachelayer.DatasetNotFoundError):
        storage.untag("e", "best")


def test_a_tagged_version_is_deleted_with_its_tags_where_that_is_forced(storage: Storage, tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        storage.submit([1], "d", version)
    for version, tag in (("v1", "best"), ("v1", "paper"), ("v2", "new")):
        storage.tag("d", version, tag)
    with pytest.raises(cachelayer.InvalidArgumentError, match="'paper'"):
        storage.delete("d", "v1", grace=0)
    assert list(storage.versions("d")) == ["v1", "v2"]
    before = Log(LocalStore(tmp_path), "d").head().sequence
    storage.delete("d", "v1", force=True, grace=0)
    assert (storage.tags("d"), list(storage.versions("d"))) == ({"new": "v2"}, ["v2"])
    entry = json.loads((tmp_path / paths.log_entry("d", before + 1)).read_text())
    assert (entry["tags"], entry["event"]["tags"]) == ({"new": "v2"}, ["best", "paper"])
    assert attempts(tmp_path) == {attempt_of(storage, "v2")}


def churn(folder: str) -> None:
    storage = Storage(folder)
    for number in range(25):
        storage.cache(range(number % 7 + 1), "d", "v1")
        storage.delete("d", "v1", grace=0)


@pytest.mark.slow
def test_who_reads_while_others_delete_and_build_sees_a_whole_version_or_none(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v0")
    found: list[DataRef[Any]] = []
    missed = 0
    other = FORKS.Process(target=churn, args=(str(tmp_path),))
    other.start()
    while other.is_alive():
        try:
            found.append(storage.fetch("d", "v1"))
        except cachelayer.VersionNotFoundError:
            missed += 1
    assert other.exitcode == 0
    assert missed
    assert all(1 <= len(ref) <= 7 for ref in found)
    assert attempts(tmp_path) == {attempt_of(storage, "v0")}


def age(path: Path, seconds: float) -> None:
    past = time.time() - seconds
    os.utime(path, (past, past))


def test_a_reader_goes_on_for_the_grace_and_is_told_of_the_deletion_after_it(storage: Storage, tmp_path: Path) -> None:
    # Shards that it has not opened when the version is deleted.
    ref = storage.submit(range(100), "d", "v1", shard_bytes=500)
    storage.submit([1], "d", "v2")
    reader = cachelayer.open(ref.reference)
    assert reader[0] == 0
    storage.delete("d", "v1", grace=3600)
    assert storage.gc(grace=0) == []
    assert reader[40] == 40
    gone = attempts(tmp_path) - {attempt_of(storage, "v2")}
    age(tmp_path / paths.log_entry("d", Log(LocalStore(tmp_path), "d").head().sequence), 3601)
    assert {name.removeprefix("d/") for name in storage.gc()} == gone
    assert attempts(tmp_path) == {attempt_of(storage, "v2")}
    assert Log(LocalStore(tmp_path), "d").head().deleted == ()
    for late in (reader, ref):
        with pytest.raises(cachelayer.VersionNotFoundError, match="d@v1 was deleted"):
            late.read([-1])


@pytest.mark.parametrize("keep", [range(3), [5, 2, 9]])
def test_a_ref_that_another_process_had_before_the_deletion_is_told_of_it(storage: Storage, keep: Any) -> None:
    storage.submit(range(10), "d", "v1")
    pickled = pickle.dumps(storage.derive("d", "v1", "v2", keep=keep))
    storage.delete("d", "v2", grace=0)
    with pytest.raises(cachelayer.VersionNotFoundError, match="d@v2 was deleted"):
        pickle.loads(pickled).read([0])


def test_a_name_can_be_built_again_within_the_grace_and_the_old_files_go_after_it(
    storage: Storage, tmp_path: Path
) -> None:
    old = storage.submit([1], "d", "v1")
    gone = attempt_of(storage, "v1")
    storage.delete("d", "v1", grace=60)
    assert storage.cache([2], "d", "v1").read([0]).tolist() == [2]
    assert old.read([0]).tolist() == [1]
    age(tmp_path / paths.log_entry("d", 2), 61)
    assert storage.gc() == [f"d/{gone}"]
    assert storage.verify("d", "v1")
    assert storage.gc() == []


def test_what_is_deleted_again_without_a_grace_goes_at_once(storage: Storage, tmp_path: Path) -> None:
    storage.submit([1], "d", "v1")
    storage.delete("d", "v1")
    assert len(attempts(tmp_path)) == 1
    with pytest.raises(cachelayer.VersionNotFoundError):
        storage.delete("d", "v1")
    storage.delete("d", "v1", grace=0)
    assert attempts(tmp_path) == set()
    with pytest.raises(cachelayer.VersionNotFoundError):
        storage.delete("d", "v1", grace=0)


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf"), True, "1h", None])
def test_a_grace_is_a_number_of_seconds(storage: Storage, grace: Any) -> None:
    storage.submit([1], "d", "v1")
    for call in (lambda: storage.delete("d", "v1", grace=grace), lambda: storage.gc(grace=grace)):
        with pytest.raises(cachelayer.InvalidArgumentError, match="grace"):
            call()
    assert list(storage.versions("d")) == ["v1"]
