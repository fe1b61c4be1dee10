"""Comparing the rows of two versions: time, and the memory that it takes beside what a fresh process has.

Run: ``python benchmarks/diff.py [rows]``; a million rows of two texts and two numbers by default, in the same order or
in another one. One row is changed.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, table

import cachelayer


def own_mb() -> float:
    """Memory of this process in RAM, without files that are mapped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def measured(url: str, other: str, key: Any) -> tuple[float, float]:
    """The seconds that a comparison takes, and the most memory, in MB, beside that before."""
    storage, ended = cachelayer.Storage(url), threading.Event()
    before = own_mb()
    most = [before]

    def watch() -> None:
        while not ended.wait(0.005):
            most[0] = max(most[0], own_mb())

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.perf_counter()
    storage.diff("d@v1", other=f"d@{other}", key=key, progress=False)
    seconds = time.perf_counter() - began
    ended.set()
    watching.join()
    return seconds, most[0] - before


def main(rows: int) -> None:
    """Print the table."""
    ids, urls = np.arange(rows), np.array([f"https://example.org/page/{number}" for number in range(rows)], object)
    changed, order = ids / 3, np.random.default_rng(0).permutation(rows)
    changed[rows // 2] = -1
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        storage = cachelayer.Storage(folder)
        columns = {"id": ids, "url": urls, "x": ids / 3, "text": urls}
        storage.submit(columns, "d@v1", progress=False)
        columns["x"] = changed
        storage.submit(columns, "d@same-order", progress=False)
        storage.submit({name: column[order] for name, column in columns.items()}, "d@another", progress=False)
        cases = [("same-order", None), *product(("same-order", "another"), ("id", "url", ["id", "url"]))]
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as processes:
            for other, key in cases:
                seconds, mb = processes.submit(measured, folder, other, key).result()
                lines.append((str(key or "record number"), other, f"{seconds:.2f}", f"{mb:,.0f}"))
    print(table(f"Comparing {rows:,} rows ({machine()})", ("by", "order", "s", "memory, MB"), lines))


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["1000000"])[0]))
