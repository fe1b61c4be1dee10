"""Records of several versions on this host, read together from wherever their shards are mapped."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer.access import open_shards
from cachelayer.access.concat import JoinedBase, JoinedRef, Member
from cachelayer.arrayrecord import mapping
from cachelayer.arrayrecord.address_space import AddressSpace
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.errors import CacheLayerWarning, CorruptionError
from cachelayer.records.memory import groups_of
from cachelayer.records.selection import Selection

VERSIONS, N = 3, 40
KINDS = ("uniform", "varying", "zstd")


def record(version: int, number: int, kind: str) -> bytes:
    nbytes = 1000 if kind == "uniform" else version * 300 + number * 37
    return np.random.default_rng([version, number]).bytes(nbytes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions of several shards each."""
    made = tmp_path_factory.mktemp("joined")
    for kind in KINDS:
        for version in range(VERSIONS):
            cachelayer.Storage(made).cache(
                [record(version, number, kind) for number in range(N)],
                kind,
                f"v{version}",
                shard_bytes=12_000,
                compression="zstd" if kind == "zstd" else None,
            )
    return made


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[AddressSpace | None]]:
    """The address space that shards are mapped into; the test may set another before it opens versions."""
    current: list[AddressSpace | None] = [AddressSpace(1 << 30, 60)]
    for module in (mapping, open_shards):
        monkeypatch.setattr(module, "address_space", lambda: current[0])
    return iter([current])  # type: ignore[return-value]


def opened(folder: Path, kind: str, verify: Any = "open") -> list[Any]:
    storage = cachelayer.Storage(folder, verify=verify)
    return [storage.fetch(kind, f"v{version}") for version in range(VERSIONS)]


def together(joined: JoinedRef[Any], numbers: Sequence[int]) -> bool:
    """Whether one call reads these records."""
    shards = joined._base._shards
    return shards is not None and shards.records(np.array(numbers), in_part=False) is not None


def mapped(ref: Any) -> list[int]:
    """The mapped shards of a version."""
    return np.flatnonzero(ref._base.shards.opened.tables.is_mapped).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", ["never", "always"])
@pytest.mark.parametrize("room", ["all", "some", "none"])
def test_records_are_the_same_with_room_for_all_shards_for_some_or_for_none(
    folder: Path, space: Iterator[Any], kind: str, verify: Any, room: str
) -> None:
    """Views of all kinds are joined, and their shards come and go between reads."""
    current = next(space)
    current[0] = {"all": AddressSpace(1 << 30, 60), "some": AddressSpace(1 << 28, 6), "none": None}[room]
    a, b, c = opened(folder, kind, verify)
    drawn = np.random.default_rng(0)
    shuffled = drawn.integers(0, N, 50)
    every = [[record(version, number, kind) for number in range(N)] for version in range(VERSIONS)]
    joins = [
        (cachelayer.concat([a, b, c]), every[0] + every[1] + every[2]),
        (cachelayer.concat([c, a[7:31], b[3:]]), every[2] + every[0][7:31] + every[1][3:]),
        (cachelayer.concat([a, b.select(shuffled), a]), every[0] + [every[1][n] for n in shuffled] + every[0]),
        (cachelayer.concat([c[::-1], b]), every[2][::-1] + every[1]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheLayerWarning)
        for size in (5, 60, 1, 60, 60):
            for joined, expected in joins:
                numbers = drawn.integers(0, len(expected), size)
                assert list(joined.read(numbers)) == [expected[number] for number in numbers.tolist()]
            if room != "none" and size == 60:
                current[0].evict(since=2**62)
    for joined, expected in joins:
        assert list(joined.read([0, len(expected) - 1])) == [expected[0], expected[-1]]
        assert together(joined, [0, 1]) or room != "all"


def test_shards_that_are_opened_later_are_read_together_too(folder: Path, space: Iterator[Any]) -> None:
    next(space)
    joined = cachelayer.concat(opened(folder, "varying"))
    assert list(joined.read([0, N])) == [record(0, 0, "varying"), record(1, 0, "varying")]
    assert together(joined, [0, N])
    assert not together(joined, [0, 2 * N])
    assert joined.read([0, 2 * N])[1] == record(2, 0, "varying")
    assert together(joined, [0, N, 2 * N])


def test_what_a_join_reads_gives_way_after_what_nobody_reads(folder: Path, space: Iterator[Any]) -> None:
    current = next(space)
    a, b, c = opened(folder, "uniform")
    whole = np.arange(N)
    for ref in (a, b, c):
        ref.read(whole)
    shards = len(mapped(a))
    joined = cachelayer.concat([a, b])
    assert together(joined, range(2 * N))
    assert current[0].evict(since=2**62)
    assert len(mapped(a)) == len(mapped(b)) == shards
    assert len(mapped(c)) < shards


def test_versions_of_other_sizes_of_records_are_read_one_by_one(folder: Path, tmp_path: Path) -> None:
    longer = cachelayer.Storage(tmp_path).cache([bytes([n]) * 500 for n in range(9)], "longer", "v1")
    joined = cachelayer.concat([*opened(folder, "uniform"), longer, *opened(folder, "varying")])
    for _ in range(3):
        found = joined.read([0, VERSIONS * N, 1, VERSIONS * N + 9])
        assert list(found) == [record(0, 0, "uniform"), bytes(500), record(0, 1, "uniform"), record(0, 0, "varying")]


def test_threads_read_right_records_while_shards_come_and_go(folder: Path, space: Iterator[Any]) -> None:
    current = next(space)
    joined = cachelayer.concat(opened(folder, "uniform"))
    expected = [record(version, number, "uniform") for version in range(VERSIONS) for number in range(N)]
    wrong: list[int] = []
    done = threading.Event()

    def read(seed: int) -> None:
        drawn = np.random.default_rng(seed)
        for _ in range(60):
            numbers = drawn.integers(0, len(expected), 30)
            found = joined.read(numbers)
            wrong.extend(n for n, one in zip(numbers.tolist(), found, strict=True) if one != expected[n])

    def evict() -> None:
        while not done.is_set():
            current[0].evict(since=2**62)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    evicting = threading.Thread(target=evict)
    for thread in (evicting, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    evicting.join()
    assert wrong == []


def test_an_eviction_that_is_interrupted_takes_no_shard_from_those_who_read_it(
    folder: Path, space: Iterator[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    current = next(space)
    ref = opened(folder, "uniform")[0]
    expected = [record(0, number, "uniform") for number in range(N)]
    assert list(ref.read(np.arange(N))) == expected
    reading, files = current[0].epoch, current[0].mapped
    given_up: list[ShardReader] = []
    without_mapping = ShardReader.without_mapping

    def interrupted(reader: ShardReader) -> ShardReader:
        if given_up:
            raise KeyboardInterrupt
        given_up.append(without_mapping(reader))
        return given_up[0]

    with monkeypatch.context() as patched:
        patched.setattr(ShardReader, "without_mapping", interrupted)
        with pytest.raises(KeyboardInterrupt):
            current[0].evict(since=2**62)
    assert current[0].mapped == files
    assert list(ref.read(np.arange(N))) == expected
    del reading
    while current[0].evict(since=2**62):
        pass
    assert current[0].mapped == 0
    assert list(ref.read(np.arange(N))) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_that_is_read_together_with_others_is_named(tmp_path: Path, kind: str) -> None:
    storage = cachelayer.Storage(tmp_path, verify="always")
    parts = [
        storage.cache(
            [record(version, number, kind) for number in range(N)],
            f"d{version}",
            "v1",
            compression="zstd" if kind == "zstd" else None,
        )
        for version in range(2)
    ]
    joined = cachelayer.concat(parts)
    joined.read([0, N])
    assert together(joined, [0, N])
    (path,) = (path for path in tmp_path.rglob("*.array_record") if "d1/" in str(path))
    damaged = bytearray(path.read_bytes())
    begin = damaged.find(record(1, 30, kind)[100:110]) if kind != "zstd" else 20_000
    damaged[begin : begin + 900] = bytes(900)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(damaged)
    with pytest.raises(CorruptionError, match=rf"{path}: record \d+ of the shard"):
        joined.read(np.arange(2 * N)[::-1])


@pytest.mark.parametrize("groups", [1, 2, 256, 257, 70_000])
def test_rows_are_grouped_whatever_the_number_of_groups(groups: int) -> None:
    group_of = np.random.default_rng(0).integers(0, groups, 300)
    found = list(groups_of(group_of, groups))
    assert [group for group, _ in found] == sorted(set(group_of.tolist()))
    for group, rows in found:
        assert rows.tolist() == np.flatnonzero(group_of == group).tolist()
    assert list(groups_of(group_of[:0], groups)) == []


@pytest.mark.parametrize("numbers", [range(N, N + 5), range(-3, 2), np.array([0, N]), np.array([1, -1])])
def test_a_selection_outside_of_its_version_does_not_reach_into_the_next(folder: Path, numbers: Any) -> None:
    a, b, _ = opened(folder, "uniform")
    whole, wild = Selection.all(N), Selection(numbers)
    base = JoinedBase([Member(each._base, selection, "00") for each, selection in ((a, whole), (b, wild), (a, whole))])
    base.records(np.array([0, 2 * N]))
    for _ in range(2):
        with pytest.raises(CorruptionError, match="there is no record"):
            base.records(np.array([0, N, N + 1, N + len(numbers)]))
