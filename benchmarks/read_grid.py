"""Shuffled reading from a hot page cache over a grid: sizes of records, sizes of batches, cores, and other programs.

Run: ``python benchmarks/read_grid.py [batches] [elements] [zstd]``. Each cell runs in a process of its own, in which
contenders take turns. "Busy" means that another process keeps one of the cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, note_spread, spread, table
from read import memmap

import cachelayer

# Bytes of the large leaf of a record, beside which there is a label; and the records.
SIZES = {"520 B": (512, 100_000), "3 KB": (3_072, 40_000), "196 KB": (196_608, 1_000)}
BATCHES = {"520 B": (64, 256, 1_024), "3 KB": (64, 256, 1_024), "196 KB": (16, 64, 256)}
AIMS = {"520 B": 1.3, "3 KB": 1.5, "196 KB": 1.1}
WAYS = ("one core", "all cores", "all cores, one busy")
_EPOCHS = count()
Contenders = dict[str, Callable[[], int]]


def rows(size: str) -> dict[str, np.ndarray]:
    nbytes, records = SIZES[size]
    values = np.random.default_rng(0).integers(0, 256, (records, nbytes), np.uint8)
    return {"x": values, "n": np.arange(records)}


def batches(folder: Path, size: str, batch: str) -> Contenders:
    """Whole epochs of shuffled batches, each dropped at once: streams, and fancy indices into a memory map."""
    arrays = rows(size)
    records, each = len(arrays["n"]), int(batch)
    ref, floor = cachelayer.Storage(folder).cache(arrays, "d", "v1", progress=False), memmap(folder, arrays["x"])

    def ours() -> int:
        return sum(len(found["n"]) for found in ref.stream(each, shuffle=True, seed=next(_EPOCHS)))

    def fancy() -> int:
        order = np.random.default_rng(next(_EPOCHS)).permutation(records)
        for begin in range(0, records, each):
            numbers = order[begin : begin + each]
            floor[numbers], arrays["n"][numbers]
        return records

    return {"cachelayer": ours, "memmap": fancy}


def elements(folder: Path, size: str) -> Contenders:
    """Shuffled elements, one by one."""
    import bagz

    arrays = rows(size)
    most = min(20_000, len(arrays["n"]))
    ref, floor = cachelayer.Storage(folder).cache(arrays, "d", "v1", progress=False), memmap(folder, arrays["x"])
    with bagz.Writer(str(folder / "rows.bagz")) as writer:
        for row in arrays["x"]:
            writer.write(row.tobytes())
    reader = bagz.Reader(str(folder / "rows.bagz"))

    def ours() -> int:
        return sum(1 for _ in islice(ref.stream(shuffle=True, seed=next(_EPOCHS)), most))

    def order() -> list[int]:
        found: list[int] = np.random.default_rng(next(_EPOCHS)).permutation(len(arrays["n"]))[:most].tolist()
        return found

    def mapped() -> int:
        return sum(1 for number in order() if {"x": np.array(floor[number]), "n": arrays["n"][number]})

    def bags() -> int:
        return sum(1 for number in order() if {"x": np.frombuffer(reader[number], np.uint8), "n": number})

    return {"cachelayer": ours, "memmap": mapped, "bagz": bags}


def zstd(folder: Path, batch: str) -> Contenders:
    """Shuffled batches of 196 KB of random bytes, compressed and not."""
    storage, arrays = cachelayer.Storage(folder), rows("196 KB")
    refs = {name: storage.cache(arrays, name, "v1", compression=name, progress=False) for name in ("zstd", "none")}

    def read(ref: Any) -> int:
        return sum(len(found["n"]) for found in ref.stream(int(batch), shuffle=True, seed=next(_EPOCHS)))

    return {name: lambda ref=ref: read(ref) for name, ref in refs.items()}  # type: ignore[misc]


KINDS: dict[str, Callable[..., Contenders]] = {"batches": batches, "elements": elements, "zstd": zstd}


def one(kind: str, way: str, *arguments: str) -> None:
    """Print the rates of a cell as JSON."""
    if way == "one core":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder, busy() if way == WAYS[2] else nullcontext():
        rates = medians(KINDS[kind](Path(folder), *arguments))
    print(json.dumps({"rates": rates, "spread": spread()}))


@contextmanager
def busy() -> Iterator[None]:
    """Keep one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def cell(kind: str, way: str, *arguments: str) -> dict[str, float]:
    """Return the rates of a cell."""
    command = [sys.executable, __file__, "--one", kind, way, *arguments]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    note_spread(found["spread"])
    print(kind, way, *arguments, found["rates"], file=sys.stderr)
    rates: dict[str, float] = found["rates"]
    return rates


def print_batches() -> None:
    lines = []
    for size, each in BATCHES.items():
        for batch in each:
            found = [cell("batches", way, size, str(batch)) for way in WAYS]
            ratios = [f"{rates['cachelayer'] / rates['memmap']:.2f}" for rates in found]
            rates = f"{found[1]['cachelayer']:,.0f}, {found[1]['memmap']:,.0f}"
            lines.append((f"{batch} x {size}", rates, *ratios, f"{AIMS[size]}"))
    head = ("streams, batches of", "records/s and those of memmap, all cores", *WAYS, "aim, all cores")
    print(table(f"Streams of shuffled batches / fancy indices into np.memmap ({machine()})", head, lines), end="\n\n")


def print_elements() -> None:
    lines = []
    for size, aim in (("3 KB", 1.5), ("196 KB", 1.0)):
        rates = cell("elements", WAYS[1], size)
        best = max(rates["memmap"], rates["bagz"])
        listed = [f"{rates[name]:,.0f}" for name in ("cachelayer", "memmap", "bagz")]
        lines.append((size, *listed, f"{rates['cachelayer'] / best:.2f}", f"{aim}"))
    head = ("elements one by one", "cachelayer, records/s", "memmap, copied", "bagz", "of the best", "aim")
    print(table("Shuffled elements", head, lines), end="\n\n")


def print_zstd() -> None:
    lines = []
    for batch in (16, 64):
        found = [cell("zstd", way, str(batch)) for way in WAYS]
        ratios = [f"{rates['zstd'] / rates['none']:.2f}" for rates in found]
        lines.append((f"{batch} x 196 KB", f"{found[1]['zstd']:,.0f}, {found[1]['none']:,.0f}", *ratios, "0.5"))
    head = ("random bytes, batches of", "records/s, zstd and none, all cores", *WAYS, "aim, all cores")
    print(table("zstd / uncompressed", head, lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        for wanted in sys.argv[1:] or list(KINDS):
            {"batches": print_batches, "elements": print_elements, "zstd": print_zstd}[wanted]()
