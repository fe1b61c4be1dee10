"""Records that are not in memory are announced to the kernel, those that are cost nothing."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cachelayer
from cachelayer.arrayrecord.mapping import MappedFile, is_in_memory


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
def cold(on_disk: Path) -> Path:
    path = on_disk / "file"
    path.write_bytes(bytes(8 << 20))
    drop(path)
    if is_in_memory(path, 4 << 20) is not False:
        pytest.skip("this file system does not drop pages, or does not tell which it has")
    return path


def test_what_is_announced_comes_into_memory(cold: Path) -> None:
    file = MappedFile.open(cold)
    wanted = [5 << 20, 1 << 20, (1 << 20) + 4096]
    assert not all(is_in_memory(cold, position) for position in wanted)
    file.will_need(np.array(wanted), np.array(wanted) + 3000)
    limit = time.monotonic() + 60
    while not all(is_in_memory(cold, position) for position in wanted):
        assert time.monotonic() < limit
    # The kernel may read on behind what is announced.
    assert not is_in_memory(cold, 1 << 19)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("uniform", [True, False])
def test_cold_shards_are_read_right(on_disk: Path, uniform: bool, compression: str | None) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(3000 if uniform else int(n)) for n in rng.integers(0, 6000, 2000)]
    cachelayer.Storage(on_disk).submit(records, "d@v1", shard_bytes=1 << 20, compression=compression)
    for path in on_disk.rglob("*.array_record"):
        drop(path)
    ref = cachelayer.Storage(on_disk).fetch("d@v1")
    order = rng.permutation(2000)
    assert list(ref.read(order)) == [records[number] for number in order]
