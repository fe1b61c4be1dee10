"""array_record, and Grain over it, beside cachelayer: the same records from a hot page cache, in one process.

array_record publishes no rates; the files and the reader here have the options that its guide recommends for random
access (https://github.com/google/array_record/blob/main/docs/performance.md). Grain reads with the threads of its
defaults, ``grain.ReadOptions()``, on both sides; a last row is without, since two cores may be too few for them. Its
pipeline makes batches before the threads, which is several times quicker than after them.

Run: ``python benchmarks/against_array_record.py [--records N] [--rounds N]``, after ``pip install -e '.[grain]'``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter
from harness import (
    Comparison,
    arguments,
    check_same,
    decode,
    decoded_batch,
    encoded,
    images,
    reading,
    shuffled_batches,
)

import cachelayer

BATCH = 256
RANDOM_ACCESS = {"max_parallelism": "0", "index_storage_option": "in_memory"}


def stored(folder: Path, source: Any, rows: Iterable[bytes], compression: str | None = None) -> tuple[Any, Any]:
    """The records as a version, and as array_record writes and reads them."""
    ref = cachelayer.Storage(folder).submit(source, "data@v1", compression=compression, progress=False)
    path = str(folder / "stock.array_record")
    writer = ArrayRecordWriter(path, f"group_size:1,{'zstd:3' if compression else 'uncompressed'}")
    for row in rows:
        writer.write(row)
    writer.close()
    return ref, ArrayRecordDataSource([path], reader_options=RANDOM_ACCESS)


def compare_images(comparison: Comparison, folder: Path, records: int) -> None:
    """Batches and single elements of images of 3 KB, and epochs inside Grain."""
    arrays = images(records)
    ref, stock = stored(folder, arrays, encoded(arrays))
    wanted = shuffled_batches(records, BATCH)

    def stacked(numbers: np.ndarray) -> Any:
        return decoded_batch(stock.__getitems__(numbers.tolist()))

    check_same(ref.read(wanted[0]), stacked(wanted[0]))
    ours, theirs = reading(ref.read, wanted), reading(stacked, wanted[:40])
    comparison.add(f"batches of {BATCH} images of 3 KB", ours, "array_record", theirs)

    singles = np.concatenate(wanted)[:2_000].tolist()
    theirs = reading(lambda number: decode(stock[number]), singles)
    comparison.add("such images one by one", reading(ref.__getitem__, singles), "array_record", theirs)

    compare_inside_grain(comparison, ref, stock)


def compare_inside_grain(comparison: Comparison, ref: Any, stock: Any) -> None:
    """Shuffled epochs of batches: Grain's own pipeline over either source, and a stream as a source of batches.

    Of an epoch that Grain shuffles, the first batches are enough.
    """
    seeds, records, part = count(), len(ref), 32
    no_threads = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)

    def over_array_record(seed: int, options: Any = None) -> Any:
        shuffled = grain.MapDataset.source(stock).shuffle(seed=seed).map(decode)
        return shuffled.batch(BATCH)[:part].to_iter_dataset(options)

    def over_ref(seed: int) -> Any:
        return grain.MapDataset.source(ref).shuffle(seed=seed).batch(BATCH)[:part].to_iter_dataset()

    def over_stream(seed: int) -> Any:
        return grain.MapDataset.source(ref.stream(BATCH, shuffle=True, seed=seed)).to_iter_dataset()

    check_same(next(iter(over_ref(1))), next(iter(over_array_record(1))))
    check_same(np.sort(np.concatenate([batch["label"] for batch in over_stream(1)])), np.arange(records))

    def epoch(dataset: Callable[[int], Any]) -> Callable[[], int]:
        return lambda: sum(len(batch["label"]) for batch in dataset(next(seeds)))

    threads = f"Grain's {grain.ReadOptions().num_threads} threads"
    theirs, alone = epoch(over_array_record), epoch(lambda seed: over_array_record(seed, no_threads))
    comparison.add("Grain's shuffled batches, over a `DataRef`", epoch(over_ref), threads, theirs)
    comparison.add("a stream inside Grain", epoch(over_stream), threads, theirs)
    comparison.add("the same", epoch(over_stream), "no threads", alone)


def compare_compressed(comparison: Comparison, folder: Path, records: int) -> None:
    """Images that zstd halves."""
    arrays = images(records)
    arrays["image"] &= 0x0F
    ref, stock = stored(folder, arrays, encoded(arrays), "zstd")
    wanted = shuffled_batches(records, BATCH)

    def stacked(numbers: np.ndarray) -> Any:
        return decoded_batch(stock.__getitems__(numbers.tolist()))

    check_same(ref.read(wanted[0]), stacked(wanted[0]))
    theirs = reading(stacked, wanted[:40])
    comparison.add("batches of such images, zstd", reading(ref.read, wanted), "array_record", theirs)


def compare_bytes(comparison: Comparison, folder: Path, records: int) -> None:
    """Byte strings of 1 to 100 KB."""
    rng = np.random.default_rng(0)
    rows = [rng.bytes(int(size)) for size in rng.integers(1_000, 100_000, records)]
    ref, stock = stored(folder, rows, rows)
    wanted = shuffled_batches(records, 64)

    def listed(numbers: np.ndarray) -> Any:
        return stock.__getitems__(numbers.tolist())

    check_same(list(ref.read(wanted[0])), listed(wanted[0]))
    ours, theirs = reading(ref.read, wanted), reading(listed, wanted)
    comparison.add("batches of 64 byte strings of 1 to 100 KB", ours, "array_record", theirs)


def main(records: int, rounds: int) -> None:
    """Print the table."""
    comparison = Comparison(f"Of {records:,} records, those", rounds)
    for compare, part in ((compare_images, 1), (compare_compressed, 2), (compare_bytes, 10)):
        with tempfile.TemporaryDirectory() as folder:
            compare(comparison, Path(folder), records // part)
    comparison.print("array_record", "grain")


if __name__ == "__main__":
    given = arguments(__doc__, records=100_000, rounds=5)
    main(given.records, given.rounds)
