"""Building from tf.data and from a generator: against a plain loop into ArrayRecordWriter, and against the bare writer.

Run: ``python benchmarks/build.py [folder]``. Each contender brings its file to the disk (fsync). The bare
writer is fed ready bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from array_record.python.array_record_module import ArrayRecordWriter
from harness import machine, medians, named_folder, peak_mb, table

import cachelayer

RECORDS = 50_000
OPTIONS = "group_size:1,uncompressed,transpose:false,pad_to_block_boundary:false"


def main(folder: Path) -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    arrays = {
        "image": rng.integers(0, 256, (RECORDS, 32, 32, 3), dtype=np.uint8),
        "label": np.arange(RECORDS, dtype=np.int64),
    }
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    ready = [image.tobytes() + label.tobytes() for image, label in zip(arrays["image"], arrays["label"], strict=True)]

    def rows() -> Iterator[dict[str, Any]]:
        for image, label in zip(arrays["image"], range(RECORDS), strict=True):
            yield {"image": image, "label": label}

    def ours(source: Any) -> int:
        shutil.rmtree(folder / "storage", ignore_errors=True)
        return len(cachelayer.Storage(folder / "storage").submit(source, "images", "v1"))

    def written(records: Any) -> int:
        path = folder / "plain.array_record"
        path.unlink(missing_ok=True)
        writer = ArrayRecordWriter(str(path), OPTIONS)
        for record in records:
            writer.write(record)
        writer.close()
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return RECORDS

    def loop(source: Any) -> int:
        return written(row["image"].tobytes() + np.int64(row["label"]).tobytes() for row in source)

    rates = medians(
        {
            "tf.data": lambda: ours(dataset),
            "generator of dicts": lambda: ours(rows),
            "tf.data, loop": lambda: loop(dataset.as_numpy_iterator()),
            "generator of dicts, loop": lambda: loop(rows()),
            "bare": lambda: written(ready),
        }
    )
    lines = [
        (
            source,
            f"{rates[source]:,.0f}",
            f"{rates[f'{source}, loop']:,.0f}",
            f"{rates[source] / rates[f'{source}, loop']:.2f}",
            f"{rates[source] / rates['bare']:.2f}",
        )
        for source in ("tf.data", "generator of dicts")
    ]
    title = f"Build of {RECORDS:,} images of 32 x 32 x 3 with labels ({machine()}; peak {peak_mb():,.0f} MB)"
    head = (
        "source",
        "records/s",
        "a loop into ArrayRecordWriter",
        "ratio",
        f"of {rates['bare']:,.0f}, the bare writer",
    )
    print(table(title, head, lines))


if __name__ == "__main__":
    with named_folder() as folder:
        main(folder)
