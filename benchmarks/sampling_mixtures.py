"""Mixtures whose weights change, against the slowest of their parts alone; in one run.

Run: ``python benchmarks/sampling_mixtures.py [folder]``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, named_folder, table

import cachelayer

PARTS, RECORDS, BATCH, STEPS = 4, 100_000, 256, 200
WEIGHTS = ((0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4), (0.25, 0.25, 0.25, 0.25))
STAGE = 1_000_003
STARTS = 15


def cached(folder: Path) -> list[Any]:
    """Versions of pictures of 32 x 32 pixels with labels."""
    storage, pictures = cachelayer.Storage(folder), np.random.default_rng(0)
    return [
        storage.cache(
            {
                "image": pictures.integers(0, 256, (RECORDS, 32, 32, 3), dtype=np.uint8),
                "label": np.arange(RECORDS, dtype=np.int32),
            },
            f"part{part}",
            "v1",
        )
        for part in range(PARTS)
    ]


def mixture_of(parts: list[Any]) -> Any:
    """All parts, in three stages."""
    schedule = {stage * STAGE: weights for stage, weights in enumerate(WEIGHTS)}
    return cachelayer.mix(list(zip(parts, WEIGHTS[0], strict=True)), schedule=schedule)


def going_on(stream: Any) -> Any:
    """A contender that reads the next batches of a stream each time, so that no order is computed already."""
    batches: Iterator[Any] = iter(stream)
    return lambda: sum(len(batch["label"]) for batch in islice(batches, STEPS))


def against_the_slowest(parts: list[Any]) -> float:
    """Records a second of the mixture, over those of its slowest part alone."""
    contenders = {
        str(number): going_on(part.stream(BATCH, shuffle=True, seed=1, num_epochs=None))
        for number, part in enumerate(parts)
    }
    # The first stage ends among the measured batches.
    start = STAGE - STAGE % BATCH - 5 * STEPS * BATCH
    contenders["mixture"] = going_on(mixture_of(parts).stream(BATCH, shuffle=True, seed=1, start=start))
    rates = medians(contenders, rounds=9)
    return rates.pop("mixture") / min(rates.values())


def first_batch_seconds(parts: list[Any]) -> float:
    """How long the first batch takes, the median of many positions, each in an order that was never computed."""
    mixture, taken = mixture_of(parts), []
    next(iter(mixture.stream(BATCH, shuffle=True, seed=0)))
    for number in range(STARTS):
        stream = mixture.stream(BATCH, shuffle=True, seed=number + 1, start=number**8 * 12_345 + 678)
        started = time.perf_counter()
        next(iter(stream))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def rows(folder: Path | None = None) -> list[tuple[str, str, str]]:
    """What was measured, its value, and what it must reach."""
    with tempfile.TemporaryDirectory() as made:
        parts = cached(Path(made) if folder is None else folder)
        return [
            ("mixture of four parts in three stages / the slowest part", f"{against_the_slowest(parts):.2f}", "0.8"),
            ("any position of a mixture, first batch", f"{1000 * first_batch_seconds(parts):.1f} ms", "5 ms"),
        ]


def main() -> None:
    """Print what was measured."""
    with named_folder() as folder:
        print(machine(), table("Mixtures", ("what", "measured", "at least"), rows(folder)), sep="\n\n")


if __name__ == "__main__":
    main()
