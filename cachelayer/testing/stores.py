"""What every store of objects promises."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import google_crc32c
import pytest

from cachelayer import CorruptionError, StorageError
from cachelayer.objects.store import Blob, Stat, Store

TEXT = os.urandom(300_000)
LARGE = TEXT * 112
"""More than one part, of an upload as of a download."""


class StoreTests:
    """A store of objects: puts, reads, ranges, facts, names, deletion, whole files, threads, pickles.

    Examples:
        Subclass it in a file of tests, and return an empty store from the fixture. pytest runs the inherited tests.

        >>> import pytest
        >>> from cachelayer.objects.local import LocalStore
        >>> from cachelayer.testing import StoreTests
        >>> class TestLocalStore(StoreTests):
        ...     @pytest.fixture
        ...     def store(self, tmp_path):
        ...         return LocalStore(tmp_path / "store")
    """

    deleting_threads: ClassVar[int] = 4
    """How many threads may delete one folder at the same time."""

    @pytest.fixture
    def store(self) -> Store:
        """An empty store."""
        raise NotImplementedError

    def test_what_was_put_is_read_until_it_is_deleted(self, store: Store) -> None:
        store.delete("a/b/c")
        assert (store.read("a/b/c"), store.stat("a/b/c")) == (None, None)
        store.put("a/b/c", TEXT)
        store.put("a/b/c", b"other")
        assert store.read("a/b/c") == b"other"
        assert is_stat_of(b"other", store.stat("a/b/c"))
        assert (store.read("a/b/c/d"), store.stat("a/b/c/d")) == (None, None)
        store.delete("a/b/c")
        assert (store.read("a/b/c"), store.stat("a/b/c")) == (None, None)
        assert store.put_if_absent("a/b/c", b"2")

    @pytest.mark.parametrize("data", [b"", TEXT], ids=["empty", "long"])
    def test_only_the_first_put_wins_unless_the_bytes_are_the_same(self, store: Store, data: bytes) -> None:
        assert store.put_if_absent("a/b", data)
        assert not store.put_if_absent("a/b", data + b"later")
        assert store.put_if_absent("a/b", data)
        assert store.read("a/b") == data
        assert is_stat_of(data, store.stat("a/b"))

    def test_an_object_is_put_by_exactly_one_of_many_threads(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as threads:
            won = list(threads.map(lambda number: store.put_if_absent("a/log", b"%d" % number), range(32)))
        assert sum(won) == 1
        assert store.read("a/log") == b"%d" % won.index(True)
        assert store.names("a") == ["log"]

    def test_a_later_object_is_not_older(self, store: Store) -> None:
        store.put("a", b"1")
        store.put("b", b"2")
        facts = [store.stat("a"), store.stat("b")]
        first, second = [each.modified for each in facts if each is not None]
        assert first is not None
        assert second is not None
        assert 1_700_000_000 < first <= second

    def test_names_are_those_directly_below_a_folder_and_never_stale(self, store: Store) -> None:
        assert store.names("a") == []
        for name in ("a/x", "a/y/1", "a/y/2", "ab/z", "a/ü +%#?&=.json", "c"):
            store.put(name, b"")
        assert store.names("a") == ["x", "y", "ü +%#?&=.json"]
        assert store.names("") == ["a", "ab", "c"]
        assert store.names("a/x") == []
        assert store.read("a/ü +%#?&=.json") == b""
        store.delete("a/x")
        assert store.names("a") == ["y", "ü +%#?&=.json"]

    def test_a_folder_is_deleted_with_all_below_it_and_nothing_beside(self, store: Store) -> None:
        for name in ("a/1", "a/b/2", "a/b/c/3", "ab/4", "5"):
            store.put(name, b"")
        with ThreadPoolExecutor(self.deleting_threads) as threads:
            list(threads.map(store.delete_folder, ["a"] * self.deleting_threads))
        assert store.names("") == ["5", "ab"]
        store.delete_folder("a")

    def test_files_are_made_objects_and_downloaded(self, store: Store, tmp_path: Path) -> None:
        source, target = place_of_file(store, tmp_path), tmp_path / "target"
        target.write_bytes(b"x" * 100)
        before = target.stat().st_ino
        for data in (LARGE, TEXT, b""):
            source.write_bytes(data)
            store.put_file(source, blob_of("a/file", data))
            assert is_stat_of(data, store.stat("a/file"))
            # Over what was there, in place.
            assert store.download("a/file", target, len(data)) == google_crc32c.value(data)
            assert (target.read_bytes() == data, target.stat().st_ino) == (True, before)
        with pytest.raises(StorageError, match="nowhere"):
            store.put_file(source.with_name("nowhere"), blob_of("a/other", b""))
        assert store.stat("a/other") is None
        with pytest.raises(StorageError, match="nowhere"):
            store.download("a/file", tmp_path / "nowhere" / "file", 0)
        source.write_bytes(LARGE)
        store.put_file(source, blob_of("a/file", LARGE))
        store.put("a/file", TEXT)
        assert is_stat_of(TEXT, store.stat("a/file"))

    @pytest.mark.parametrize("nbytes", [len(TEXT) - 1, len(TEXT) + 1, len(TEXT) + (20 << 20), 2**40, 2**62])
    def test_an_object_of_another_size_is_corrupt_and_takes_no_memory(
        self, store: Store, tmp_path: Path, nbytes: int
    ) -> None:
        store.put("a/b", TEXT)
        with pytest.raises(CorruptionError, match=rf"a/b.*{len(TEXT)}.*{nbytes}"):
            store.download("a/b", tmp_path / "target", nbytes)
        with pytest.raises(CorruptionError, match="a/c"):
            store.download("a/c", tmp_path / "target", nbytes)
        if nbytes > len(TEXT):
            for start in (0, len(TEXT) - 1, len(TEXT)):
                # Pieces of it are asked for, and the first that is missing is named.
                with pytest.raises(CorruptionError, match=rf"a/b.*{len(TEXT)}"):
                    store.read_ranges([("a/b", 0, 10), ("a/b", start, nbytes)])
        with pytest.raises(CorruptionError, match="a/c"):
            store.read_ranges([("a/c", 0, 10)])

    def test_ranges_are_exact(self, store: Store) -> None:
        contents = {"a/b": TEXT, "c": TEXT[::-1], "large": LARGE}
        for name, data in contents.items():
            store.put(name, data)
        ends = [(0, 1), (0, 0), (5, 5), (299_999, 300_000), (10, 20), (15, 30), (10, 20), (100, 70_000), (9_000, 9_001)]
        ranges = [(name, *end) for end in ends for name in ("a/b", "c")]
        ranges.append(("large", 7, len(LARGE) - 7))
        assert store.read_ranges(ranges) == [contents[name][start:stop] for name, start, stop in ranges]
        assert store.read_ranges([]) == []

    def test_many_threads_read_what_is_there(self, store: Store) -> None:
        store.put("a", TEXT)

        def read(first: int) -> bool:
            ranges = [("a", start, start + 1000) for start in range(first * 1000, 290_000, 50_000)]
            return store.read_ranges(ranges) == [TEXT[start:stop] for _, start, stop in ranges]

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(read, range(64)))

    def test_a_pickled_store_is_the_same(self, store: Store) -> None:
        store.put("a", b"1")
        other: Store = pickle.loads(pickle.dumps(store))
        assert other.read("a") == b"1"
        assert other.url == store.url

    def test_a_folder_is_a_store_of_what_lies_below_it(self, store: Store) -> None:
        store.put("a/b/c", b"1")
        store.put("ab/c", b"2")
        folder = store.folder("a")
        assert (folder.url, folder.name) == (f"{store.url}/a", "a")
        assert folder.folder("b").read("c") == b"1"
        assert folder.names("") == ["b"]
        folder.put("b/d", b"3")
        assert store.names("a/b") == ["c", "d"]
        folder.delete_folder("b")
        assert (store.names("a"), store.read("ab/c")) == ([], b"2")

    def test_files_of_a_folder_are_made_objects_and_those_on_this_machine_have_paths(
        self, store: Store, tmp_path: Path
    ) -> None:
        folder = store.folder("a")
        source = place_of_file(store, tmp_path)
        for data in (TEXT, b"other"):
            for name in ("one", "two"):
                source.write_bytes(data)
                folder.put_file(source, blob_of(f"b/{name}", data))
            assert [folder.read(name) for name in ("b/one", "b/two")] == [data] * 2
        path = folder.local_path("b/one")
        assert path is None or path.read_bytes() == b"other"


def is_stat_of(data: bytes, stat: Stat | None) -> bool:
    """Return whether a store tells the truth about an object: its size, and the checksums that it knows."""
    return (
        stat is not None
        and stat.nbytes == len(data)
        and {stat.crc32c, stat.sent_crc32c} <= {None, google_crc32c.value(data)}
    )


def blob_of(name: str, data: bytes) -> Blob:
    return Blob(name, len(data), google_crc32c.value(data))


def place_of_file(store: Store, folder: Path) -> Path:
    """Return a path for a file that is put into a store: on its disk, if it has one, else in this folder."""
    path = store.local_path("file") or folder / "file"
    path.parent.mkdir(exist_ok=True)
    return path
