"""Skipping is free: time to the first batch at the begin of an epoch and at 90 % of it.

Run: ``python benchmarks/skip.py``; it builds 10 thousand and 10 million small records, which takes a minute or two.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import numpy as np
from harness import machine, table

import cachelayer

ROUNDS = 200


def first_batch_ms(ref: cachelayer.DataRef[int], start: int, seed: int) -> float:
    """Milliseconds from asking for a shuffled stream to its first batch of 256."""
    began = time.perf_counter()
    next(iter(ref.stream(256, shuffle=True, seed=seed, start=start)))
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    """Print the table."""
    lines = []
    for records in (10_000, 10_000_000):
        with tempfile.TemporaryDirectory() as folder:
            ref = cachelayer.Storage(folder).cache(np.arange(records), "numbers", "v1")
            late = records * 9 // 10
            # Every record is in memory before, and the two take turns, so that only the place in the epoch differs.
            ref.read(range(records))
            pairs = [(first_batch_ms(ref, 0, seed), first_batch_ms(ref, late, seed + ROUNDS)) for seed in range(ROUNDS)]
            cells, middles = [], []
            for column in zip(*pairs, strict=True):
                least, middle, most = statistics.quantiles(column, n=4)
                cells.append(f"{middle:.2f} ({least:.2f} to {most:.2f})")
                middles.append(middle)
            lines.append((f"{records:,}", *cells, f"{middles[1] / middles[0]:.2f}"))
    head = ("records", "at the begin, ms", "at 90 %, ms", "ratio")
    print(
        table(
            f"First shuffled batch of 256 ({machine()}; median of {ROUNDS}, and the half of them around it)",
            head,
            lines,
        )
    )


if __name__ == "__main__":
    main()
