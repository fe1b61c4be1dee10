"""Objects as files: whole or absent, put by exactly one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from store_conformance import TEXT, StoreConformance

import cachelayer
from cachelayer.objects.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


class TestLocal(StoreConformance):
    @pytest.fixture
    def store(self, store: LocalStore) -> LocalStore:
        return store


def test_a_folder_is_deleted_while_others_write_there(store: LocalStore) -> None:
    def write(writer: int) -> None:
        for number in range(300):
            # The folder may vanish between its making and the writing.
            with suppress(cachelayer.StorageError):
                store.put(f"a/{writer}-{number}", b"")

    with ThreadPoolExecutor(2) as threads:
        writers = [threads.submit(write, writer) for writer in range(2)]
        while not all(writer.done() for writer in writers):
            store.delete_folder("a")
    store.delete_folder("a")
    assert store.names("a") == []


def test_a_file_in_the_way_of_a_folder_is_no_object(store: LocalStore) -> None:
    store.put("a/b", TEXT)
    assert store.names("a/b") == []
    assert store.modified("a/b/c") is None
    store.delete("a/b/c")
    assert store.read("a/b") == TEXT


FULL = """
import resource, signal, sys
from pathlib import Path
from cachelayer import StorageError
from cachelayer.objects.local import LocalStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = LocalStore(Path(sys.argv[1]))
store.put("kept", b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for put in (store.put, store.put_if_absent):
    for name in ("kept", "new"):
        try:
            put(name, b"x" * 5000)
        except StorageError as error:
            print(error)
print(store.names(""), store.read("kept"))
"""


def test_a_put_that_fails_changes_nothing(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    *errors, end = found.stdout.splitlines()
    assert end == "['kept'] b'old'"
    assert len(errors) == 4
    assert all("cannot write" in error for error in errors)


def test_a_folder_is_deleted_whoever_else_deletes_it(store: LocalStore, tmp_path: Path) -> None:
    for _ in range(20):
        for number in range(30):
            (tmp_path / "a" / f"b{number}").mkdir(parents=True)
            (tmp_path / "a" / f"b{number}" / "file").touch()
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(store.delete_folder, ["a"] * 4))
        assert not (tmp_path / "a").exists()
    store.delete_folder("a")


FORBIDDEN = """
import os, sys, importlib.metadata, tempfile
# Loaded while the folders of the interpreter can still be read.
import cachelayer
with tempfile.TemporaryDirectory() as warm:
    cachelayer.Storage(warm).submit([1, 2], "d", "v1").read([0])

readable, writable = sys.argv[1:]
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
storage = cachelayer.Storage(readable)
print(storage.fetch("d", "v1").read([0, 1]).tolist())
for call in (
    lambda: storage.submit([1], "d", "v2"),
    lambda: storage.cache([1], "d", "v2"),
    lambda: storage.submit([1], "e", "v1"),
    lambda: storage.tag("d", "v1", "best"),
    lambda: storage.delete("d", "v1"),
    lambda: cachelayer.Storage(writable).datasets(),
    lambda: cachelayer.Storage(writable).fetch("d", "v1"),
    lambda: cachelayer.Storage(writable).submit([1], "d", "v2"),
):
    try:
        call()
    except cachelayer.StorageError as error:
        assert isinstance(error, OSError)
        print("refused:", error)
"""


def test_a_folder_without_permissions_is_read_or_is_a_storage_error() -> None:
    with tempfile.TemporaryDirectory() as folder:
        readable, closed = Path(folder, "readable"), Path(folder, "closed")
        cachelayer.Storage(readable).submit([1, 2], "d", "v1")
        shutil.copytree(readable, closed)
        Path(folder).chmod(0o755)
        for path in (readable, *readable.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        closed.chmod(0)
        try:
            command = [sys.executable, "-c", FORBIDDEN, str(readable), str(closed)]
            found = subprocess.run(command, capture_output=True, text=True)
        finally:
            for path in (closed, readable, *readable.rglob("*")):
                path.chmod(0o755)
    first, *refused = found.stdout.splitlines()
    assert first == "[1, 2]", found.stderr
    assert [line.split(":")[0] for line in refused] == ["refused"] * 8, found.stdout + found.stderr
