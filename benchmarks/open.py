"""Opening a large version: time and memory from ``open`` to the first shuffled batch, in a fresh process.

Run: ``python benchmarks/open.py [records]``; 10 million records by default, which take a minute or two to build.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import machine, median, table

import cachelayer


def resident_mb(kind: str) -> float:
    """Memory of this process that is in RAM: its own, ``RssAnon``, or page cache that it has mapped, ``RssFile``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) / 1024


def one(reference: str) -> None:
    """Print, as JSON, what opening and a first shuffled batch of 256 cost."""
    opener = cachelayer.open  # the modules that it imports are not what is measured
    own, mapped, started = resident_mb("RssAnon"), resident_mb("RssFile"), time.perf_counter()
    ref = opener(reference)
    opened = time.perf_counter()
    batch = next(iter(ref.stream(256, shuffle=True, seed=1)))
    done = time.perf_counter()
    if len(batch) != 256:
        raise ValueError("a batch of 256 was asked for")
    own, mapped = resident_mb("RssAnon") - own, resident_mb("RssFile") - mapped
    print(json.dumps({"open": opened - started, "batch": done - opened, "own": own, "mapped": mapped}))


def main(records: int) -> None:
    """Print the table."""
    lines = []
    for name, source in (
        ("one size", lambda: np.arange(records)),
        ("any size", lambda: (b"x" * (number % 50) for number in range(records))),
    ):
        with tempfile.TemporaryDirectory() as folder:
            ref = cachelayer.Storage(folder).cache(source(), "numbers", "v1")
            runs = [
                json.loads(subprocess.run([sys.executable, __file__, "--one", ref.reference], check=True,
                                          capture_output=True, text=True).stdout)
                for _ in range(5)
            ]  # fmt: skip
        times = (f"{median(run[key] for run in runs) * 1e3:.1f}" for key in ("open", "batch"))
        memory = (f"{statistics.median(run[key] for run in runs):,.1f}" for key in ("own", "mapped"))
        lines.append((name, *times, *memory))
    head = ("records of", "open, ms", "first shuffled batch of 256, ms", "own memory, MB", "page cache mapped, MB")
    print(table(f"Opening {records:,} records, page cache hot ({machine()})", head, lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
