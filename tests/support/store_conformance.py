"""What every store of objects promises: subclassed by the tests of each."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from cachelayer import CorruptionError, StorageError
from cachelayer.objects.store import Store

TEXT = os.urandom(300_000)
LARGE = TEXT * 112
"""More than one part, of an upload as of a download."""


class StoreConformance:
    """A subclass gives the fixture ``store``: an empty one."""

    large = LARGE
    deleters = 4

    def test_what_was_put_is_read(self, store: Store) -> None:
        assert store.read("a/b/c") is None
        assert not store.exists("a/b/c")
        store.put("a/b/c", TEXT)
        store.put("a/b/c", b"other")
        assert store.read("a/b/c") == b"other"
        assert store.exists("a/b/c")
        assert not store.exists("a/b/c/d")
        assert store.read("a/b/c/d") is None

    def test_what_is_absent_has_no_size_and_no_time(self, store: Store) -> None:
        assert store.size("a") is None
        assert store.modified("a") is None
        store.put("a", b"12345")
        assert store.size("a") == 5

    @pytest.mark.parametrize("data", [b"", b"x", TEXT])
    def test_objects_of_any_size_are_put_by_one(self, store: Store, data: bytes) -> None:
        assert store.put_if_absent("a/b", data)
        assert not store.put_if_absent("a/b", data + b"later")
        assert store.read("a/b") == data
        assert store.size("a/b") == len(data)

    def test_who_puts_the_bytes_that_are_there_has_won(self, store: Store) -> None:
        assert store.put_if_absent("a", b"token 1")
        assert store.put_if_absent("a", b"token 1")
        assert not store.put_if_absent("a", b"token 2")

    def test_an_object_is_put_by_exactly_one_of_many_threads(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as threads:
            won = list(threads.map(lambda number: store.put_if_absent("a/log", b"%d" % number), range(32)))
        assert sum(won) == 1
        assert store.read("a/log") == b"%d" % won.index(True)
        assert store.names("a") == ["log"]

    def test_a_later_object_is_not_older(self, store: Store) -> None:
        store.put("a", b"1")
        store.put("b", b"2")
        first, second = store.modified("a"), store.modified("b")
        assert first is not None
        assert second is not None
        assert 1_700_000_000 < first <= second

    def test_names_are_those_directly_below_a_folder(self, store: Store) -> None:
        assert store.names("a") == []
        for name in ("a/x", "a/y/1", "a/y/2", "ab/z", "a/ü +%#?&=.json", "c"):
            store.put(name, b"")
        assert store.names("a") == ["x", "y", "ü +%#?&=.json"]
        assert store.names("") == ["a", "ab", "c"]
        assert store.names("a/x") == []
        assert store.read("a/ü +%#?&=.json") == b""

    def test_names_are_never_stale(self, store: Store) -> None:
        for number in range(3):
            store.put(f"a/{number}", b"")
            assert store.names("a") == [str(other) for other in range(number + 1)]
        store.delete("a/1")
        assert store.names("a") == ["0", "2"]

    def test_what_was_deleted_is_absent(self, store: Store) -> None:
        store.delete("a/b")
        store.put("a/b", b"1")
        store.delete("a/b")
        assert not store.exists("a/b")
        assert store.put_if_absent("a/b", b"2")

    def test_a_folder_is_deleted_with_all_below_it_and_nothing_beside(self, store: Store) -> None:
        for name in ("a/1", "a/b/2", "a/b/c/3", "ab/4", "5"):
            store.put(name, b"")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(store.delete_folder, ["a"] * self.deleters))
        assert store.names("") == ["5", "ab"]
        store.delete_folder("a")

    def test_a_file_is_uploaded_and_downloaded(self, store: Store, tmp_path: Path) -> None:
        for number, data in enumerate((b"", TEXT, self.large)):
            source, target = tmp_path / f"source{number}", tmp_path / f"target{number}"
            source.write_bytes(data)
            store.upload(source, "a/file")
            assert store.size("a/file") == len(data)
            assert store.download("a/file", target, len(data)) == google_crc32c.value(data)
            assert target.read_bytes() == data

    def test_a_file_that_is_not_there_is_not_uploaded(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=r"cannot read .*nowhere"):
            store.upload(tmp_path / "nowhere", "a/file")
        assert not store.exists("a/file")

    def test_a_download_to_nowhere_is_an_error(self, store: Store, tmp_path: Path) -> None:
        store.put("a", TEXT)
        with pytest.raises(StorageError, match=r"cannot write .*nowhere"):
            store.download("a", tmp_path / "nowhere" / "file", len(TEXT))

    def test_a_download_writes_over_a_longer_file_in_place(self, store: Store, tmp_path: Path) -> None:
        store.put("a", TEXT)
        target = tmp_path / "target"
        target.write_bytes(b"x" * (len(TEXT) + 100))
        before = target.stat().st_ino
        store.download("a", target, len(TEXT))
        assert target.read_bytes() == TEXT
        assert target.stat().st_ino == before

    @pytest.mark.parametrize("nbytes", [len(TEXT) - 1, len(TEXT) + 1, len(TEXT) + (20 << 20)])
    def test_a_download_of_another_size_is_refused(self, store: Store, tmp_path: Path, nbytes: int) -> None:
        store.put("a/b", TEXT)
        with pytest.raises(CorruptionError, match=rf"a/b: it has {len(TEXT)} bytes, expected {nbytes}"):
            store.download("a/b", tmp_path / "target", nbytes)
        with pytest.raises(CorruptionError, match="a/c: there is no such object"):
            store.download("a/c", tmp_path / "target", nbytes)

    def test_ranges_are_exact(self, store: Store) -> None:
        store.put("a/b", TEXT)
        store.put("c", TEXT[::-1])
        ends = [
            (0, 1),
            (0, 0),
            (5, 5),
            (299_999, 300_000),
            (10, 20),
            (15, 30),
            (10, 20),
            (100, 70_000),
            (150_000, 150_001),
        ]
        ranges = [(name, *end) for end in ends for name in ("a/b", "c")]
        contents = {"a/b": TEXT, "c": TEXT[::-1]}
        assert store.read_ranges(ranges) == [contents[name][start:stop] for name, start, stop in ranges]
        assert store.read_ranges([]) == []

    def test_a_range_of_many_pieces_is_whole(self, store: Store) -> None:
        store.put("a", self.large)
        assert store.read_ranges([("a", 7, len(self.large) - 7)]) == [self.large[7:-7]]

    @pytest.mark.parametrize("start", [0, 2999, 3000, 5000])
    def test_an_object_that_ends_early_is_corrupt(self, store: Store, start: int) -> None:
        store.put("a/b", TEXT[:3000])
        with pytest.raises(CorruptionError, match=r"a/b: it has 3000 bytes, expected 6000"):
            store.read_ranges([("a/b", 0, 10), ("a/b", start, 6000)])

    @pytest.mark.parametrize("nbytes", [2**40, 2**62])
    def test_a_size_that_lies_takes_no_memory(self, store: Store, tmp_path: Path, nbytes: int) -> None:
        store.put("a/b", TEXT)
        with pytest.raises(CorruptionError, match=rf"a/b: it has {len(TEXT)} bytes, expected {nbytes}"):
            store.read_ranges([("a/b", 0, nbytes)])
        with pytest.raises(CorruptionError, match=rf"a/b: it has {len(TEXT)} bytes, expected {nbytes}"):
            store.download("a/b", tmp_path / "target", nbytes)

    def test_an_object_that_is_missing_is_corrupt(self, store: Store) -> None:
        with pytest.raises(CorruptionError, match=r"a/b: there is no such object"):
            store.read_ranges([("a/b", 0, 10)])

    def test_many_threads_read_what_is_there(self, store: Store) -> None:
        store.put("a", TEXT)

        def read(first: int) -> bool:
            ranges = [("a", start, start + 1000) for start in range(first * 1000, 290_000, 50_000)]
            return store.read_ranges(ranges) == [TEXT[start:stop] for _, start, stop in ranges]

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(read, range(64)))

    # Pickles hold no secrets: they come from the environment, and a warning says so.
    @pytest.mark.filterwarnings("ignore:credentials are looked for:cachelayer.CacheLayerWarning")
    def test_a_pickled_store_is_the_same(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        if "connection_string" in getattr(store, "options", {}):
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", store.options["connection_string"])
        store.put("a", b"1")
        other: Any = pickle.loads(pickle.dumps(store))
        assert other.read("a") == b"1"
        assert other.url == store.url
