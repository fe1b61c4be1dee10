"""A dataset that cannot be read hides no other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cachelayer
from cachelayer.cli.app import app

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")


def ls(storage: cachelayer.Storage, *options: str) -> Result:
    return CliRunner().invoke(app, ["ls", storage.url, *options])


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
