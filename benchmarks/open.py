"""Opening a large version: time and memory from ``open`` to the first shuffled batches, in a fresh process.

Run: ``python benchmarks/open.py [records ...]``; 10 million records by default, which take a minute or two to build.
Records of any size are made one by one, so they are left out above 10 million: 10^8 of one size take 10 GB of disk.
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
from harness import machine, table

import cachelayer

BATCHES = 100
MOST_OF_ANY_SIZE = 10**7


def resident_mb(kind: str) -> float:
    """Memory of this process in RAM: its own, ``RssAnon``; page cache mapped, ``RssFile``; the peak, ``VmHWM``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) / 1024


def one(reference: str) -> None:
    """Print, as JSON, what opening and the first shuffled batches of 256 cost."""
    opener = cachelayer.open  # the modules that it imports are not what is measured
    own, mapped, started = resident_mb("RssAnon"), resident_mb("RssFile"), time.perf_counter()
    ref = opener(reference)
    opened = time.perf_counter()
    batches = iter(ref.stream(256, shuffle=True, seed=1))
    batch = next(batches)
    done = time.perf_counter()
    if len(batch) != 256:
        raise ValueError("a batch of 256 was asked for")
    own, mapped = resident_mb("RssAnon") - own, resident_mb("RssFile") - mapped
    for _ in zip(range(1, BATCHES), batches, strict=False):
        pass
    later = {"peak": resident_mb("VmHWM"), "own later": resident_mb("RssAnon")}
    print(json.dumps({"open": opened - started, "batch": done - opened, "own": own, "mapped": mapped, **later}))


def main(records: int) -> None:
    """Print the table."""
    lines = []
    for name, source in (
        ("one size", lambda: np.arange(records)),
        ("any size", lambda: (b"x" * (number % 50) for number in range(records))),
    )[: 1 if records > MOST_OF_ANY_SIZE else 2]:
        with tempfile.TemporaryDirectory() as folder:
            ref = cachelayer.Storage(folder).cache(source(), "numbers@v1")
            runs = [
                json.loads(subprocess.run([sys.executable, __file__, "--one", ref.reference], check=True,
                                          capture_output=True, text=True).stdout)
                for _ in range(5)
            ]  # fmt: skip
        times = (f"{statistics.median(run[key] for run in runs) * 1e3:.1f}" for key in ("open", "batch"))
        kinds = ("own", "mapped", "peak", "own later")
        memory = (f"{statistics.median(run[key] for run in runs):,.1f}" for key in kinds)
        lines.append((name, *times, *memory))
    head = ("records of", "open, ms", "first shuffled batch of 256, ms", "own memory, MB", "page cache mapped, MB")
    head += (f"peak of the process, {BATCHES} batches, MB", "its own memory then, MB")
    print(table(f"Opening {records:,} records, page cache hot ({machine()})", head, lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
    else:
        for number in map(int, sys.argv[1:] or ["10000000"]):
            main(number)
