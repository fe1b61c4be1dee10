"""Shards in memory: nothing is read outside of them, whatever files say, and any number of them can be open."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer.access import open_shards
from cachelayer.access.local_shards import LocalShards
from cachelayer.arrayrecord import gather, index, mapping
from cachelayer.arrayrecord.address_space import AddressSpace
from cachelayer.arrayrecord.file import ArrayRecordFile, map_file
from cachelayer.arrayrecord.footer import Footer, read_footer
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.arrayrecord.reserved_memory import mapping_limit
from cachelayer.arrayrecord.writer import ShardStats, file_checksum, mapped_checksum
from cachelayer.errors import CacheLayerError, CacheLayerWarning, CorruptionError, StorageError
from cachelayer.records.memory import Ints, aligning
from cachelayer.records.selection import Selection
from cachelayer.records.threads import Job
from cachelayer.versions.manifest import Kept

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
            records(kind), "d", "v1", compression="zstd" if kind == "zstd" else None
        )
        self.stats: ShardStats = self.ref._base.version.manifest.shards[0].stats
        self.path = next(folder.rglob("*.array_record"))
        self.index_path = self.path.with_suffix(".index")
        self.rows = np.fromfile(self.index_path, index.ROW, offset=index.HEADER_NBYTES)
        self.header = index.decode_header(
            self.index_path.read_bytes()[: index.HEADER_NBYTES], self.stats.index_nbytes, "index"
        )

    def changed(self, rows: Any = None, **header: Any) -> tuple[Path, ShardStats]:
        """An index of other rows or another header, and what a manifest that agrees with it says."""
        raw = index.encode(replace(self.header, **header), self.rows if rows is None else rows)
        path = self.path.with_suffix(".changed")
        path.write_bytes(raw)
        checksum = index.header_checksum(raw[: index.HEADER_NBYTES])
        return path, replace(self.stats, index_nbytes=len(raw), index_crc32c=checksum)

    def set_of(self, index_path: Path, stats: ShardStats, count: int = 2) -> LocalShards:
        return LocalShards([N] * count, lambda _, since: ShardReader(self.path, index_path, stats, "never", since))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shard]:
    return {kind: Shard(tmp_path_factory.mktemp(kind), kind) for kind in ("uniform", "varying", "zstd")}


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[AddressSpace | None]]:
    """The address space that shards are mapped into, to be set by the test; at first a small one."""
    current: list[AddressSpace | None] = [AddressSpace(1 << 30, 40)]
    for module in (mapping, open_shards):
        monkeypatch.setattr(module, "address_space", lambda: current[0])
    return iter([current])  # type: ignore[return-value]


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


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["varying", "zstd"]),
    row=st.integers(0, N - 1),
    position=WILD,
    length=st.one_of(st.none(), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1])),
    count=st.sampled_from([1, 3]),
    is_mapped=st.booleans(),
)
def test_an_index_that_points_anywhere_is_found_out_and_reads_nothing_else(
    shards: dict[str, Shard], kind: str, row: int, position: int, length: int | None, count: int, is_mapped: bool
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
    if not is_mapped:
        opened._open._space = None
        opened._open._opened(0, 0)
        unmapped = ShardReader(shard.path, *shard.changed(rows), "never").without_mapping()
        reads = [lambda: [bytes(unmapped.record(row))]]
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
def test_a_header_of_an_index_that_points_anywhere_is_found_out(
    shards: dict[str, Shard], first: int, nbytes: int
) -> None:
    shard = shards["uniform"]
    changed = shard.changed(first_position=first, record_nbytes=min(nbytes, 2**64 - 2))
    opened = shard.set_of(*changed)
    found = outcome(lambda: read(opened, np.arange(2 * N)))
    if isinstance(found, str):
        assert str(shard.path) in found
    else:
        assert [bytes(opened.record(number)) for number in (0, N, 2 * N - 1)] == [found[0], found[N], found[-1]]
        assert {len(record) for record in found} == {nbytes}
        assert nbytes * N < shard.stats.nbytes


@pytest.mark.parametrize("kind", ["uniform", "varying", "zstd"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("wrong", [-1, -(2**63), N * 3, 5000, 10_000_000, 2**62, 2**63 - 1])
def test_no_record_is_read_that_the_shards_do_not_have(
    shards: dict[str, Shard], kind: str, count: int, wrong: int
) -> None:
    opened = shards[kind].set_of(shards[kind].index_path, shards[kind].stats, count)
    for _ in range(2):
        for attempt in (lambda: opened.records(np.array([0, wrong])), lambda: opened.record(wrong)):
            with pytest.raises(CorruptionError, match=f"record {wrong}:"):
                attempt()
        assert read(opened, np.array([N * count - 1])) == [records(kind)[-1]]


@pytest.mark.parametrize(
    "kept",
    [(5000, 1, 10), (10_000_000, 1, 10), (-1, 1, 10), (0, 2, N), (N - 1, -1, N + 1), (0, 0, 3), (0, 2**62, 4)],
)
def test_a_selection_outside_of_its_shards_is_found_out(shards: dict[str, Shard], kept: tuple[int, int, int]) -> None:
    ref = shards["uniform"].ref
    version = replace(ref._base.version)
    start, step, count = kept
    numbers = range(start, start + step * count, step) if step else range(0)
    digest = Selection(numbers).digest(ref._base.digest, N) if step and step < 2**60 else "0" * 64
    wild = Kept(start=start, step=step, records=count, digest=digest, file=None)
    version.__dict__["manifest"] = replace(ref._base.version.manifest, kept=wild)
    with pytest.raises(CorruptionError, match=r"manifest\.json"):
        _ = version.kept


@pytest.mark.parametrize("numbers", [[-1] + [N] * 2, [2**62, 2**62, 2**62], [3, -3, 3]])
def test_shards_of_impossible_numbers_of_records_are_refused(shards: dict[str, Shard], numbers: list[int]) -> None:
    with pytest.raises(CorruptionError, match="shards of"):
        LocalShards(numbers, lambda *_: pytest.fail("opened"))


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


@pytest.mark.parametrize("kind", ["uniform", "varying", "zstd"])
@pytest.mark.parametrize("verify", ["never", "open", "always"])
@pytest.mark.parametrize("room", ["all", "some", "none"])
def test_records_are_the_same_with_room_for_all_shards_for_some_or_for_none(
    shards: dict[str, Shard], space: Iterator[Any], kind: str, verify: Any, room: str
) -> None:
    shard, current = shards[kind], next(space)
    current[0] = {"all": AddressSpace(1 << 30, 40), "some": AddressSpace(1 << 28, 6), "none": None}[room]
    opened = LocalShards(
        [N] * 8, lambda _, since: ShardReader(shard.path, shard.index_path, shard.stats, verify, since)
    )
    expected, rng = records(kind) * 8, np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheLayerWarning)
        for size in (N * 8, 20, 5, 1, N * 8):
            numbers = rng.permutation(N * 8)[:size]
            assert read(opened, numbers) == [expected[number] for number in numbers.tolist()]
            for number in numbers[:9].tolist():
                assert bytes(opened.record(number)) == expected[number]
    if room == "some":
        assert current[0].mapped <= 6


def test_a_shard_that_gave_way_and_was_replaced_is_checked_as_a_new_one(
    tmp_path: Path, space: Iterator[Any], shards: dict[str, Shard]
) -> None:
    current = next(space)
    shard = shards["uniform"]
    path, index_path = tmp_path / "a.array_record", tmp_path / "a.index"
    shutil.copy(shard.path, path)
    shutil.copy(shard.index_path, index_path)
    opened = LocalShards([N], lambda _, since: ShardReader(path, index_path, shard.stats, "open", since))
    expected = records("uniform")
    assert read(opened, np.arange(N)) == expected
    assert current[0].evict(since=2**62)
    shutil.copy(shard.path, tmp_path / "b")
    (tmp_path / "b").rename(path)
    assert read(opened, np.arange(N)) == expected
    assert current[0].evict(since=2**62)
    raw = bytearray(shard.path.read_bytes())
    raw[100:200] = bytes(100)
    (tmp_path / "b").write_bytes(raw)
    (tmp_path / "b").rename(path)
    with pytest.raises(CorruptionError, match=re.escape(str(path))):
        read(opened, np.arange(N))


def test_results_are_the_callers_own_after_their_shards_are_gone(tmp_path: Path) -> None:
    ref = cachelayer.Storage(tmp_path).submit(np.arange(5000).reshape(500, 10), "d", "v1")
    batch, element, several = ref.read(range(500)), ref[7], ref.__getitems__([1, 2])
    window = MappedFile.open(next(tmp_path.rglob("*.array_record"))).tail(0)
    before = window[:64].tobytes()
    shutil.rmtree(tmp_path)
    del ref
    assert batch.flags.owndata or batch.base is not None
    np.testing.assert_array_equal(batch, np.arange(5000).reshape(500, 10))
    assert element.tolist() == list(range(70, 80))
    assert several[1].tolist() == list(range(20, 30))
    assert window[:64].tobytes() == before


@pytest.mark.usefixtures("space")
@pytest.mark.parametrize("kind", ["uniform", "varying"])
@pytest.mark.parametrize("position", [0, 24, 63, 64])
def test_rows_gathered_into_aligned_memory_begin_behind_the_signature_of_their_file(
    tmp_path: Path, kind: str, position: int
) -> None:
    elements = [bytes([number]) * (1500 + number * (kind == "varying")) for number in range(N)]
    ref: Any = cachelayer.Storage(tmp_path).submit(elements, "d", "v1")
    (path,), (index_path,) = tmp_path.rglob("*.array_record"), tmp_path.rglob("*.index")
    raw = index_path.read_bytes()
    header = replace(index.decode_header(raw[: index.HEADER_NBYTES], len(raw), "index"), first_position=position)
    rows = np.frombuffer(raw, index.ROW, offset=index.HEADER_NBYTES).copy()
    rows["position"][0] = position
    changed = index.encode(header, rows)
    index_path.write_bytes(changed)
    stats = replace(
        ref._base.version.manifest.shards[0].stats,
        index_crc32c=index.header_checksum(changed[: index.HEADER_NBYTES]),
    )

    def read() -> bytes:
        with aligning():
            opened = LocalShards([N], lambda _, since: ShardReader(path, index_path, stats, "never", since))
            return opened.records(np.arange(N), in_part=True).slab(0, 1400)[0].tobytes()

    if position == 64:
        assert read() == path.read_bytes()[64 : 64 + 1400]
    else:
        with pytest.raises(CorruptionError, match=r"begins? in the signature of"):
            read()


def one_file(folder: Path) -> tuple[MappedFile, Callable[[int], Any]]:
    (folder / "file").write_bytes(bytes(60_000))
    file = MappedFile.open(folder / "file")
    return file, lambda nbytes: file.uniform(np.arange(100, 900, 100), 20_000, str).slab(0, nbytes)


def several_shards(folder: Path) -> tuple[MappedFile, Callable[[int], Any]]:
    ref: Any = cachelayer.Storage(folder).submit([bytes(20_000)] * 8, "d", "v1", shard_bytes=100_000)
    shards = ref._base.shards
    ref.read(range(8))
    return shards.reader(1).mapped, lambda nbytes: shards.records(np.arange(8)).slab(0, nbytes)


def several_versions(folder: Path) -> tuple[MappedFile, Callable[[int], Any]]:
    storage = cachelayer.Storage(folder)
    refs: Any = [storage.submit([bytes(20_000)] * 8, name, "v1") for name in ("a", "b")]
    joined: Any = cachelayer.concat(refs)
    joined.read(range(16))
    return refs[1]._base.shards.reader(0).mapped, lambda nbytes: joined._base.records(np.arange(16)).slab(0, nbytes)


@pytest.mark.parametrize("nbytes", [100, 20_000])
@pytest.mark.parametrize("opened", [one_file, several_shards, several_versions])
def test_threads_that_outlast_an_interrupted_read_keep_its_files_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], tuple[MappedFile, Any]], nbytes: int
) -> None:
    file, read = opened(tmp_path)
    begun: list[Job] = []

    def interrupt(_: Job, parts: Callable[[int], list[Job]], *_rest: Any) -> None:
        begun.extend(parts(2))
        raise KeyboardInterrupt

    monkeypatch.setattr(gather, "quickest", interrupt)
    with suppress(KeyboardInterrupt):
        read(nbytes)
    unmapped = weakref.ref(file.slot)
    del file, read
    gc.collect()
    assert begun
    assert unmapped() is not None
    while begun:
        begun.pop()()
    gc.collect()
    assert unmapped() is None


def run(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


MANY = """
import resource, sys, os
from pathlib import Path
import numpy as np
from cachelayer.access.local_shards import LocalShards
import cachelayer
from cachelayer.arrayrecord.reader import ShardReader
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
base = cachelayer.open(sys.argv[1])._base
path = next(Path(sys.argv[1].rsplit("/", 1)[0]).rglob("*.array_record"))
stats = base.version.manifest.shards[0].stats
index = path.with_suffix(".index")
opened = LocalShards([stats.records] * 600, lambda _, since: ShardReader(path, index, stats, "never", since))
numbers = np.arange(600) * stats.records + np.arange(600) % stats.records
found = opened.records(numbers)
rows = found.slab(0, found.uniform_nbytes)
one = base.shards.records(np.arange(600) % stats.records).slab(0, found.uniform_nbytes)
assert (rows == one).all()
print(len(os.listdir("/dev/fd")))
"""


@pytest.mark.slow
def test_hundreds_of_shards_are_open_with_a_handful_of_descriptors(shards: dict[str, Shard]) -> None:
    assert int(run(MANY, shards["uniform"].ref.reference)) < 16


LIMITED = """
import resource, sys, warnings
import numpy as np
import cachelayer
rng = np.random.default_rng(0)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name in sys.argv[1:]:
        ref = cachelayer.open(name)
        for _ in range(3):
            assert len(ref.read(range(len(ref)))) == len(ref)
            ref[3]
print(len([each for each in caught if issubclass(each.category, cachelayer.CacheLayerWarning)]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs to know the addresses that are used")
def test_without_addresses_records_are_read_all_the_same_after_one_warning(shards: dict[str, Shard]) -> None:
    assert run(LIMITED, *(shard.ref.reference for shard in shards.values())).strip() == "1"


USED_UP = """
import mmap, sys, warnings
import numpy as np
from pathlib import Path
import cachelayer
from cachelayer.access.local_shards import LocalShards
from cachelayer.arrayrecord.reader import ShardReader
base = cachelayer.open(sys.argv[1])._base
path = next(Path(sys.argv[1].rsplit("/", 1)[0]).rglob("*.array_record"))
stats = base.version.manifest.shards[0].stats
index = path.with_suffix(".index")
shards = LocalShards([stats.records] * 400, lambda _, since: ShardReader(path, index, stats, "never", since))
others = []
try:
    while True:
        # Neighbours of one protection would be one mapping.
        others += [
            mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON, prot=prot)
            for prot in (mmap.PROT_READ, mmap.PROT_WRITE)
        ]
except OSError:
    del others[-200:]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        found = shards.records(np.arange(400) * stats.records + 3)
    del others[:]
    expected = base.shards.records(np.array([3])).ranges(np.zeros(1, np.int64), found.lengths[:1])
    assert (found.slab(0, found.uniform_nbytes) == expected).all()
print(len([each for each in caught if issubclass(each.category, cachelayer.CacheLayerWarning)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(mapping_limit() > 100_000, reason="so many mappings take long to be used up")
def test_if_others_use_up_all_mappings_records_are_read_all_the_same_after_one_warning(
    shards: dict[str, Shard],
) -> None:
    assert run(USED_UP, shards["uniform"].ref.reference).strip() == "1"


def test_too_many_open_files_are_an_error_that_says_so(tmp_path: Path, shards: dict[str, Shard]) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = len([*Path("/dev/fd").iterdir()])
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 20, hard))
        with suppress(OSError):
            while True:
                held.append(shards["uniform"].path.open("rb"))
        with pytest.raises(StorageError, match="ulimit -n"):
            MappedFile.open(shards["uniform"].path)
    finally:
        for file in held:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_has_one_checksum_mapped_or_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes((2 << 20) + 5))
    mapped = MappedFile.open(path)
    assert mapped_checksum(mapped) == mapped_checksum(mapped.without_mapping()) == file_checksum(path)
