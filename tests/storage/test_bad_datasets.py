"""A dataset that cannot be read hides no other."""

import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
    ref = cachelayer.Storage(tmp_path / "here").submit([1, 2], "d@v1")
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(cachelayer.DatasetNotFoundError, match="no such folder"):
        cachelayer.open(ref.reference)
    assert cachelayer.open(ref.reference.replace("here", "there")).digest == ref.digest


def test_a_link_to_a_disk_that_is_not_mounted_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    with pytest.raises(cachelayer.StorageError, match=r"data: it is a link to \S*/disk, which does not exist"):
        cachelayer.Storage(tmp_path / "data").submit([1], "d@v1")


def test_what_this_user_may_not_read_is_neither_absent_nor_damaged() -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = cachelayer.Storage(folder)
        for dataset_id in ("a", "b"):
            storage.submit([1, 2], f"{dataset_id}@v1")
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


@pytest.fixture
def never_waits() -> Iterator[None]:
    """End a call that waits for the other end of a pipe with an error."""
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for ever"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def socketed(path: Path) -> None:
    os.chdir(moved(path).parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)


def parts(number: int, _: int) -> list[int]:
    if number == 2 and os.environ.get("FAILS"):
        raise OSError("the network is down")
    return list(range(100 * number, 100 * number + 100))


USES: dict[str, Callable[[cachelayer.Storage], Any]] = {
    "read": lambda storage: storage.fetch("d@v2").read([0, 299]),
    "stream": lambda storage: list(storage.fetch("d@v2").stream(50, shuffle=True, seed=1)),
    "lengths": lambda storage: storage.fetch("d@v2").lengths("tokens"),
    "packed": lambda storage: list(storage.fetch("d@v2").packed("tokens", 8).stream(4)),
    "verify": lambda storage: storage.verify("d@v2"),
    "repair": lambda storage: storage.repair("d@v2", dry_run=True),
    "copy": lambda storage: storage.copy("d@v2", to=f"{storage.url}-copy"),
    "append": lambda storage: storage.append("d@v1", "v4", [{"n": 300, "tokens": np.arange(2)}]),
    "build": lambda storage: storage.cache(cachelayer.sharded(parts, 4), "d@v9", progress=False),
    "builds": lambda storage: storage.builds("d"),
    "history": lambda storage: storage.history("d"),
    "gc": lambda storage: storage.gc(grace=0),
}
PLACES = (
    "_log/*1.json", "_log/head", "manifests/*.json", "shards/*.array_record", "shards/*.index", "shards/*.lengths",
    "shards/*.npy", "plans/*/*.plan", "_builds/v9/*/plan.json", "_builds/v9/*/00000.json", "_builds/v9/claim",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("break_it", [piped, socketed])
@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
@pytest.mark.usefixtures("never_waits")
def test_what_is_no_file_in_the_place_of_a_file_is_never_waited_for(
    monkeypatch: pytest.MonkeyPatch, place: str, break_it: Callable[[Path], None], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = cachelayer.Storage(tmp_path / "storage")
    storage.submit([{"n": n, "tokens": np.arange(n % 5)} for n in range(300)], "d@v1")
    storage.add_columns("d@v1", new="v2", columns={"score": np.arange(300.0)})
    USES["packed"](storage)
    of_version = sorted((tmp_path / "storage/d").glob(place))
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(cachelayer.SourceError):
        USES["build"](storage)
    monkeypatch.delenv("FAILS")
    if place.endswith("claim"):
        (tmp_path / "storage/d/_builds/v9/claim").touch()
    path = [*of_version, *(tmp_path / "storage/d").glob(place)][0]
    break_it(path)
    said = {}
    for name, use in USES.items():
        try:
            said[name] = str(use(storage))
        except (cachelayer.CorruptionError, cachelayer.StorageError) as error:
            said[name] = str(error)
    if place.startswith("shards"):
        assert path.name in said["verify"]
        assert path.name in said["repair"]
