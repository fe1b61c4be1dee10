"""Records of every size, wherever they fall between block headers and shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from samples import pairwise

import cachelayer
from cachelayer.records.blocks import BLOCK, PAYLOAD

SIZES = [0, 1, 23, 24, 25, 3_072, 8_192, 8_200, 65_400, PAYLOAD, PAYLOAD + 1, BLOCK - 1, BLOCK, BLOCK + 1, 300_000]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("size", "compression", "verify"), pairwise(SIZES, [None, "zstd"], ["never", "open", "always"])
)
def test_records_of_one_size(tmp_path: Path, size: int, compression: str | None, verify: str) -> None:
    count = 40 if size > 30_000 else 300
    data = np.random.default_rng(size).integers(0, 256, (count, size), dtype=np.uint8)
    arrays = {"data": data, "n": np.arange(count), "flag": np.arange(count) % 3 == 0}
    storage = cachelayer.Storage(tmp_path, verify=verify)  # type: ignore[arg-type]
    ref = storage.submit(arrays, "d", "v1", shard_bytes=max(10_000, count * size // 3), compression=compression)
    order = np.random.default_rng(1).permutation(count)
    for numbers in (order, order[:1], np.arange(count), np.array([0, 0, count - 1])):
        batch = ref.read(numbers)
        assert batch["n"].tolist() == numbers.tolist()
        np.testing.assert_array_equal(batch["data"], data[numbers])
        np.testing.assert_array_equal(batch["flag"], arrays["flag"][numbers])
    assert ref.read(order, fields=("n",))["n"].tolist() == order.tolist()
    for number in order[:30].tolist():
        np.testing.assert_array_equal(ref[number]["data"], data[number])
        assert ref[number]["n"] == number


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["never", "open", "always"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_records_of_all_sizes(tmp_path: Path, compression: str | None, verify: str) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(int(size)) for size in rng.permutation(SIZES * 4)]
    storage = cachelayer.Storage(tmp_path, verify=verify)  # type: ignore[arg-type]
    for version, source in (("raw", records), ("typed", [{"a": record, "b": len(record)} for record in records])):
        ref = storage.submit(source, "d", version, shard_bytes=400_000, compression=compression)
        order = rng.permutation(len(records)).tolist()
        assert ref.__getitems__(order) == [source[number] for number in order]
        assert [ref[number] for number in order] == [source[number] for number in order]


def test_shards_of_different_record_sizes_are_one_sequence(tmp_path: Path) -> None:
    records = [b"a" * 50] * 100 + [b"b" * 70] * 100 + [b"c" * number for number in range(100)]
    ref = cachelayer.Storage(tmp_path).submit(records, "d", "v1", shard_bytes=3_000)
    order = np.random.default_rng(0).permutation(300).tolist()
    assert ref.__getitems__(order) == [records[number] for number in order]
    assert [ref[number] for number in order] == [records[number] for number in order]
