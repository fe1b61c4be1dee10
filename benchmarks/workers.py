"""Building from sources that keep a core busy, by one process and by two.

Run: ``python benchmarks/workers.py [share [folder]]``: 12,000 JPEG files are decoded to 224 x 224 pixels, and 40,000
texts are cut into words and these looked up, or a share of them.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, named_folder, table
from PIL import Image

import cachelayer

SHARD_BYTES = 64 << 20


class Images(Sequence[Any]):
    """Decoded images of files in memory."""

    def __init__(self, count: int) -> None:
        rows, columns = np.mgrid[:224, :224]
        files = []
        for number in range(64):
            pixels = np.stack([(rows * (1 + number % 7) + columns * channel) % 256 for channel in (1, 2, 3)], -1)
            file = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
            files.append(file.getvalue())
        self.files, self.count = files, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: Any) -> Any:
        if number >= self.count:
            raise IndexError(number)
        return {"image": np.asarray(Image.open(io.BytesIO(self.files[number % 64]))), "label": number}


class Tokens(Sequence[Any]):
    """Texts as numbers of words."""

    words = re.compile(r"\w+|[^\w\s]")

    def __init__(self, count: int) -> None:
        chance = np.random.default_rng(0)
        letters = np.array(list("abcdefghij     "))
        self.texts = ["".join(chance.choice(letters, 4000)) for _ in range(64)]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: Any) -> Any:
        if number >= self.count:
            raise IndexError(number)
        found = self.words.findall(self.texts[number % 64])
        return {"tokens": np.array([zlib.crc32(word.encode()) & 0xFFFF for word in found], np.uint16)}


def main(folder: Path, share: float) -> None:
    """Print the table."""
    tokens = {"tokens": cachelayer.ArraySpec("uint16", (None,))}
    rows = []
    for name, source, spec in (
        (f"{int(12_000 * share):,} JPEG files, decoded", Images(int(12_000 * share)), None),
        (f"{int(40_000 * share):,} texts, tokenised", Tokens(int(40_000 * share)), tokens),
    ):
        digests: set[str] = set()
        busy: dict[int, float] = {}

        def build(
            workers: int,
            source: Any = source,
            spec: Any = spec,
            digests: set[str] = digests,
            busy: dict[int, float] = busy,
        ) -> int:
            shutil.rmtree(folder / "storage", ignore_errors=True)
            storage = cachelayer.Storage(folder / "storage")
            started, used = time.perf_counter(), time.process_time()
            ref = storage.submit(source, "d", "v1", element_spec=spec, workers=workers, shard_bytes=SHARD_BYTES)
            busy[workers] = (time.process_time() - used) / (time.perf_counter() - started)
            digests.add(ref.digest)
            return len(ref)

        rates = medians({"one": lambda: build(1), "two": lambda: build(2)}, warm_up=False)
        if len(digests) != 1:
            raise RuntimeError("the versions differ")
        ratio = rates["two"] / rates["one"]
        one, two = (f"{rate:,.0f}/s" for rate in rates.values())
        rows.append((name, one, f"{busy[1]:.2f}", two, f"{ratio:.2f}", f"{2 / busy[1]:.2f}", "1.7"))
    columns = ("source", "one", "cores that one keeps busy", "workers=2", "ratio", "two cores allow", "aim")
    print(table(f"Builds by worker processes ({machine()})", columns, rows))


if __name__ == "__main__":
    with named_folder(2) as folder:
        main(folder, float(sys.argv[1]) if sys.argv[1:] else 1.0)
