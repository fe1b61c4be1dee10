"""Building from sources that keep a core busy, by one process and by two.

Run: ``python benchmarks/workers.py [folder]``. JPEG files are decoded to 224 x 224 pixels; texts are cut into words and
these looked up.
"""

from __future__ import annotations

import io
import re
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, named_folder, table
from PIL import Image

import cachelayer


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


def main(folder: Path) -> None:
    """Print the table."""
    tokens = {"tokens": cachelayer.ArraySpec("uint16", (None,))}
    rows = []
    for name, source, spec in (
        ("JPEG files, decoded", Images(6000), None),
        ("texts, tokenised", Tokens(20_000), tokens),
    ):
        digests = set()

        def build(workers: int, source: Any = source, spec: Any = spec, digests: set[str] = digests) -> int:
            shutil.rmtree(folder / "storage", ignore_errors=True)
            storage = cachelayer.Storage(folder / "storage")
            ref = storage.submit(source, "d", "v1", element_spec=spec, workers=workers)
            digests.add(ref.digest)
            return len(ref)

        rates = medians({"one": lambda: build(1), "two": lambda: build(2)}, rounds=3)
        if len(digests) != 1:
            raise RuntimeError("the versions differ")
        ratio = rates["two"] / rates["one"]
        rows.append((name, f"{rates['one']:,.0f}/s", f"{rates['two']:,.0f}/s", f"{ratio:.2f}", "1.7"))
    print(table(f"Builds by worker processes ({machine()})", ("source", "one", "workers=2", "ratio", "asked"), rows))


if __name__ == "__main__":
    with named_folder() as folder:
        main(folder)
