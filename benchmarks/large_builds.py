"""Large builds: memory, going on after an interruption, and what an engine costs beside processes.

Run: ``python benchmarks/large_builds.py [folder]``, with 25 GB free in the folder. Ray starts before it is timed.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, named_folder, table
from workers import Tokens

import cachelayer

RECORD_NBYTES = 100_000
RECORDS = 100_000
TEXTS = 150_000
PARTS = 24
SPEC = {"tokens": cachelayer.ArraySpec("uint16", (None,))}


class Blocks(Sequence[Any]):
    """Records of random bytes."""

    def __init__(self, records: int) -> None:
        self.blocks = np.random.default_rng(0).integers(0, 256, (64, RECORD_NBYTES), np.uint8)
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: Any) -> Any:
        if number >= self.records:
            raise IndexError(number)
        return {"block": self.blocks[number % 64], "number": number}


class Interrupted(Tokens):
    """Tokenised texts, of which one fails where a file does not exist."""

    def __init__(self, count: int, fails_at: int, mended: Path) -> None:
        super().__init__(count)
        self.fails_at, self.mended = fails_at, mended

    def __getitem__(self, number: Any) -> Any:
        if number == self.fails_at and not self.mended.exists():
            raise OSError("interrupted")
        return super().__getitem__(number)


def texts(index: int, count: int) -> Iterator[Any]:
    source = Tokens(TEXTS)
    return (source[number] for number in range(TEXTS * index // count, TEXTS * (index + 1) // count))


class Resident:
    """The most memory that this process and each of its children had resident."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    def look(self) -> None:
        for pid in ("self", *Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()):
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")]
            self.peaks[pid] = max(self.peaks.get(pid, 0), *found, 0)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look again and again."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.05):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def memory(folder: Path) -> list[tuple[str, ...]]:
    rows = []
    for name, workers, source in (
        ("ranges, workers=2", 2, Blocks(RECORDS)),
        ("one process", 1, Blocks(RECORDS)),
    ):
        resident = Resident()
        with resident.watched():
            storage = cachelayer.Storage(folder / "storage")
            started = time.perf_counter()
            storage.submit(source, "d", "v1", workers=workers)
            seconds = time.perf_counter() - started
        shutil.rmtree(folder / "storage")
        children = [peak for pid, peak in resident.peaks.items() if pid != "self"]
        worker = f"{max(children) / 1e6:,.0f} MB" if workers > 1 else ""
        parent = f"{resident.peaks['self'] / 1e6:,.0f} MB"
        rows.append((name, f"{RECORDS * RECORD_NBYTES / 1e6 / seconds:,.0f} MB/s", worker, parent, "500 MB"))
    return rows


def resumed(folder: Path, workers: int) -> float:
    """Seconds of going on at 90 %, over those of a whole build."""
    records, mended = 30_000, folder / "mended"
    source = Interrupted(records, records * 9 // 10, mended)
    seconds = []
    for is_interrupted in (False, True):
        storage = cachelayer.Storage(folder / "storage")
        options: dict[str, Any] = {"element_spec": SPEC, "workers": workers, "shard_bytes": 1 << 20}
        if is_interrupted:
            mended.unlink()
            with suppress(cachelayer.SourceError):
                storage.cache(source, "d", "v1", **options)
        mended.touch()
        started = time.perf_counter()
        storage.cache(source, "d", "v1", **options)
        seconds.append(time.perf_counter() - started)
        shutil.rmtree(folder / "storage")
    return seconds[1] / seconds[0]


def engines(folder: Path) -> list[tuple[str, ...]]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    seconds: dict[str, float] = {}
    digests = set()
    for name, how in (("workers=2", {"workers": 2}), ('engine="ray"', {"engine": "ray"})):
        storage = cachelayer.Storage(folder / "storage")
        started = time.perf_counter()
        digests.add(storage.submit(cachelayer.sharded(texts, PARTS), "d", "v1", element_spec=SPEC, **how).digest)
        seconds[name] = time.perf_counter() - started
        shutil.rmtree(folder / "storage")
    ray.shutdown()
    if len(digests) != 1:
        raise RuntimeError("the versions differ")
    base = seconds["workers=2"]
    return [(name, f"{each:.1f} s", f"{each / base - 1:+.0%}") for name, each in seconds.items()]


def main(folder: Path) -> None:
    """Print the tables."""
    columns = ("build of 10 GB", "written", "a worker at most", "the parent at most", "asked")
    print(table(f"Memory ({machine()})", columns, memory(folder)))
    ratios = [(f"workers={workers}", f"{resumed(folder, workers):.1%}", "15%") for workers in (1, 2)]
    print(table("Going on at 90 %, over a whole build", ("", "time", "asked"), ratios))
    print(table(f"{TEXTS:,} texts, tokenised in {PARTS} parts", ("", "time", "more than workers=2"), engines(folder)))


if __name__ == "__main__":
    with named_folder() as folder:
        main(folder)
