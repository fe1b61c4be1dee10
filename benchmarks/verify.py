"""What ``verify="never"``, ``"open"`` and ``"always"`` cost, and what ``storage.verify`` does.

Run: ``python benchmarks/verify.py``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROUNDS, machine, median, medians, table

import cachelayer

RECORDS, BATCH = 100_000, 256
AIMS = {"always": "0.6"}


def opening(folder: Path, verify: Any) -> float:
    """Milliseconds to the first record of every shard."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        ref = cachelayer.Storage(folder, verify=verify).fetch("data@v1")
        ref.read(np.arange(0, RECORDS, 1000))
        times.append(time.perf_counter() - started)
    return median(times) * 1e3


def verifying(folder: Path) -> float:
    """Seconds to verify everything."""
    started = time.perf_counter()
    if not cachelayer.Storage(folder).verify("data", "v1"):
        raise ValueError("a version that was just written is damaged")
    return time.perf_counter() - started


def main(folder: Path) -> None:
    """Print the tables."""
    rng = np.random.default_rng(0)
    arrays = {"image": rng.integers(0, 256, (RECORDS, 32, 32, 3), np.uint8), "label": np.arange(RECORDS)}
    cachelayer.Storage(folder).cache(arrays, "data", "v1", shard_bytes=32 << 20)
    batches = rng.permutation(RECORDS)[: RECORDS // BATCH * BATCH].reshape(-1, BATCH)[:100]

    def reads(verify: Any) -> Any:
        ref = cachelayer.Storage(folder, verify=verify).fetch("data@v1")

        def run() -> int:
            for numbers in batches:
                ref.read(numbers)
            return int(batches.size)

        return run

    ways = ("never", "open", "always")
    rates = medians({way: reads(way) for way in ways})
    whole = median(verifying(folder) for _ in range(ROUNDS))
    lines = []
    for way in ways:
        ratio = f"{rates[way] / rates['never']:.2f}"
        lines.append(
            (f'`verify="{way}"`', f"{opening(folder, way):.1f}", f"{rates[way]:,.0f}", ratio, AIMS.get(way, ""))
        )
    read = "`ref.read` of 256 shuffled records of 3 KB, records/s"
    head = ("way", "first touch of all shards, ms", read, "of never", "aim")
    print(table(f"Checking what is read, {RECORDS:,} records of 3 KB ({machine()})", head, lines))
    print(f"\n`storage.verify`, all records, all ways: {RECORDS * 3080 / whole / 1e6:,.0f} MB/s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
