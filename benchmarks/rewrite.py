"""Rewriting a version, shuffled, on a local disk: against caching the same bytes from mapped arrays.

Run: ``python benchmarks/rewrite.py [GB [folder]]``: 10 GB by default. Both bring their files to the disk (fsync), and
both are given two workers; the build from arrays is measured as it is and by parts. All take turns in one run.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, named_folder, table

import cachelayer

WORKERS = 2
AIMS = {"storage.rewrite, shuffled": "0.5"}


def drawn_images(path: Path, records: int) -> Any:
    """Random images in a mapped file: pages that the kernel may drop leave their memory to what is measured."""
    images = np.lib.format.open_memmap(path, "w+", np.uint8, (records, 32, 32, 3))
    for start in range(0, records, 1 << 16):
        part = images[start : start + (1 << 16)]
        part[:] = np.random.default_rng(start).integers(0, 256, part.shape, dtype=np.uint8)
    images.flush()
    return np.load(path, mmap_mode="r")


def main(folder: Path, gigabytes: float) -> None:
    """Print the table."""
    records = int(gigabytes * 1e9 / 3080)
    arrays = {"image": drawn_images(folder / "images.npy", records), "label": np.arange(records, dtype=np.int64)}
    storage = cachelayer.Storage(folder / "base")
    storage.cache(arrays, "images", "v1", progress=False)

    def made(make: Any) -> int:
        target = cachelayer.Storage(folder / "made")
        found = len(make(target))
        shutil.rmtree(folder / "made")
        return found

    def rewritten(target: cachelayer.Storage) -> Any:
        base = storage.fetch("images", "v1")
        return target.rewrite("images", base, "v2", shuffle_seed=0, workers=WORKERS, progress=False)

    contenders = {
        "storage.cache": lambda: made(lambda to: to.cache(arrays, "images", "v2", workers=WORKERS, progress=False)),
        "storage.cache, engine='processes'": lambda: made(
            lambda to: to.cache(arrays, "images", "v2", workers=WORKERS, engine="processes", progress=False)
        ),
        "storage.rewrite, shuffled": lambda: made(rewritten),
    }
    load = os.getloadavg()[0]
    rates = medians(contenders, warm_up=False)
    base = rates["storage.cache"]
    rows = [
        (name, f"{rate:,.0f}", f"{rate * 3080 / 1e6:,.0f}", f"{rate / base:.2f}", AIMS.get(name, ""))
        for name, rate in rates.items()
    ]
    title = f"{gigabytes:g} GB in {records:,} records of 3 KB, {WORKERS} workers ({machine()}; load before {load:.1f})"
    print(table(title, ("contender", "records/s", "MB/s", "of storage.cache", "aim, of 10 GB"), rows))


if __name__ == "__main__":
    with named_folder(2) as folder:
        main(folder, float(sys.argv[1]) if sys.argv[1:] else 10.0)
