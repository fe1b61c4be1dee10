"""A dataset that cannot be read hides no other."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from commands import RUNNER
from forks import in_a_fork

import cachelayer
from cachelayer.cli.app import app

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")


def ls(storage: cachelayer.Storage, *options: str) -> Result:
    return RUNNER.invoke(app, ["ls", storage.url, *options])


def moved(path: Path) -> Path:
    path.rename(path.with_name("moved"))
    return path


def linked(path: Path) -> None:
    path.symlink_to(moved(path).with_name("moved"))


def piped(path: Path) -> None:
    os.mkfifo(moved(path))


def emptied(path: Path) -> None:
    moved(path).mkdir()


def garbled(path: Path) -> None:
    path.write_bytes(b"{")


ENTRY, HEAD = "_log/0000000001.json", "_log/head"
DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    ("_log", linked),
    *((ENTRY, break_it) for break_it in (linked, piped, garbled)),
    (HEAD, emptied),
]


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path)
    for name in ("a", "bad", "c"):
        storage.submit([1], f"{name}@v1")
    return storage


@pytest.mark.filterwarnings("ignore:bad")
@pytest.mark.parametrize(("path", "break_it"), DAMAGE)
def test_a_dataset_that_cannot_be_read_hides_no_other(
    storage: cachelayer.Storage, path: str, break_it: Callable[[Path], None]
) -> None:
    break_it(Path(storage.url) / "bad" / path)
    assert storage.datasets() == ["a", "bad", "c"]
    shown = ls(storage, "--json")
    rows = {row["dataset_id"]: row for row in json.loads(shown.stdout)}
    assert list(rows) == ["a", "bad", "c"]
    assert [rows[name]["versions"] for name in ("a", "c")] == [1, 1]
    assert (shown.exit_code in (5, 7)) == (rows["bad"]["problem"] is not None)
    assert storage.fetch("a@v1")[0] == 1
    with pytest.raises(cachelayer.DatasetNotFoundError, match="'bad'"):
        storage.fetch("baad@v1")


def test_a_dataset_that_cannot_be_read_is_named_in_a_warning(storage: cachelayer.Storage) -> None:
    linked(Path(storage.url) / "bad/_log")
    with pytest.warns(cachelayer.CacheLayerWarning, match=r"^bad cannot be read.*_log is a link"):
        assert storage.datasets() == ["a", "bad", "c"]
    with pytest.raises(cachelayer.StorageError, match="is a link"):
        storage.fetch("bad@v1")


def test_a_storage_whose_datasets_all_fail_is_an_error_and_one_is_none(storage: cachelayer.Storage) -> None:
    linked(Path(storage.url) / "bad/_log")
    with pytest.warns(cachelayer.CacheLayerWarning, match="'bad'"):
        storage.gc(dry_run=True)
    for name in ("a", "c"):
        linked(Path(storage.url) / name / "_log")
    with pytest.raises(cachelayer.StorageError, match="is a link"):
        storage.datasets()


def test_a_folder_that_was_moved_is_no_storage_without_datasets(tmp_path: Path) -> None:
    ref = cachelayer.Storage(tmp_path / "here").submit([1, 2], "d", "v1")
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(cachelayer.DatasetNotFoundError, match="no such folder"):
        cachelayer.open(ref.reference)
    assert cachelayer.open(ref.reference.replace("here", "there")).digest == ref.digest


def test_a_link_to_a_disk_that_is_not_mounted_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    with pytest.raises(cachelayer.StorageError, match=r"data: it is a link to \S*/disk, which does not exist"):
        cachelayer.Storage(tmp_path / "data").submit([1], "d", "v1")


def test_what_this_user_may_not_read_is_neither_absent_nor_damaged() -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = cachelayer.Storage(folder)
        for dataset_id in ("a", "b"):
            storage.submit([1, 2], dataset_id, "v1")
        # Nobody cannot import where Python lies in root's home: whatever the calls import, they import before.
        assert storage.verify("a@v1")
        assert (storage.gc(), storage.datasets()) == ([], ["a", "b"])
        closed = (Path(folder, "a/shards"), Path(folder, "b/_log"))
        Path(folder).chmod(0o755)

        def seen_by_nobody() -> list[str]:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            with (
                pytest.warns(cachelayer.CacheLayerWarning, match="nothing of 'a' is collected"),
                pytest.warns(cachelayer.CacheLayerWarning, match="nothing of 'b' is collected"),
            ):
                storage.gc()
            with pytest.raises(cachelayer.StorageError, match="shards"):
                storage.verify("a@v1")
            with pytest.warns(cachelayer.CacheLayerWarning, match="b cannot be read"):
                return storage.datasets()

        try:
            for path in closed:
                path.chmod(0)
            assert in_a_fork(seen_by_nobody) == ["a"]
        finally:
            for path in closed:
                path.chmod(0o755)
