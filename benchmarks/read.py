"""Reading from a hot page cache in one process: against array_record, a memory map of the same rows, and bagz.

Run: ``python benchmarks/read.py [row ...]``. Prints a table; ``benchmarks/all.py`` draws it to ``docs/read.svg``.
Each row runs in a process of its own, so that its peak memory is its own; contenders of a row take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource as Stock
from harness import ROUNDS, machine, medians, note_spread, peak_mb, spread, table

import cachelayer

Contenders = dict[str, Callable[[], int]]
SEED = 5


@dataclass(frozen=True)
class Row:
    """A kind of work.

    Args:
        title: what is done.
        aims: the least ratio of cachelayer to each contender.
        setup: makes the contenders in a folder.
    """

    title: str
    aims: dict[str, float]
    setup: Callable[[Path], Contenders]


def stored(folder: Path, source: Any, **options: Any) -> tuple[Any, Any]:
    """A version of its own shard layout, and the stock reader over the same shards."""
    ref = cachelayer.Storage(folder).cache(source, "data", "v1", **options)
    shards = sorted(map(str, (folder / "data" / "shards").glob("*.array_record")))
    return ref, Stock(shards)


def batches(records: int, size: int, most: int = 40_000) -> list[np.ndarray]:
    """Shuffled record numbers in batches."""
    order = np.random.default_rng(SEED).permutation(records)[:most]
    return [order[start : start + size] for start in range(0, len(order) - size + 1, size)]


def counted(work: Callable[[Any], Any], wanted: list[np.ndarray]) -> Callable[[], int]:
    """Does the work for each batch, and counts records."""

    def run() -> int:
        for numbers in wanted:
            work(numbers)
        return sum(map(len, wanted))

    return run


def images(records: int, side: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (records, side, side, 3), dtype=np.uint8),
        "label": np.arange(records, dtype=np.int64),
    }


def decoder(side: int) -> Callable[[bytes], dict[str, Any]]:
    """Decodes one stored record as a hand-written pipeline would."""
    nbytes = side * side * 3

    def decode(raw: bytes) -> dict[str, Any]:
        return {
            "label": np.frombuffer(raw, np.int64, 1)[0],
            "image": np.frombuffer(raw, np.uint8, nbytes, 8).reshape(side, side, 3),
        }

    return decode


def stacked(stock: Any, decode: Callable[[bytes], dict[str, Any]]) -> Callable[[np.ndarray], Any]:
    def read(numbers: np.ndarray) -> Any:
        rows = [decode(raw) for raw in stock.__getitems__(numbers.tolist())]
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}

    return read


def memmap(folder: Path, rows: np.ndarray) -> np.ndarray:
    """A memory map of contiguous rows: the floor."""
    path = folder / "rows.bin"
    rows.tofile(path)
    return np.memmap(path, rows.dtype, "r", shape=rows.shape)


def image_batches(records: int, side: int, size: int) -> Callable[[Path], Contenders]:
    def setup(folder: Path) -> Contenders:
        arrays = images(records, side)
        floor = memmap(folder, arrays["image"].reshape(records, -1))
        ref, stock = stored(folder, arrays)
        wanted = batches(records, size)
        found: Contenders = {
            "cachelayer": counted(ref.read, wanted),
            "memmap": counted(lambda numbers: (floor[numbers], arrays["label"][numbers]), wanted),
            "array_record": counted(stacked(stock, decoder(side)), wanted),
        }
        return found

    return setup


def streams(folder: Path) -> Contenders:
    ref, _ = stored(folder, images(100_000, 32))
    wanted = batches(len(ref), 256, len(ref))
    epochs: Iterator[int] = iter(range(1000))

    def stream() -> int:
        return sum(len(batch["label"]) for batch in ref.stream(256, shuffle=True, seed=next(epochs)))

    return {"cachelayer": stream, "ref.read": counted(ref.read, wanted)}


def singles(folder: Path) -> Contenders:
    ref, stock = stored(folder, images(100_000, 32), shard_bytes=1 << 30)
    decode = decoder(32)
    order = np.random.default_rng(SEED).permutation(len(ref)).tolist()

    def ours() -> int:
        for number in order[:50_000]:
            ref[number]
        return 50_000

    def theirs() -> int:
        for number in order[:5_000]:
            decode(stock[number])
        return 5_000

    return {"cachelayer": ours, "array_record": theirs}


def elements(folder: Path) -> Contenders:
    import bagz

    arrays = images(100_000, 32)
    ref, _ = stored(folder, arrays)
    path = folder / "rows.bag"
    with bagz.Writer(str(path)) as writer:
        for image, label in zip(arrays["image"], arrays["label"], strict=True):
            writer.write(label.tobytes() + image.tobytes())
    reader = bagz.Reader(str(path))
    decode = decoder(32)
    order = np.concatenate(batches(len(ref), 250, len(ref)))

    def ours() -> int:
        count = 0
        for _ in ref.stream(shuffle=True, seed=SEED):
            count += 1
        return count

    def theirs() -> int:
        count = 0
        for raw in reader.read_indices_iter(order.tolist()):
            decode(raw)
            count += 1
        return count

    return {"cachelayer": ours, "bagz": theirs}


def tokens(folder: Path) -> Contenders:
    ref, stock = stored(
        folder, {"tokens": np.random.default_rng(0).integers(0, 50_000, (200_000, 128), dtype=np.int32)}
    )
    wanted = batches(len(ref), 256)

    def theirs(numbers: np.ndarray) -> Any:
        return np.stack([np.frombuffer(raw, np.int32, 128) for raw in stock.__getitems__(numbers.tolist())])

    return {"cachelayer": counted(ref.read, wanted), "array_record": counted(theirs, wanted)}


def texts(records: int, least: int, most: int, size: int) -> Callable[[Path], Contenders]:
    def setup(folder: Path) -> Contenders:
        rng = np.random.default_rng(0)
        ref, stock = stored(folder, (rng.bytes(int(n)) for n in rng.integers(least, most, records)))
        wanted = batches(records, size)
        return {
            "cachelayer": counted(ref.read, wanted),
            "array_record": counted(lambda numbers: stock.__getitems__(numbers.tolist()), wanted),
        }

    return setup


def compressed(folder: Path) -> Contenders:
    arrays = images(50_000, 32)
    arrays["image"] &= 0x0F
    ref, stock = stored(folder, arrays, compression="zstd")
    wanted = batches(len(ref), 256)
    return {
        "cachelayer": counted(ref.read, wanted),
        "array_record": counted(lambda numbers: stock.__getitems__(numbers.tolist()), wanted),
    }


ROWS = {
    "images": Row(
        "`ref.read`, 256 of 100k images of 3 KB", {"memmap": 0.6, "array_record": 8}, image_batches(100_000, 32, 256)
    ),
    "stream": Row("`ref.stream(256, shuffle=True)`, whole epoch", {"ref.read": 0.8}, streams),
    "single": Row("`ref[i]`, 100k images in one shard", {"array_record": 50}, singles),
    "elements": Row("`for element in ref.stream(shuffle=True)`", {"bagz": 1.5}, elements),
    "tokens": Row("`ref.read`, 256 of 200k int32[128]", {"array_record": 8}, tokens),
    "large": Row(
        "`ref.read`, 32 of 3k images of 196 KB", {"memmap": 0.5, "array_record": 1.5}, image_batches(3_000, 256, 32)
    ),
    "bytes": Row("`ref.read`, 256 of 200k bytes of 0.1-4 KB", {"array_record": 3}, texts(200_000, 100, 4_000, 256)),
    "blobs": Row("`ref.read`, 64 of 20k bytes of 1-100 KB", {"array_record": 1.3}, texts(20_000, 1_000, 100_000, 64)),
    "zstd": Row("`ref.read`, 256 of 50k zstd images", {"array_record": 1.5}, compressed),
}


def one(name: str, folder: Path) -> None:
    """Print the rates of a row as JSON."""
    contenders = ROWS[name].setup(folder)
    print(json.dumps({"rates": medians(contenders), "spread": spread(), "peak": peak_mb()}))


def main(names: list[str]) -> None:
    """Print the table."""
    lines = []
    for name in names:
        row = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--one", name, folder]
            found = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
        rates = found["rates"]
        note_spread(found["spread"])
        ratios = {other: rates["cachelayer"] / rates[other] for other in row.aims}
        met = ", ".join(f"{ratio:.2f} x {other} (aim {row.aims[other]})" for other, ratio in ratios.items())
        others = ", ".join(f"{other} {rate:,.0f}" for other, rate in rates.items() if other != "cachelayer")
        lines.append((row.title, f"{rates['cachelayer']:,.0f}", others, met, f"{found['peak']:,.0f} MB"))
        print("|", " | ".join(lines[-1]), "|", file=sys.stderr)
    head = ("work", "cachelayer, records/s", "others, records/s", "cachelayer is", "peak memory")
    print(table(f"Reading, hot page cache, medians of {ROUNDS} ({machine()})", head, lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], Path(sys.argv[3]))
    else:
        wanted = [name for name in sys.argv[1:] if name in ROWS]
        main(wanted or list(ROWS))
