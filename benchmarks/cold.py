"""Shuffled reads from a cold page cache: which way of fetching wins, and what cachelayer and array_record make of it.

Run: ``python benchmarks/cold.py [folder on the disk to be measured]``. Each way runs in a process of its own, after the
pages of the files were dropped with ``posix_fadvise(POSIX_FADV_DONTNEED)``, in three rounds; the table has medians.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource as Stock
from harness import ROUNDS, machine, median, table

import cachelayer
from cachelayer.records.memory import windows

RECORDS, SIDE, BATCH, BATCHES = 200_000, 32, 256, 40
NBYTES = SIDE * SIDE * 3 + 8
THREADS = 16


def build(folder: Path) -> None:
    """A version of 600 MB, and its place."""
    rng = np.random.default_rng(0)
    arrays = {"image": rng.integers(0, 256, (RECORDS, SIDE, SIDE, 3), np.uint8), "label": np.arange(RECORDS)}
    cachelayer.Storage(folder).cache(arrays, "data", "v1", shard_bytes=1 << 30)


def shard(folder: Path) -> str:
    return str(next((folder / "data" / "shards").glob("*.array_record")))


def drop(folder: Path) -> None:
    """Drop the pages of all files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def faults(folder: Path, advice: str) -> Callable[[np.ndarray], object]:
    """A gather from a map, which faults pages in, with an advice given before."""
    with Path(shard(folder)).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = windows(np.frombuffer(mapped, np.uint8), NBYTES)
    if advice == "random":
        mapped.madvise(mmap.MADV_RANDOM)

    def read(numbers: np.ndarray) -> object:
        starts = numbers * NBYTES
        if advice == "willneed":
            for start in starts.tolist():
                page = start // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_WILLNEED, page, start + NBYTES - page)
        return view[starts]

    return read


def preads(folder: Path) -> Callable[[np.ndarray], object]:
    """Threads that read with the GIL released."""
    descriptor = os.open(shard(folder), os.O_RDONLY)
    pool = ThreadPoolExecutor(THREADS)

    def part(out: memoryview, starts: list[int]) -> None:
        for row, start in enumerate(starts):
            os.preadv(descriptor, [out[row * NBYTES : (row + 1) * NBYTES]], start)

    def read(numbers: np.ndarray) -> object:
        out = bytearray(len(numbers) * NBYTES)
        starts, size = (numbers * NBYTES).tolist(), -(-len(numbers) // THREADS)
        firsts = range(0, len(starts), size)
        views = [memoryview(out)[first * NBYTES : (first + size) * NBYTES] for first in firsts]
        list(pool.map(part, views, [starts[first : first + size] for first in firsts]))
        return out

    return read


def stock(folder: Path) -> Callable[[np.ndarray], object]:
    reader = Stock(shard(folder))
    return lambda numbers: reader.__getitems__(numbers.tolist())


def streamed(folder: Path, start: int) -> Callable[[np.ndarray], object]:
    """Shuffled batches of a stream from a position on, whichever records are asked for."""
    ref = cachelayer.Storage(folder).fetch("data@v1")
    batches = iter(ref.stream(BATCH, shuffle=True, seed=os.getpid(), start=start))
    return lambda _: next(batches)


WAYS: dict[str, Callable[[Path], Callable[[np.ndarray], object]]] = {
    "page faults, as they come": lambda folder: faults(folder, "none"),
    "page faults, MADV_RANDOM": lambda folder: faults(folder, "random"),
    "MADV_WILLNEED on each record": lambda folder: faults(folder, "willneed"),
    f"pread in {THREADS} threads": preads,
    "array_record's `__getitems__`": stock,
    "cachelayer's `ref.read`": lambda folder: cachelayer.Storage(folder).fetch("data@v1").read,
    "cachelayer's stream, from the begin": lambda folder: streamed(folder, 0),
    "cachelayer's stream, from 90 % on": lambda folder: streamed(folder, RECORDS * 9 // 10),
}
AIMS = dict.fromkeys((way for way in WAYS if "stream" in way), "1.1")
PREADS = f"pread in {THREADS} threads"


def one(way: str, folder: Path, seed: int) -> None:
    """Print, as JSON, the rate of a way, the time to its first batch in seconds, and the bytes that the disk gave."""
    order = np.random.default_rng(seed).permutation(RECORDS - 1)[: BATCH * BATCHES].reshape(BATCHES, BATCH)
    warm_up()
    before = disk_bytes()
    started = time.perf_counter()
    read = WAYS[way](folder)
    read(order[0])
    first = time.perf_counter() - started
    for numbers in order[1:]:
        read(numbers)
    rate = order.size / (time.perf_counter() - started)
    print(json.dumps({"rate": rate, "first": first, "bytes": disk_bytes() - before}))


def warm_up() -> None:
    """Read another version, so that the clock starts when all modules are imported, as those of the others are."""
    with tempfile.TemporaryDirectory() as folder:
        ref = cachelayer.Storage(folder).cache(np.arange(BATCH * 4), "other", "v1")
        ref.read(np.arange(BATCH))
        next(iter(ref.stream(BATCH, shuffle=True, seed=0)))


def disk_bytes() -> int:
    """Bytes that the disk gave to this process."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def main(folder: Path) -> None:
    """Print the table."""
    build(folder)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(ROUNDS):
        for way in WAYS:
            drop(folder)
            command = [sys.executable, __file__, "--one", way, str(folder), str(seed)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[way].append(json.loads(printed))
    wanted = BATCH * BATCHES * NBYTES
    lines = []
    for way, runs in found.items():
        rate, first = (median(run[key] for run in runs) for key in ("rate", "first"))
        read = statistics.median(run["bytes"] for run in runs)
        # In each round they take turns, so the disk is as busy for both.
        ratio = statistics.median(run["first"] / other["first"] for run, other in zip(runs, found[PREADS], strict=True))
        lines.append(
            (way, f"{rate:,.0f}", f"{first * 1e3:,.1f}", f"{ratio:.2f}", AIMS.get(way, ""), f"{read / wanted:.1f}")
        )
    title = f"Shuffled reads of {RECORDS:,} records of {NBYTES:,} bytes, {BATCHES} batches of {BATCH}, cold page cache"
    head = ("way", "records/s", "first batch, ms", f"of that of {PREADS}", "aim", "bytes from disk / bytes wanted")
    print(table(f"{title} ({machine()})", head, lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
            main(Path(place))
