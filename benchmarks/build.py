"""Building from generators, arrays and tf.data, beside the bare writer, a loop into it, and np.memmap.

Run: ``python benchmarks/build.py [folder]``. Each contender brings its file to the disk (fsync). The bare writer is fed
ready bytes. The memmap is filled from the generator, row by row; it has no index, no digest and no schema.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from array_record.python.array_record_module import ArrayRecordWriter
from harness import machine, medians, named_folder, table

import cachelayer

OPTIONS = "group_size:1,uncompressed,transpose:false,pad_to_block_boundary:false"
TF_LOOP = 3_000
"""Elements of tf.data that the loop writes: one by one they take long."""
MEMORY = Path("/dev/shm")
AIMS = {
    "generator of dicts, 3 KB, disk": "0.75 of the bare writer, 1 of np.memmap",
    "dict of arrays, 3 KB, disk": "0.9 of the bare writer",
    "tf.data, 3 KB, disk": "0.8 of the bare writer",
    "generator of dicts, 520 B, disk": "1.03 of np.memmap",
    "dict of arrays, 3 KB, memory": "0.95 of the bare writer",
}


@dataclass(frozen=True)
class Images:
    """Images with labels.

    Args:
        name: the name of the size.
        images: uint8 of shape ``[records, ...]``.
    """

    name: str
    images: Any

    @classmethod
    def random(cls, name: str, records: int, shape: tuple[int, ...]) -> Images:
        return cls(name, np.random.default_rng(0).integers(0, 256, (records, *shape), dtype=np.uint8))

    @property
    def arrays(self) -> dict[str, Any]:
        return {"image": self.images, "label": np.arange(len(self.images))}

    def rows(self) -> Iterator[dict[str, Any]]:
        for image, label in zip(self.images, range(len(self.images)), strict=True):
            yield {"image": image, "label": label}


def ours(folder: Path, source: Any) -> int:
    shutil.rmtree(folder / "storage", ignore_errors=True)
    return len(cachelayer.Storage(folder / "storage").submit(source, "images", "v1"))


def written(folder: Path, records: Any) -> int:
    path = folder / "plain.array_record"
    path.unlink(missing_ok=True)
    writer, count = ArrayRecordWriter(str(path), OPTIONS), 0
    for record in records:
        writer.write(record)
        count += 1
    writer.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return count


def loop(folder: Path, source: Any) -> int:
    return written(folder, (row["image"].tobytes() + np.int64(row["label"]).tobytes() for row in source))


def mapped(folder: Path, of: Images) -> int:
    path, row = folder / "plain.memmap", np.dtype([("image", np.uint8, of.images.shape[1:]), ("label", np.int64)])
    path.unlink(missing_ok=True)
    rows = np.memmap(path, row, "w+", shape=len(of.images))
    images, labels = rows["image"], rows["label"]
    for number, element in enumerate(of.rows()):
        images[number], labels[number] = element["image"], element["label"]
    rows.flush()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return len(rows)


def builds(folder: Path, of: Images, where: str, *, tensorflow: bool = False) -> list[tuple[str, ...]]:
    """Return a row for each kind of source."""
    ready = [row["image"].tobytes() + np.int64(row["label"]).tobytes() for row in of.rows()]
    sources: dict[str, Any] = {"generator of dicts": of.rows, "dict of arrays": of.arrays}
    others = {"loop": lambda: loop(folder, of.rows()), "bare": lambda: written(folder, ready)}
    others["memmap"] = lambda: mapped(folder, of)
    if tensorflow:
        sources["tf.data"] = dataset = tf.data.Dataset.from_tensor_slices(of.arrays)
        others["tf.data, loop"] = lambda: loop(folder, islice(dataset.as_numpy_iterator(), TF_LOOP))
    rates = medians({source: partial(ours, folder, made) for source, made in sources.items()} | others)
    rows = []
    for source in sources:
        beside = (rates.get(f"{source}, loop", rates["loop"]), rates["bare"], rates["memmap"])
        ratios = [f"{each:,.0f} ({rates[source] / each:.2f})" for each in beside]
        name = f"{source}, {of.name}, {where}"
        rows.append((name, f"{rates[source]:,.0f}", *ratios, AIMS.get(name, "")))
    shutil.rmtree(folder / "storage")
    return rows


def main(folder: Path) -> None:
    """Print the table."""
    large, small = Images.random("3 KB", 100_000, (32, 32, 3)), Images.random("520 B", 200_000, (512,))
    rows = [*builds(folder, large, "disk", tensorflow=True), *builds(folder, small, "disk")]
    if MEMORY.is_dir():
        with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
            rows += builds(Path(memory), large, "memory")
    columns = ("source", "records/s", "a loop into the writer", "the bare writer", "np.memmap", "aim")
    print(table(f"Builds, and how many times the rate of others in brackets ({machine()})", columns, rows))


if __name__ == "__main__":
    with named_folder() as folder:
        main(folder)
