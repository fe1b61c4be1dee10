"""Shards in memory: nothing is read outside of them, whatever files say, and any number of them can be open."""

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.file import ArrayRecordFile, map_file
from cachelayer.arrayrecord.index import ShardStats
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.riegeli import Footer, read_footer
from cachelayer.arrayrecord.writer import mapped_checksum
from cachelayer.errors import CacheLayerError, CorruptionError, StorageError
from cachelayer.objects.local import file_crc32c
from cachelayer.support.memory import Ints

N = 60
WILD = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 23, 2**16 - 1, 2**16, 2**31, 2**32 - 1, 2**47, 2**48, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(0, 300_000),
)


def records(kind: str) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.bytes(1000 if kind == "uniform" else int(n)) for n in rng.integers(0, 5000, N)]


class Shard:
    """A shard of one version, to be opened as it is or with changes to its index."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.ref: Any = cachelayer.Storage(folder).submit(
            records(kind), "d@v1", compression="zstd" if kind == "zstd" else None
        )
        self.stats: ShardStats = self.ref._base.version.manifest.shards[0].stats
        self.path = next(folder.rglob("*.array_record"))
        self.index_path = self.path.with_suffix(".index")
        self.rows = index.rows_of(self.index_path.read_bytes())

    def changed(self, rows: Any) -> tuple[Path, ShardStats]:
        """An index of other rows, and what a manifest that agrees with it says."""
        path = self.path.with_suffix(".changed")
        raw = index.encode(self.stats.sha256, rows)
        path.write_bytes(raw)
        return path, replace(self.stats, index_crc32c=google_crc32c.value(raw))

    def set_of(self, index_path: Path, stats: ShardStats, count: int = 2, verify: Any = "never") -> LocalShards:
        files = ShardFiles(self.path, index_path, stats)
        return LocalShards(
            [N] * count, [stats.nbytes] * count, stats.record_nbytes, lambda _: nullcontext(files), verify
        )


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shard]:
    return {kind: Shard(tmp_path_factory.mktemp(kind), kind) for kind in ("uniform", "varying", "zstd")}


def read(shards: LocalShards, numbers: Ints) -> list[bytes]:
    found = shards.records(numbers)
    ends = np.cumsum(found.lengths)
    raw = found.ranges(np.zeros(len(found), np.int64), found.lengths).tobytes()
    return [raw[end - length : end] for end, length in zip(ends.tolist(), found.lengths.tolist(), strict=True)]


def outcome(attempt: Callable[[], list[bytes]]) -> list[bytes] | str:
    """What was read, or what the error says."""
    try:
        return attempt()
    except CacheLayerError as error:
        return str(error)


@settings(max_examples=examples(80), deadline=None)
@given(
    kind=st.sampled_from(["varying", "zstd"]),
    row=st.integers(0, N - 1),
    position=WILD,
    length=st.one_of(st.none(), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1])),
    count=st.sampled_from([1, 3]),
)
@example(kind="varying", row=3, position=60_000, length=2**31, count=1)
@example(kind="varying", row=3, position=60_000, length=2**31, count=3)
def test_an_index_that_points_anywhere_is_found_out_and_reads_nothing_else(
    shards: dict[str, Shard], kind: str, row: int, position: int, length: int | None, count: int
) -> None:
    shard = shards[kind]
    rows = shard.rows.copy()
    rows["position"][row] = position
    if length is not None:
        rows["length"][row] = length
    opened = shard.set_of(*shard.changed(rows), count)
    expected, raw = records(kind), shard.path.read_bytes()
    numbers = np.arange(N * count)
    reads = [lambda: read(opened, numbers), lambda: [bytes(opened.record(row + N * (count - 1)))]]
    for attempt in reads:
        found = outcome(attempt)
        if isinstance(found, str):
            assert str(shard.path) in found
            assert f"record {row} " in found
        else:
            # Within the file: other bytes of it, or those of the record.
            plain = b"".join(raw[start + 24 : start + 65536] for start in range(0, len(raw), 65536))
            mine = found[-1] if len(found) == 1 else found[row]
            assert kind == "zstd" or mine in plain or mine == expected[row]


@settings(max_examples=examples(60), deadline=None)
@given(first=WILD, nbytes=WILD)
def test_a_manifest_that_points_anywhere_is_found_out(shards: dict[str, Shard], first: int, nbytes: int) -> None:
    shard = shards["uniform"]
    opened = shard.set_of(shard.index_path, replace(shard.stats, first_position=first, record_nbytes=nbytes))
    found = outcome(lambda: read(opened, np.arange(2 * N)))
    if isinstance(found, str):
        assert str(shard.path) in found
    else:
        assert [bytes(opened.record(number)) for number in (0, N, 2 * N - 1)] == [found[0], found[N], found[-1]]
        assert {len(record) for record in found} == {nbytes}
        assert nbytes * N < shard.stats.nbytes


@pytest.mark.parametrize("kind", ["uniform", "varying", "zstd"])
@pytest.mark.parametrize("count", [1, 3])
def test_no_record_is_read_that_the_shards_do_not_have(shards: dict[str, Shard], kind: str, count: int) -> None:
    opened = shards[kind].set_of(shards[kind].index_path, shards[kind].stats, count)
    for wrong in (-1, -(2**63), N * count, 5000, 10_000_000, 2**62, 2**63 - 1):
        for attempt in (lambda: opened.records(np.array([0, wrong])), lambda: opened.record(wrong)):  # noqa: B023
            with pytest.raises(CorruptionError, match=f"record {wrong}:"):
                attempt()
        assert read(opened, np.array([N * count - 1])) == [records(kind)[-1]]


@pytest.mark.parametrize("numbers", [[-1] + [N] * 2, [2**62, 2**62, 2**62], [3, -3, 3]])
def test_shards_of_impossible_numbers_of_records_are_refused(shards: dict[str, Shard], numbers: list[int]) -> None:
    with pytest.raises(CorruptionError, match="3 shards"):
        LocalShards(numbers, [10] * 3, None, lambda _: pytest.fail("opened"), "open")


@settings(max_examples=examples(60), deadline=None)
@given(row=st.integers(0, N - 1), offset=st.integers(-(2**63), 2**63 - 1), chunk=st.booleans())
def test_a_footer_that_points_anywhere_is_found_out(
    shards: dict[str, Shard], row: int, offset: int, chunk: bool
) -> None:
    shard = shards["varying"]
    mapped = map_file(shard.path)
    footer = read_footer(mapped)
    offsets, counts = footer.chunk_offsets.copy(), footer.chunk_records.copy()
    if chunk:
        offsets[row] = offset
    else:
        counts[row] = abs(offset) % 5
    file = ArrayRecordFile(mapped, Footer(offsets, counts, footer.footer_offset))
    found = outcome(lambda: file.read(np.arange(len(file))))
    assert str(shard.path) in found or "varint" in found if isinstance(found, str) else len(found) == len(file)


def test_results_are_the_callers_own_after_their_shards_are_gone(tmp_path: Path) -> None:
    ref = cachelayer.Storage(tmp_path).submit(np.arange(5000).reshape(500, 10), "d@v1")
    batch, element, several = ref.read(range(500)), ref[7], ref.__getitems__([1, 2])
    window = MappedFile.open(next(tmp_path.rglob("*.array_record"))).buffer
    before = window[:64].tobytes()
    shutil.rmtree(tmp_path)
    del ref
    for found, first in ((batch, 0), (element, 7), (several[1], 2)):
        assert found.reshape(-1).tolist() == list(range(10 * first, 10 * first + found.size))
    assert window[:64].tobytes() == before


def run(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


MANY = """
import os, resource, sys
from contextlib import nullcontext
from pathlib import Path
import google_crc32c
import numpy as np
import cachelayer
from cachelayer.arrayrecord import local_shards
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
base = cachelayer.open(sys.argv[1])._base
path = next(Path(sys.argv[1].rsplit("/", 1)[0]).rglob("*.array_record"))
stats = base.version.manifest.shards[0].stats
files = ShardFiles(path, path.with_suffix(".index"), stats)
count = 600
shards = LocalShards(
    [stats.records] * count, [stats.nbytes] * count, stats.record_nbytes, lambda _: nullcontext(files), "never"
)
numbers = np.arange(count) * stats.records + np.arange(count) % stats.records
def whole(found):
    return found.ranges(np.zeros(len(found), np.int64), found.lengths).tobytes()
expected = whole(base.shards.records(np.arange(count) % stats.records))
"""
DESCRIPTORS = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
assert whole(shards.records(numbers)) == expected
print(len(os.listdir("/dev/fd")))
"""
FORKED = """
assert whole(shards.records(numbers[:300])) == expected[:len(expected) // 2] or sys.argv[2] != "uniform"
if os.fork() == 0:
    found = whole(shards.records(numbers)) == expected
    del shards
    os._exit(not found)
assert os.wait()[1] == 0
assert whole(shards.records(numbers)) == expected
"""
TOO_MANY = """
local_shards.mapping_limit = lambda: 500
try:
    shards.records(numbers)
except cachelayer.StorageError as error:
    print(error)
assert whole(shards.records(numbers[:200])) == whole(base.shards.records(numbers[:200] % stats.records))
"""
NO_ADDRESSES = """
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20), resource.RLIM_INFINITY))
try:
    shards.records(numbers)
except cachelayer.StorageError as error:
    print(error)
"""


@pytest.mark.slow
def test_hundreds_of_shards_are_open_with_a_handful_of_descriptors(shards: dict[str, Shard]) -> None:
    assert int(run(MANY + DESCRIPTORS, shards["uniform"].ref.reference)) < 16


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "varying"])
def test_a_child_of_a_fork_reads_on_and_lets_go_without_the_parent_noticing(
    shards: dict[str, Shard], kind: str
) -> None:
    run(MANY + FORKED, shards[kind].ref.reference, kind)


def test_more_shards_than_may_be_mapped_are_an_error_that_says_what_to_do(shards: dict[str, Shard]) -> None:
    said = run(MANY + TOO_MANY, shards["varying"].ref.reference)
    assert "vm.max_map_count" in said
    assert "shard_bytes" in said


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs to know the addresses that are used")
def test_addresses_that_the_system_does_not_grant_are_an_error_that_names_the_limit(shards: dict[str, Shard]) -> None:
    assert "ulimit -v" in run(MANY + NO_ADDRESSES, shards["uniform"].ref.reference)


def test_too_many_open_files_are_an_error_that_says_so(shards: dict[str, Shard]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/dev/fd").iterdir()]) + 20, hard))
        with suppress(OSError):
            while True:
                files.append(shards["uniform"].path.open("rb"))
        with pytest.raises(StorageError, match="ulimit -n"):
            MappedFile.open(shards["uniform"].path)
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_has_one_checksum_mapped_or_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes((2 << 20) + 5))
    assert mapped_checksum(MappedFile.open(path)) == file_crc32c(path)


@pytest.mark.parametrize(("kind", "verify"), [("uniform", "never"), ("varying", "open"), ("zstd", "always")])
def test_threads_that_open_shards_at_once_read_the_same(shards: dict[str, Shard], kind: str, verify: Any) -> None:
    opened = shards[kind].set_of(shards[kind].index_path, shards[kind].stats, 40, verify)
    expected = records(kind)

    def draw(seed: int) -> bool:
        numbers = np.random.default_rng(seed).integers(0, 40 * N, 50)
        found = [*read(opened, numbers), *(bytes(opened.record(number)) for number in numbers.tolist())]
        return found == [expected[number % N] for number in numbers.tolist()] * 2

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(draw, range(40)))


@pytest.mark.parametrize("kind", ["uniform", "varying", "zstd"])
def test_a_damaged_record_is_named(shards: dict[str, Shard], tmp_path: Path, kind: str) -> None:
    shard = shards[kind]
    damaged = bytearray(shard.path.read_bytes())
    begin = int(shard.rows["position"][30]) + 100
    damaged[begin : begin + 5] = bytes(5)
    path = tmp_path / shard.path.name
    path.write_bytes(damaged)
    files = nullcontext(ShardFiles(path, shard.index_path, shard.stats))
    opened = LocalShards.of_file(files, shard.stats, "always")
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"{path}: record 3[01]"):
            read(opened, np.arange(N)[::-1] if kind == "uniform" else np.arange(N))
