"""Objects as files: whole or absent, put by exactly one."""

import errno
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forks import in_a_fork

import cachelayer
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Blob
from cachelayer.support.temporary_files import sync_path


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.mark.slow
def test_a_folder_is_deleted_while_others_write_there_and_delete_it_too(store: LocalStore) -> None:
    def write(writer: int) -> None:
        for number in range(300):
            # The folder may vanish between its making and the writing.
            with suppress(cachelayer.StorageError):
                store.put(f"a/{number % 30}/{writer}-{number}", b"")

    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(write, writer) for writer in range(2)]
        while not all(writer.done() for writer in writers):
            list(threads.map(store.delete_folder, ["a"] * 2))
    store.delete_folder("a")
    assert store.names("a") == []


@pytest.mark.parametrize("call", ["put", "put_file"])
def test_an_object_is_put_though_its_folder_is_deleted_meanwhile(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    deleted: list[Path] = []
    replace = Path.replace

    def replace_after_deletion(path: Path, target: Path) -> Path:
        if not deleted:
            deleted.append(target)
            store.delete_folder("a")
        return replace(path, target)

    # No other process deletes it at just this time.
    monkeypatch.setattr(Path, "replace", replace_after_deletion)
    if call == "put":
        store.put("a/b/c", b"12345")
    else:
        (tmp_path / "file").write_bytes(b"12345")
        store.put_file(tmp_path / "file", Blob("a/b/c", 5, 0))
    assert store.read("a/b/c") == b"12345"
    assert deleted


def test_a_file_in_the_way_of_a_folder_is_no_object(store: LocalStore) -> None:
    store.put("a/b", b"12345")
    assert store.names("a/b") == []
    assert store.stat("a/b/c") is None
    store.delete("a/b/c")
    assert store.read("a/b") == b"12345"


def said_of(call: Callable[[], object]) -> str:
    """The StorageError of a call."""
    with pytest.raises(cachelayer.StorageError) as caught:
        call()
    return str(caught.value)


def test_a_put_that_fails_changes_nothing(store: LocalStore) -> None:
    store.put("kept", b"old")

    def fill_the_disk() -> list[str]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        calls = [
            partial(put, name, b"x" * 5000) for put in (store.put, store.put_if_absent) for name in ("kept", "new")
        ]
        return list(map(said_of, calls))

    assert all("cannot write" in said for said in in_a_fork(fill_the_disk))
    assert (store.names(""), store.read("kept")) == (["kept"], b"old")


@pytest.mark.parametrize("fails", ["the link", "the folder"])
def test_what_others_see_is_put_though_the_system_fails_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")
    entry = tmp_path / "d" / "_log" / "0000000002.json"

    def failing(call: Callable[..., object]) -> Callable[..., None]:
        def fail(*paths: Any) -> None:
            call(*paths)
            # No disk fails when it is asked to.
            if entry.exists() and paths[-1] in (entry, entry.parent) and not (entry.parent / "failed").exists():
                (entry.parent / "failed").touch()
                raise OSError(errno.EIO, "Input/output error")

        return fail

    if fails == "the link":
        monkeypatch.setattr(os, "link", failing(os.link))
    else:
        monkeypatch.setattr("cachelayer.objects.local.sync_path", failing(sync_path))
    with pytest.warns(cachelayer.CacheLayerWarning, match=r"0002\.json is written, but may be lost"):
        storage.tag("d@v1", "best")
    assert (entry.parent / "failed").exists()
    assert [event.kind for event in storage.history("d")] == ["publish", "tag"]


@pytest.mark.parametrize(
    ("mode", "umask", "warns"), [(0o775, 0o077, True), (0o775, 0o027, False), (0o755, 0o077, False)]
)
def test_who_shuts_others_out_of_a_shared_folder_is_warned(
    tmp_path: Path, mode: int, umask: int, warns: bool, recwarn: pytest.WarningsRecorder
) -> None:
    storage = cachelayer.Storage(tmp_path / "caches")
    storage.submit([1, 2], "d@v1")
    for folder in (tmp_path / "caches").glob("**/"):
        folder.chmod(mode)
    before = os.umask(umask)
    try:
        storage.submit([1, 2], "d@v2")
        storage.submit([1, 2], "e@v1")
    finally:
        os.umask(before)
    said = [str(warning.message) for warning in recwarn]
    assert all("umask" in text for text in said)
    assert bool(said) == warns
    assert len(said) == len(set(said))


def test_a_folder_without_permissions_is_read_or_is_a_storage_error() -> None:
    def calls_of(storage: cachelayer.Storage, other: cachelayer.Storage) -> list[Callable[[], object]]:
        return [
            lambda: storage.submit([1], "d@v2"),
            lambda: storage.cache([1], "e@v1"),
            lambda: storage.tag("d@v1", "best"),
            lambda: storage.delete("d@v1"),
            lambda: other.datasets(),
            lambda: other.fetch("d@v1"),
        ]

    def calls_of_nobody() -> Any:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        storage = cachelayer.Storage(readable)
        for call in calls_of(storage, cachelayer.Storage(closed)):
            said_of(call)
        return storage.fetch("d@v1").read([0, 1]).tolist()

    with tempfile.TemporaryDirectory() as folder:
        readable, closed = Path(folder, "readable"), Path(folder, "closed")
        cachelayer.Storage(readable).submit([1, 2], "d@v1")
        shutil.copytree(readable, closed)
        # Nobody cannot import where Python lies in root's home: whatever the calls import, they import before.
        mine = cachelayer.Storage(Path(folder, "mine"))
        mine.submit([1, 2], "d@v1").read([0, 1])
        for call in calls_of(mine, mine)[:3]:
            call()
        mine.delete("d@v2")
        Path(folder).chmod(0o755)
        for path in (readable, *readable.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        closed.chmod(0)
        try:
            assert in_a_fork(calls_of_nobody) == [1, 2]
        finally:
            for path in (closed, readable, *readable.rglob("*")):
                path.chmod(0o755)


USES = {
    "read": lambda store, name: store.read(name),
    "stat": lambda store, name: store.stat(name),
    "put": lambda store, name: store.put(name, b"ours"),
    "put if absent": lambda store, name: store.put_if_absent(name, b"ours"),
    "download": lambda store, name: store.download(name, Path("/nowhere/file"), 5),
    "read ranges": lambda store, name: store.read_ranges([(name, 0, 1)]),
    "put a file": lambda store, name: store.put_file(Path("/nowhere/file"), Blob(name, 5, 0)),
    "names": lambda store, name: store.names(name),
    "folder": lambda store, name: store.folder(name),
    "delete": lambda store, name: store.delete(name),
    "delete a folder": lambda store, name: store.delete_folder(name),
    "local path": lambda store, name: store.local_path(name),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize("use", USES)
def test_no_link_and_no_name_leads_out_of_the_folder(tmp_path: Path, use: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    (outside / "below").mkdir(parents=True)
    (outside / "file").write_bytes(b"12345")
    (root / "d" / "_builds").mkdir(parents=True)
    store = LocalStore(root)
    for name, to in {"x": outside, "inside": root / "d", "f": outside / "file", "gone": outside / "new"}.items():
        (root / "d" / "_builds" / name).symlink_to(to)
    (root / "d" / "shards").symlink_to(outside)
    before = contents(tmp_path)
    links = [
        "d/shards",
        "d/shards/file",
        "d/_builds/x",
        "d/_builds/x/file",
        "d/_builds/x/below",
        "d/_builds/x/new/file",
        "d/_builds/f",
    ]
    names = ["../outside/file", "/etc/passwd", "d/../../outside/file", "..", "d/./x", "d//x", "d/\0"]
    for name in [*links, "d/_builds/gone", "d/_builds/inside/_builds", *names]:
        with pytest.raises(cachelayer.StorageError, match=r"is a link|is not the name"):
            USES[use](store, name)
    for name in [*links, "d/_builds/gone", "d/_builds/inside/_builds"]:
        with pytest.raises(cachelayer.StorageError, match="is a link"):
            USES[use](store.folder("d"), name.removeprefix("d/"))
    assert contents(tmp_path) == before
    assert store.names("d/_builds") == []


def test_the_folder_itself_and_that_of_a_dataset_may_be_links(tmp_path: Path) -> None:
    disk, other = tmp_path / "disk", tmp_path / "other"
    (other / "numbers").mkdir(parents=True)
    disk.mkdir()
    (tmp_path / "link").symlink_to(disk)
    (disk / "numbers").symlink_to(other / "numbers")
    storage = cachelayer.Storage(tmp_path / "link")
    storage.submit([1, 2, 3], "numbers@v1")
    assert storage.fetch("numbers@v1").read([2, 0]).tolist() == [3, 1]
    assert storage.datasets() == ["numbers"]
    assert (other / "numbers" / "_log").is_dir()
    assert storage.gc(grace=0) == []
    storage.delete("numbers@v1", grace=0)
    assert not [path for path in other.rglob("*") if path.is_file() and path.parent.name != "_log"]
    assert (disk / "numbers").is_symlink()


def test_what_is_no_file_is_not_waited_for(store: LocalStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for use in ("read", "read ranges"):
        with pytest.raises(cachelayer.CorruptionError, match="not a regular file"):
            USES[use](store, "pipe")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_an_error_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    other = cachelayer.Storage(tmp_path / "other")
    other.submit([1], "d@v1")

    def link(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    # No file system without links can be mounted everywhere that tests run.
    monkeypatch.setattr(os, "link", link)
    storage = cachelayer.Storage(tmp_path / "storage")

    def never() -> Any:
        pytest.fail("the source was asked")

    for call in (
        lambda: storage.submit(never, "d@v1"),
        lambda: storage.cache(never, "d@v1"),
        lambda: other.copy("d@v1", storage),
    ):
        with pytest.raises(cachelayer.StorageError, match=r"no hard links .*: keep the storage on one that has them"):
            call()
    assert [path.name for path in (tmp_path / "storage").rglob("*") if path.is_file()] in ([], ["v1"])


def test_a_put_whose_file_vanishes_before_it_has_its_name_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, link, calls = LocalStore(tmp_path), os.link, list[Path]()

    def vanishing(path: Path, other: Path) -> None:
        calls.append(path)
        if len(calls) == 1:
            # What a collector without a grace does.
            path.unlink()
        link(path, other)

    monkeypatch.setattr(os, "link", vanishing)
    assert store.put_if_absent("d/claim", b"mine")
    assert store.read("d/claim") == b"mine"
    assert len(calls) == 2


def test_a_folder_whose_name_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    named = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    for place in (named, Path(named)):
        with pytest.raises(cachelayer.InvalidArgumentError, match=r"caf\\udce9.*not UTF-8"):
            cachelayer.Storage(place)
    with pytest.raises(cachelayer.InvalidArgumentError, match="not UTF-8"):
        cachelayer.Storage(tmp_path, local_cache=named)


def test_a_folder_of_copies_that_cannot_be_hinders_nobody_who_makes_none(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "s", local_cache=tmp_path / ("x" * 300))
    assert list(storage.cache([1, 2], "d@v1")) == [1, 2]
