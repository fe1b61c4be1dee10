"""JPEG files through tf.data: decoded in each epoch from their folder, cached as pixels, or cached as files.

Run: ``python benchmarks/tfdata_files.py``. Each way gives batches of 224 x 224 pixels to one loop; the best of three
epochs counts, with everything in the page cache.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from harness import jpegs, machine, table

import cachelayer
from cachelayer.adapters.folders import from_image_folder
from cachelayer.adapters.tensorflow import to_tf

FILES, SIDE, BATCH, EPOCHS = 2_000, 224, 64, 3


def pixels(data: Any) -> Any:
    image = tf.io.decode_jpeg(data, channels=3)
    return tf.cast(tf.image.resize(image, (SIDE, SIDE)), tf.uint8)


def from_folder(folder: Path) -> tf.data.Dataset:
    names = tf.data.Dataset.list_files(str(folder / "*" / "*.jpg"), shuffle=False)
    return names.map(lambda name: {"image": pixels(tf.io.read_file(name))}, num_parallel_calls=tf.data.AUTOTUNE)


def seconds_an_epoch(dataset: tf.data.Dataset) -> float:
    best = float("inf")
    for _ in range(EPOCHS):
        began = time.perf_counter()
        count = sum(len(batch["image"]) for batch in dataset)
        assert count == FILES
        best = min(best, time.perf_counter() - began)
    return best


def measured(build: Callable[[], cachelayer.DataRef[Any]]) -> tuple[cachelayer.DataRef[Any], float]:
    began = time.perf_counter()
    return build(), time.perf_counter() - began


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "images" / "0").mkdir(parents=True)
    files = jpegs(80)
    for number in range(FILES):
        (folder / "images" / "0" / f"{number:05}.jpg").write_bytes(files[number % len(files)])
    storage = cachelayer.Storage(folder / "cache")
    source = from_folder(folder / "images")
    nbytes = sum(path.stat().st_size for path in (folder / "images").rglob("*.jpg"))
    rows = [("the folder, decoded in each epoch", nbytes, 0.0, seconds_an_epoch(source.shuffle(FILES).batch(BATCH)))]
    as_pixels, seconds = measured(lambda: storage.cache(source, "images@pixels", progress=False))
    cached = to_tf(as_pixels.stream(BATCH, shuffle=True, seed=0))
    rows.append(("cached pixels", as_pixels.nbytes, seconds, seconds_an_epoch(cached)))
    as_files, seconds = measured(
        lambda: storage.cache(from_image_folder(folder / "images"), "images@files", progress=False)
    )
    raw = to_tf(as_files.raw().stream(shuffle=True, seed=0))
    decoded = raw.map(lambda row: {"image": pixels(row["image"])}, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    rows.append(("cached files, decoded in each epoch", as_files.nbytes, seconds, seconds_an_epoch(decoded)))
    shown = [(name, f"{size / 1e6:.0f} MB", f"{build:.1f} s", f"{epoch:.1f} s") for name, size, build, epoch in rows]
    title = f"{FILES:,} JPEG files, batches of {BATCH} x {SIDE} x {SIDE} ({machine()})"
    print(table(title, ("way", "bytes", "build", "an epoch"), shown))


if __name__ == "__main__":
    main()
