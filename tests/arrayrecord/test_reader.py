"""Records of every size, wherever they fall between block headers and shards, compressed or not."""

import mmap
import resource
from pathlib import Path

import numpy as np
import pytest
import zstandard
from samples import pairwise

import cachelayer
from cachelayer.arrayrecord import varints
from cachelayer.arrayrecord.compression import decompress
from cachelayer.arrayrecord.index import BLOCK, PAYLOAD
from cachelayer.errors import CorruptionError
from cachelayer.records.spans import Spans

# Around a header and a block; divisible in many ways, and prime; and much larger.
SIZES = [0, 1, 23, 25, 3_072, 8_200, 20_011, 65_400, PAYLOAD, PAYLOAD + 1, BLOCK, BLOCK + 1, 196_608, 300_000]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("size", "compression", "verify"), pairwise(SIZES, [None, "zstd"], ["never", "open", "always"])
)
def test_records_of_one_size(tmp_path: Path, size: int, compression: str | None, verify: str) -> None:
    count = 15 if size > 30_000 else 100
    data = np.random.default_rng(size).integers(0, 256, (count, size), dtype=np.uint8)
    arrays = {"data": data, "n": np.arange(count), "flag": np.arange(count) % 3 == 0}
    storage = cachelayer.Storage(tmp_path, verify=verify)  # type: ignore[arg-type]
    ref = storage.submit(arrays, "d@v1", shard_bytes=max(10_000, count * size // 3), compression=compression)
    order = np.random.default_rng(1).permutation(count)
    streams = [list(ref.stream(size, shuffle=True, seed=1)) for size in (None, 3, count)]
    read = [ref.read(numbers) for numbers in (order, order[:1], order[::-1], np.arange(count), [0, 0, count - 1])]
    for batch in [
        *(ref[number] for number in order[:30].tolist()),
        *read,
        *(batch for seen in streams for batch in seen),
    ]:
        assert np.array_equal(batch["data"], data[batch["n"]])
        assert np.array_equal(batch["flag"], batch["n"] % 3 == 0)
    assert [batch["n"].tolist() for batch in read] == [
        *(numbers.tolist() for numbers in (order, order[:1], order[::-1])),
        list(range(count)),
        [0, 0, count - 1],
    ]
    assert all(element["data"].flags.writeable for element in streams[0])
    assert [sorted(np.hstack([batch["n"] for batch in seen])) for seen in streams] == [list(range(count))] * 3
    assert ref.read(order, fields=("n",))["n"].tolist() == order.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["never", "open", "always"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_records_of_all_sizes(tmp_path: Path, compression: str | None, verify: str) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(int(size)) for size in rng.permutation(SIZES * 4)]
    storage = cachelayer.Storage(tmp_path, verify=verify)  # type: ignore[arg-type]
    for version, source in (("raw", records), ("typed", [{"a": record, "b": len(record)} for record in records])):
        ref = storage.submit(source, f"d@{version}", shard_bytes=400_000, compression=compression)
        order = rng.permutation(len(records)).tolist()
        expected = [source[number] for number in order]
        assert ref.__getitems__(order) == expected
        assert [ref[number] for number in order] == expected


def test_shards_of_different_record_sizes_are_one_sequence(tmp_path: Path) -> None:
    records = [b"a" * 50] * 100 + [b"b" * 70] * 100 + [b"c" * number for number in range(100)]
    ref = cachelayer.Storage(tmp_path).submit(records, "d@v1", shard_bytes=3_000)
    order = np.random.default_rng(0).permutation(300).tolist()
    expected = [records[number] for number in order]
    assert ref.__getitems__(order) == [ref[number] for number in order] == expected


def test_a_damaged_large_element_is_named_by_its_own_number(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((20, 40_000), np.uint8), "n": np.arange(20)}
    ref = cachelayer.Storage(tmp_path, verify="always").cache(arrays, "d@v1", progress=False)
    shard = next(tmp_path.rglob("*.array_record"))
    raw = bytearray(shard.read_bytes())
    raw[raw.index((7).to_bytes(8, "little"), 7 * 40_000)] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(cachelayer.CorruptionError, match="record 7"):
        list(ref.stream())


NOISE = np.random.default_rng(0).bytes(200_000)
RECORDS = [NOISE, b"", NOISE[:1], b"text " * 60_000, NOISE[:70_000] + bytes(70_000)]


def varint(value: int) -> bytes:
    return (bytes([value & 0x7F | 0x80]) + varint(value >> 7)) if value >= 0x80 else bytes([value])


def stored(record: bytes, **options: bool) -> bytes:
    frame = zstandard.ZstdCompressor(**options).compress(record) if record else b""
    return varint(len(record)) + frame


@pytest.mark.parametrize(("sized", "checksum"), [(True, False), (False, True)])
def test_records_decompress_to_what_was_compressed_or_are_named(*, sized: bool, checksum: bool) -> None:
    parts = [stored(record, write_content_size=sized, write_checksum=checksum) for record in RECORDS]
    assert decompress(Spans.of_bytes(parts * 20)).packed_copy().to_list() == RECORDS * 20
    frame = parts[3][len(varint(len(RECORDS[3]))) :]
    for damaged in (varint(len(RECORDS[3]) - 1) + frame, varint(len(RECORDS[3]) + 1) + frame, parts[3][:-1]):
        with pytest.raises(CorruptionError, match="record 3"):
            decompress(Spans.of_bytes([*parts[:3], damaged, *parts[4:]]))


def test_a_batch_that_does_not_fit_into_memory_is_not_called_damaged() -> None:
    records = Spans.of_bytes([stored(bytes(16 << 20))] * 40)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), before[1]))
    try:
        with pytest.raises(MemoryError):
            decompress(records)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("raw", [b"\x80", b"\x08\x80", b"\x80" * 10 + b"\x01"])
def test_a_varint_that_is_cut_short_or_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptionError):
        varints.decode_all(np.frombuffer(raw, np.uint8))
