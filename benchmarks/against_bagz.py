"""bagz beside cachelayer: the same records from a hot page cache, in one process.

bagz publishes no rates, only how it is read (https://github.com/google-deepmind/bagz). Here its reader keeps the
places of the records in memory, and is asked in its two quickest ways: one record after the other, and by
``read_indices_iter``, which reads ahead with threads.

Run: ``python benchmarks/against_bagz.py [--records N] [--rounds N]``, after ``pip install bagz==0.3.8``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bagz
import numpy as np
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


def written(path: Path, rows: Iterable[bytes]) -> Any:
    """A reader of a file of these records; the suffix says whether bagz compresses it."""
    with bagz.Writer(str(path)) as writer:
        for row in rows:
            writer.write(row)
    return bagz.Reader(str(path), bagz.Reader.Options(limits_storage=bagz.LimitsStorage.IN_MEMORY))


def compare_images(comparison: Comparison, folder: Path, records: int) -> None:
    """Images of 3 KB: batches, single elements and elements of a shuffled epoch."""
    arrays = images(records)
    ref = cachelayer.Storage(folder).submit(arrays, "images@v1", progress=False)
    reader = written(folder / "images.bag", encoded(arrays))
    wanted = shuffled_batches(records, BATCH)

    def stacked(numbers: np.ndarray) -> Any:
        return decoded_batch(reader[number] for number in numbers.tolist())

    check_same(ref.read(wanted[0]), stacked(wanted[0]))
    ours, theirs = reading(ref.read, wanted), reading(stacked, wanted)
    comparison.add(f"batches of {BATCH} images of 3 KB", ours, "bagz", theirs)

    singles = np.concatenate(wanted)[:20_000].tolist()
    theirs = reading(lambda number: decode(reader[number]), singles)
    comparison.add("such images one by one", reading(ref.__getitem__, singles), "bagz", theirs)

    order = np.random.default_rng(1).permutation(records).tolist()
    ours = lambda: sum(1 for _ in ref.stream(shuffle=True, seed=1))  # noqa: E731
    theirs = reading(lambda number: decode(reader[number]), order)
    comparison.add("a shuffled epoch of elements", ours, "bagz", theirs)
    ahead = lambda: sum(1 for raw in reader.read_indices_iter(order) if decode(raw))  # noqa: E731
    comparison.add("the same", ours, "bagz, `read_indices_iter`", ahead)


def compare_bytes(comparison: Comparison, folder: Path, records: int) -> None:
    """Byte strings of 0.1 to 4 KB, as they are and compressed."""
    rng = np.random.default_rng(0)
    rows = [rng.bytes(int(size) // 2).hex().encode() for size in rng.integers(100, 4_000, records)]
    wanted = shuffled_batches(records, BATCH)
    storage = cachelayer.Storage(folder)
    for compression, suffix in ((None, "bag"), ("zstd", "bagz")):
        ref = storage.submit(rows, f"{suffix}@v1", compression=compression, progress=False)
        reader = written(folder / f"rows.{suffix}", rows)

        def listed(numbers: np.ndarray, reader: Any = reader) -> Any:
            return [reader[number] for number in numbers.tolist()]

        check_same(list(ref.read(wanted[0])), listed(wanted[0]))
        work = f"batches of byte strings of 0.1 to 4 KB{', zstd' if compression else ''}"
        comparison.add(work, reading(ref.read, wanted), "bagz", reading(listed, wanted))


def main(records: int, rounds: int) -> None:
    """Print the table."""
    comparison = Comparison(f"Of {records:,} records, those", rounds)
    for compare in (compare_images, compare_bytes):
        with tempfile.TemporaryDirectory() as folder:
            compare(comparison, Path(folder), records)
    comparison.print("bagz")


if __name__ == "__main__":
    given = arguments(__doc__, records=100_000, rounds=5)
    main(given.records, given.rounds)
