"""Training pipelines: what a stream loses inside other libraries, against their own pipelines over the same records.

Run: ``python benchmarks/train.py``. Contenders of a row take turns in one process; each row is a function.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from harness import ROUNDS, machine, medians, table

import cachelayer

RECORDS, BATCH, SIDE = 50_000, 128, 32
Contenders = dict[str, Callable[[], int]]


def images() -> dict[str, np.ndarray]:
    """Records of 3 KB."""
    rng = np.random.default_rng(0)
    shape = (RECORDS, SIDE, SIDE, 3)
    return {"image": rng.integers(0, 256, shape, dtype=np.uint8), "label": np.arange(RECORDS, dtype=np.int64)}


def decode(raw: bytes) -> dict[str, Any]:
    """One stored record, as a hand-written pipeline decodes it."""
    image = np.frombuffer(raw, np.uint8, SIDE * SIDE * 3, 8).reshape(SIDE, SIDE, 3)
    return {"image": image, "label": np.frombuffer(raw, np.int64, 1)[0]}


def eight_shards(folder: Path) -> list[str]:
    """The records in eight ArrayRecord files."""
    arrays = images()
    for number, part in enumerate(np.array_split(np.arange(RECORDS), 8)):
        writer = ArrayRecordWriter(str(folder / f"{number}.array_record"), "group_size:1")
        for record in part:
            writer.write(arrays["label"][record].tobytes() + arrays["image"][record].tobytes())
        writer.close()
    return sorted(map(str, folder.glob("*.array_record")))


def counted(epoch: Callable[[int], Any]) -> Callable[[], int]:
    """Goes through an epoch of batches, each time in another order, and counts records."""
    seeds: Iterator[int] = iter(range(1000))
    return lambda: sum(len(batch["label"]) for batch in epoch(next(seeds)))


def grain_row(folder: Path) -> Contenders:
    """An epoch inside Grain, without threads or workers on either side."""
    import grain

    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    ref = cachelayer.Storage(folder / "cache").cache(images, "images", "v1")
    source = grain.sources.ArrayRecordDataSource(eight_shards(folder))

    def stock(seed: int) -> Any:
        dataset = grain.MapDataset.source(source).shuffle(seed=seed).map(decode).batch(BATCH)
        return dataset.to_iter_dataset(options)

    def ours(seed: int) -> Any:
        return grain.MapDataset.source(ref.stream(BATCH, shuffle=True, seed=seed)).to_iter_dataset(options)

    return {"source(stream)": counted(ours), "ArrayRecordDataSource": counted(stock)}


# Each with the least ratio of its first contender to the second.
ROWS: dict[str, tuple[Callable[[Path], Contenders], float]] = {
    f"inside Grain, {RECORDS:,} shuffled records of 3 KB, batches of {BATCH}, no workers": (grain_row, 5.0),
}


def main() -> None:
    """Print the table."""
    lines = []
    for title, (setup, aim) in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            rates = medians(setup(Path(folder)))
        (first, rate), (second, other) = rates.items()
        lines.append((title, f"{first} {rate:,.0f}", f"{second} {other:,.0f}", f"{rate / other:.2f} (aim {aim:g})"))
    head = ("work", "cachelayer, records/s", "other, records/s", "ratio")
    print(table(f"Training pipelines, medians of {ROUNDS} ({machine()})", head, lines))


if __name__ == "__main__":
    main()
