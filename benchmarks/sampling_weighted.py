"""Weighted sampling against the exact shuffle of the same records; in one run.

Run: ``python benchmarks/sampling_weighted.py [records]``: 10 million records by default, in batches of 256.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, table

import cachelayer

RECORDS, BATCH, STEPS = 10_000_000, 256, 2000


def cached(folder: Path, records: int) -> Any:
    """A version of records of 72 bytes, each with a log-normal weight."""
    rng = np.random.default_rng(0)
    columns = {"features": rng.integers(0, 99, (records, 16), dtype=np.int32), "weight": rng.lognormal(0, 1, records)}
    return cachelayer.Storage(folder).cache(columns, "records", "v1", progress=False)


def streamed(make: Callable[[int], Any]) -> Callable[[], int]:
    """Batches of a stream that begins elsewhere in every round, as those of a long run do."""
    starts = count()

    def work() -> int:
        stream = make(next(starts) * STEPS * BATCH)
        return sum(1 for _ in islice(stream, STEPS))

    return work


def rows(records: int = RECORDS) -> list[tuple[str, ...]]:
    """What is measured, in how many units, and how it compares; for a table."""
    with tempfile.TemporaryDirectory() as folder:
        ref = cached(Path(folder), records)
        started = time.perf_counter()
        sample = ref.sample("weight", seed=1)
        making = time.perf_counter() - started
        rates = medians(
            {
                "shuffle": streamed(
                    lambda start: ref.stream(BATCH, shuffle=True, seed=1, num_epochs=None, start=start)
                ),
                "sample": streamed(lambda start: sample.stream(BATCH, start=start)),
            }
        )
    ratio = rates["sample"] / rates["shuffle"]
    return [
        ("exact shuffle", f"{rates['shuffle']:,.0f} batches/s", "1", ""),
        ("weighted sample", f"{rates['sample']:,.0f} batches/s", f"{ratio:.2f}", "0.7"),
        ("making the sums from a leaf", f"{making:.1f} s", "", ""),
    ]


def main() -> None:
    """Print the table."""
    records = int(sys.argv[1]) if sys.argv[1:] else RECORDS
    title = f"Weighted sampling of {records:,} records, batches of {BATCH} ({machine()})"
    print(table(title, ("what", "measured", "of the shuffle", "aim"), rows(records)))


if __name__ == "__main__":
    main()
