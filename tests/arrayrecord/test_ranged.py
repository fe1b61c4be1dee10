"""Records read by ranges: the same as read from files, with few bytes and round trips, and never a wrong one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import CacheLayerError, CorruptionError, Storage
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.ranged import Range, RangedShards, ShardObject
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.objects import paths
from cachelayer.records.spans import Records

SIZES = st.sampled_from([0, 1, 7, 300, 3000, 65_000, 65_536, 70_000, 200_000])


class Reads:
    """Reads ranges of local objects, each of which may be changed, and keeps count.

    Attributes:
        calls: the ranges of each call.
        changed: objects that are read instead.
    """

    def __init__(self, published: VersionRecords) -> None:
        self._store = published.version.folder
        self.calls: list[Sequence[Range]] = []
        self.changed: dict[str, bytes] = {}

    def whole(self, name: str) -> bytes:
        found = self.changed.get(name) or self._store.read(name)
        assert found is not None
        return found

    def __call__(self, ranges: Sequence[Range]) -> list[bytes]:
        self.calls.append(ranges)
        for name, _, stop in ranges:
            if stop > len(self.whole(name)):
                raise CorruptionError(f"{name}: it has {len(self.whole(name))} bytes, expected {stop}")
        return [self.whole(name)[start:stop] for name, start, stop in ranges]

    def nbytes(self, suffix: str) -> int:
        return sum(stop - start for ranges in self.calls for name, start, stop in ranges if name.endswith(suffix))


class Remote:
    """A version that is read by ranges."""

    def __init__(self, ref: Any, **options: Any) -> None:
        published = ref._base
        assert isinstance(published, VersionRecords)
        files = published.version.manifest.shards
        self.objects = [ShardObject("memory://d", file.name, paths.index_of(file.name), file.stats) for file in files]
        self.splits = np.cumsum([0, *(file.stats.records for file in files)])
        self.reads = Reads(published)
        self.ranged = RangedShards(self.reads, self.objects.__getitem__, np.diff(self.splits), **options)

    def records(self, numbers: Sequence[int]) -> list[bytes]:
        wanted = np.asarray(numbers, np.int64)
        shard_of = np.searchsorted(self.splits[1:], wanted, side="right")
        found: Records = self.ranged.records(shard_of, wanted - self.splits[shard_of])
        return found.to_list()


def numbered(tmp_path: Path, count: int, shard_bytes: int, compression: str | None = None) -> Any:
    """Records of 8 bytes that are their numbers."""
    records = [number.to_bytes(8, "little") for number in range(count)]
    return Storage(tmp_path).submit(records, "d@v1", shard_bytes=shard_bytes, compression=compression)


def expected(numbers: Sequence[int]) -> list[bytes]:
    return [int(number).to_bytes(8, "little") for number in numbers]


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=30),
    typed=st.booleans(),
    compression=st.sampled_from([None, "zstd"]),
    shard_bytes=st.sampled_from([1, 5000, 200_000, 1 << 26]),
    data=st.data(),
)
def test_records_by_ranges_are_those_that_were_written(
    sizes: list[int], typed: bool, compression: str | None, shard_bytes: int, data: st.DataObject
) -> None:
    values = [np.random.default_rng(place).bytes(size) for place, size in enumerate(sizes)]
    source: list[Any] = [{"data": value, "place": place} for place, value in enumerate(values)] if typed else values
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    ref = storage.submit(source, "d@v1", compression=compression, shard_bytes=shard_bytes)
    numbers = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=60))
    found = ref.__getitems__(numbers)
    assert [element["data"] if typed else element for element in found] == [values[number] for number in numbers]
    assert typed is False or [int(element["place"]) for element in found] == numbers
    last = ref[-1]
    assert (last["data"] if typed else last) == values[-1]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_batch_takes_a_round_trip_more_for_indices_that_are_not_here(tmp_path: Path, compression: str | None) -> None:
    remote = Remote(numbered(tmp_path, 3000, 10_000, compression))
    assert len(remote.objects) > 3
    numbers = np.random.default_rng(0).permutation(3000)[:256].tolist()
    assert remote.records(numbers) == expected(numbers)
    assert len(remote.reads.calls) == 2
    assert remote.records(numbers[::-1]) == expected(numbers[::-1])
    assert len(remote.reads.calls) == 3


def test_one_batch_has_records_of_one_size_and_of_others(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit([number.to_bytes(8, "little") for number in range(100)], "d@v1")
    remote = Remote(storage.append("d@v1", "v2", [b"x" * number for number in range(50)]))
    assert remote.records([99, 100, 149, 0]) == [*expected([99]), b"", b"x" * 49, *expected([0])]


def test_an_index_is_fetched_whole_and_once_if_all_of_them_have_room(tmp_path: Path) -> None:
    ref = numbered(tmp_path, 3000, 10_000)
    remote = Remote(ref)
    for batch in np.random.default_rng(0).permutation(3000)[: 5 * 64].reshape(5, 64):
        assert remote.records(batch.tolist()) == expected(batch)
    remote.records(range(3000))
    assert remote.reads.nbytes(".index") == sum(each.stats.index_nbytes for each in remote.objects)


def test_of_indices_that_have_no_room_the_rows_are_fetched(tmp_path: Path) -> None:
    remote = Remote(numbered(tmp_path, 3000, 10_000), kept_nbytes=20_000)
    for first in (7, 8):
        batch = np.arange(first, 3000, 50)
        assert remote.records(batch.tolist()) == expected(batch)
    assert remote.reads.nbytes(".index") == 2 * len(batch) * 16 + 16 * len({*remote.splits.searchsorted(batch)})


def test_a_damaged_index_is_refused_even_if_the_record_is_right(tmp_path: Path) -> None:
    remote = Remote(numbered(tmp_path, 100, 1 << 20))
    name = remote.objects[0].index_name
    raw = remote.reads.whole(name)
    remote.reads.changed[name] = raw[:200] + b"!" + raw[201:]
    with pytest.raises(CorruptionError, match=r"shards/.*\.index"):
        remote.records([99])


@pytest.mark.parametrize("lost", [False, True], ids=["changed places", "lost"])
def test_a_row_of_an_index_that_changed_places_or_is_lost_gives_no_wrong_record(tmp_path: Path, lost: bool) -> None:
    remote = Remote(numbered(tmp_path, 100, 1 << 20), kept_nbytes=0)
    name = remote.objects[0].index_name
    raw = remote.reads.whole(name)
    first, second = raw[16 * 43 : 16 * 44], raw[16 * 44 : 16 * 45]
    remote.reads.changed[name] = raw.replace(first + second, bytes(16) + second if lost else second + first)
    with pytest.raises(CorruptionError, match="array_record"):
        remote.records([42])


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kept_nbytes", [0, 1 << 20], ids=["rows", "whole indices"])
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_byte_is_flipped_no_record_is_wrong(
    small: Callable[[str | None], Any], compression: str | None, kept_nbytes: int, data: st.DataObject
) -> None:
    remote = Remote(small(compression), kept_nbytes=kept_nbytes)
    where = remote.objects[data.draw(st.integers(0, len(remote.objects) - 1))]
    name = data.draw(st.sampled_from([where.name, where.index_name]))
    damaged = bytearray(remote.reads.whole(name))
    # The records lie in the first bytes.
    place = st.one_of(*(st.integers(0, min(len(damaged), most) - 1) for most in (1100, len(damaged))))
    damaged[data.draw(place)] ^= 1 << data.draw(st.integers(0, 7))
    remote.reads.changed[name] = bytes(damaged)
    for number in range(40):
        try:
            assert remote.records([number]) == expected([number])
        except CacheLayerError as error:
            assert where.name in str(error) or where.index_name in str(error)  # noqa: PT017


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], Any]:
    refs = {each: numbered(tmp_path_factory.mktemp("small"), 40, 1000, each) for each in (None, "zstd")}
    return refs.__getitem__


@pytest.mark.parametrize("kept_nbytes", [0, 1 << 20, None], ids=["rows", "whole indices", "local"])
def test_whatever_bit_of_an_identity_or_a_row_is_flipped_it_is_found_out(
    tmp_path: Path, kept_nbytes: int | None
) -> None:
    ref = numbered(tmp_path, 100, 1 << 20)
    where, raw = Remote(ref).objects[0], Remote(ref).reads.whole(Remote(ref).objects[0].index_name)
    path = tmp_path / "d" / where.index_name
    path.chmod(0o644)
    files = ShardFiles(tmp_path / "d" / where.name, path, where.stats)
    for bit in range(2 * 16 * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        remote = Remote(ref, kept_nbytes=kept_nbytes or 0)
        remote.reads.changed[where.index_name] = bytes(damaged)
        local = LocalShards.of_file(nullcontext(files), where.stats, "open")
        # Records of one size are found without their places in the index.
        is_used = kept_nbytes is not None or not 8 * 16 <= bit < 8 * (16 + 12)
        with pytest.raises(CorruptionError, match="shards/") if is_used else nullcontext():
            local.record(0) if kept_nbytes is None else remote.records([0])


@pytest.mark.parametrize("kept_nbytes", [0, 1 << 20], ids=["rows", "whole indices"])
def test_an_index_of_another_version_is_refused(tmp_path: Path, kept_nbytes: int) -> None:
    remote = Remote(numbered(tmp_path / "a", 100, 1 << 20), kept_nbytes=kept_nbytes)
    other = Storage(tmp_path / "b").submit([bytes(8)] * 100, "d@v1")
    name = remote.objects[0].index_name
    remote.reads.changed[name] = Remote(other).reads.whole(Remote(other).objects[0].index_name)
    assert len(remote.reads.whole(name)) == remote.objects[0].stats.index_nbytes
    with pytest.raises(CorruptionError, match="shards/"):
        remote.records([1])


@pytest.mark.parametrize("part", ["array_record", "index"])
def test_an_object_that_was_cut_is_named(part: str) -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    ref = storage.submit([b"x" * 1000] * 100, "d@v1")
    store = ref._base.version.folder  # type: ignore[attr-defined]
    name = f"{ref._base.version.manifest.shards[0].name.removesuffix('array_record')}{part}"  # type: ignore[attr-defined]
    store.put(name, store.read(name)[:-900] if part == "index" else store.read(name)[:50_000])
    with pytest.raises(CorruptionError, match=name):
        cachelayer.open(ref.reference, local_cache_bytes=0).read(range(100))
