"""Lance beside cachelayer: random takes of strings of 1,000 characters, as Lance's own benchmark takes them.

Lance published 1,000 takes of 20 to 50 of 10^8 such rows (https://blog.lancedb.com/benchmarking-random-access-in-lance).
Here are fewer rows, which fit into the page cache, and takes of 1 and of 1,000 rows too.

Run: ``python benchmarks/against_lance.py [--rows N] [--rounds N]``, after ``pip install pylance==14.0.2``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from harness import Comparison, arguments, check_same, reading

import cachelayer

CHARACTERS = 1_000
QUERIES = {"1 row": (1, 1, 2_000), "20 to 50 rows": (20, 50, 1_000), "1,000 rows": (1_000, 1_000, 50)}
"""Of each kind of take: the fewest and the most rows, and how many takes a round has."""


def strings(rows: int) -> pa.Table:
    """Random letters, in ten chunks as a reader of files gives them."""
    rng = np.random.default_rng(0)
    chunks = []
    for part in np.array_split(np.arange(rows), 10):
        letters = rng.integers(97, 123, len(part) * CHARACTERS, np.uint8)
        ends = np.arange(0, len(letters) + 1, CHARACTERS, dtype=np.int32)
        chunks.append(pa.Array.from_buffers(pa.string(), len(part), [None, pa.py_buffer(ends), pa.py_buffer(letters)]))
    return pa.table({"value": pa.chunked_array(chunks)})


def main(rows: int, rounds: int) -> None:
    """Print the table."""
    comparison = Comparison(f"Of {rows:,} rows, those", rounds)
    with tempfile.TemporaryDirectory() as folder:
        table = strings(rows)
        dataset = lance.write_dataset(table, f"{folder}/rows.lance")
        ref = cachelayer.Storage(Path(folder)).submit(table, "rows@v1", progress=False)
        del table

        def our_strings(numbers: np.ndarray) -> list[str]:
            # One record is quicker to get as an element.
            return [ref[int(numbers[0])]["value"]] if len(numbers) == 1 else ref.read(numbers)["value"].tolist()

        def their_strings(numbers: np.ndarray) -> list[str]:
            return list(dataset.take(numbers.tolist())["value"].to_pylist())

        rng = np.random.default_rng(1)
        for name, (least, most, count) in QUERIES.items():
            wanted = [rng.integers(0, rows, size) for size in rng.integers(least, most + 1, count)]
            check_same(our_strings(wanted[0]), their_strings(wanted[0]))
            theirs = reading(lambda numbers: dataset.take(numbers.tolist()), wanted)
            comparison.add(f"{name}, as arrays", reading(ref.read, wanted), "Lance", theirs)
            ours, theirs = reading(our_strings, wanted), reading(their_strings, wanted)
            comparison.add(f"{name}, as Python strings", ours, "Lance", theirs)
    comparison.print("pylance", "pyarrow")


if __name__ == "__main__":
    given = arguments(__doc__, rows=500_000, rounds=5)
    main(given.rows, given.rounds)
