"""Large records are copied without the block headers in them, in whatever pieces that is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer.records.blocks import PAYLOAD

# Divisible in many ways, prime, a whole payload of a block, next to it, and much larger.
SIZES = (2_048, 12_288, 16_384, 20_011, PAYLOAD - 16, PAYLOAD, PAYLOAD + 1, 70_000, 131_101, 196_608)


@pytest.mark.parametrize("nbytes", SIZES)
def test_large_leaves_come_back_in_batches_and_elements(tmp_path: Path, nbytes: int) -> None:
    rows = min(300, 4_000_000 // nbytes)
    arrays: dict[str, Any] = {
        "n": np.arange(rows),
        "x": np.random.default_rng(0).integers(0, 256, (rows, nbytes), np.uint8),
        "m": -np.arange(rows, dtype=np.int16),
    }
    ref = cachelayer.Storage(tmp_path).cache(arrays, "d", "v1", shard_bytes=2_500_000, progress=False)
    for size in (1, 3, rows):
        seen = []
        for batch in ref.stream(size, shuffle=True, seed=size, num_epochs=1):
            assert np.array_equal(batch["x"], arrays["x"][batch["n"]])
            assert np.array_equal(batch["m"], -batch["n"])
            seen += batch["n"].tolist()
        assert sorted(seen) == list(range(rows))
    elements = list(ref.stream(shuffle=True, seed=0, num_epochs=1))
    assert sorted(int(element["n"]) for element in elements) == list(range(rows))
    assert all(np.array_equal(element["x"], arrays["x"][element["n"]]) for element in elements)
    assert all(element["x"].flags.writeable for element in elements)
    batch = ref.read(range(rows - 1, -1, -1))
    assert np.array_equal(batch["x"], arrays["x"][::-1])


def test_a_damaged_large_element_is_named_by_its_own_number(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((20, 40_000), np.uint8), "n": np.arange(20)}
    ref = cachelayer.Storage(tmp_path, verify="always").cache(arrays, "d", "v1", progress=False)
    shard = next(tmp_path.rglob("*.array_record"))
    raw = bytearray(shard.read_bytes())
    place = raw.index((7).to_bytes(8, "little"), 7 * 40_000)
    raw[place] ^= 1
    shard.write_bytes(raw)
    again: Any = cachelayer.Storage(tmp_path, verify="always").fetch("d", "v1")
    with pytest.raises(cachelayer.CorruptionError, match="record 7"):
        list(again.stream(num_epochs=1))
    assert len(ref) == 20
