"""Large builds: memory, going on after an interruption, and what an engine costs beside processes.

Run: ``python benchmarks/large_builds.py [share [folder]]``, with 25 GB free in the folder, or a share of that. Builds
of 10 GB, of 30,000 texts and of 150,000 texts are made, or a share of each. Ray starts before it is timed.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROUNDS, machine, median, medians, named_folder, table
from workers import Tokens

import cachelayer

RECORD_NBYTES = 100_000
RECORDS, RESUMED, TEXTS = 100_000, 30_000, 150_000
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


def texts(records: int, index: int, count: int) -> Iterator[Any]:
    source = Tokens(records)
    return (source[number] for number in range(records * index // count, records * (index + 1) // count))


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


def memory(folder: Path, records: int) -> list[tuple[str, ...]]:
    """The most memory of one build each: memory does not depend on what else the machine does, as time does."""
    rows = []
    for name, workers in (("ranges, workers=2", 2), ("one process", 1)):
        resident = Resident()
        with resident.watched():
            cachelayer.Storage(folder / "storage").submit(Blocks(records), "d", "v1", workers=workers)
        shutil.rmtree(folder / "storage")
        children = [peak for pid, peak in resident.peaks.items() if pid != "self"]
        worker = f"{max(children) / 1e6:,.0f} MB" if workers > 1 else ""
        rows.append((name, worker, f"{resident.peaks['self'] / 1e6:,.0f} MB", "500 MB"))
    return rows


def resumed(folder: Path, records: int, workers: int) -> float:
    """Seconds of going on at 90 %, over those of a whole build."""
    mended = folder / "mended"
    source = Interrupted(records, records * 9 // 10, mended)
    seconds = []
    for is_interrupted in (False, True):
        storage = cachelayer.Storage(folder / "storage")
        options: dict[str, Any] = {
            "element_spec": SPEC,
            "workers": workers,
            "shard_bytes": (1 << 20) * records // RESUMED,
        }
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


def engines(folder: Path, records: int) -> list[tuple[str, ...]]:
    import ray

    digests = set()
    source = cachelayer.sharded(partial(texts, records), PARTS)

    def build(**how: Any) -> int:
        ref = cachelayer.Storage(folder / "storage").submit(source, "d", "v1", element_spec=SPEC, **how)
        digests.add(ref.digest)
        shutil.rmtree(folder / "storage")
        return len(ref)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    contenders = {"workers=2": partial(build, workers=2), 'engine="ray"': partial(build, engine="ray")}
    rates = medians(contenders, warm_up=False)
    ray.shutdown()
    if len(digests) != 1:
        raise RuntimeError("the versions differ")
    base, aims = rates["workers=2"], {'engine="ray"': "+15%"}
    return [
        (name, f"{records / rate:.1f} s", f"{base / rate - 1:+.0%}", aims.get(name, "")) for name, rate in rates.items()
    ]


def main(folder: Path, share: float) -> None:
    """Print the tables."""
    records, interrupted, tokenised = (int(each * share) for each in (RECORDS, RESUMED, TEXTS))
    columns = (f"build of {records * RECORD_NBYTES / 1e9:g} GB", "a worker at most", "the parent at most", "aim")
    print(table(f"Memory ({machine()})", columns, memory(folder, records)), end="\n\n")
    ratios = [
        (f"workers={workers}", f"{median(resumed(folder, interrupted, workers) for _ in range(ROUNDS)):.1%}", "15%")
        for workers in (1, 2)
    ]
    title = f"Resuming a build of {interrupted:,} texts that was interrupted at 90 %, of the time of a whole build"
    print(table(title, ("", "time", "aim"), ratios), end="\n\n")
    title = f"{tokenised:,} texts, tokenised in {PARTS} parts"
    print(table(title, ("", "time", "more than workers=2", "aim"), engines(folder, tokenised)))


if __name__ == "__main__":
    with named_folder(2) as folder:
        main(folder, float(sys.argv[1]) if sys.argv[1:] else 1.0)
