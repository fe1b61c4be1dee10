"""Records that are not in memory are announced to the kernel, those that are cost nothing."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelayer
from cachelayer.arrayrecord.mapping import MappedFile, merged


def drop(path: Path) -> None:
    """Drop the pages of a file that nobody has mapped from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder of a disk: the folders of tests may be in memory, where no page is dropped."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def cold(on_disk: Path) -> MappedFile:
    path = on_disk / "file"
    path.write_bytes(bytes(8 << 20))
    drop(path)
    file = MappedFile.open(path)
    if file.are_resident(np.array([4 << 20])):
        pytest.skip("this file system does not drop pages, or does not tell which it has")
    return file


def test_what_is_announced_comes_into_memory(cold: MappedFile) -> None:
    wanted = np.array([5 << 20, 1 << 20, (1 << 20) + 4096])
    assert not cold.are_resident(wanted)
    cold.will_need(wanted, wanted + 3000)
    limit = time.monotonic() + 60
    while not cold.are_resident(wanted):
        assert time.monotonic() < limit
    assert not cold.are_resident(np.array([3 << 20]))


def test_a_file_that_is_gone_cannot_be_announced(cold: MappedFile) -> None:
    cold.path.unlink()
    assert cold.are_resident(np.array([0])) is None
    cold.will_need(np.array([0]), np.array([10]))


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("uniform", [True, False])
def test_cold_shards_are_read_right(on_disk: Path, uniform: bool, compression: str | None) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(3000 if uniform else int(n)) for n in rng.integers(0, 6000, 2000)]
    cachelayer.Storage(on_disk).submit(records, "d", "v1", shard_bytes=1 << 20, compression=compression)
    for path in on_disk.rglob("*.array_record"):
        drop(path)
    ref = cachelayer.Storage(on_disk).fetch("d@v1")
    order = rng.permutation(2000)
    assert list(ref.read(order)) == [records[number] for number in order]


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 9000)), min_size=1, max_size=30))
def test_merged_ranges_cover_the_same_and_little_more(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges])
    stops = starts + np.array([length for _, length in ranges])
    found = list(zip(*(each.tolist() for each in merged(starts, stops)), strict=True))
    assert len(found) <= len(ranges)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        assert any(first <= start and stop <= last for first, last in found)
    wanted = {byte // 4096 for start, length in ranges for byte in range(start, start + length, 1)}
    assert {page for first, last in found for page in range(first // 4096, (last - 1) // 4096 + 1)} <= {
        page + more for page in wanted for more in (0, 1)
    }


def test_neighbours_are_one_range() -> None:
    starts = np.arange(0, 100_000, 3000)
    assert [each.tolist() for each in merged(starts, starts + 2900)] == [[0], [int(starts[-1]) + 2900]]
