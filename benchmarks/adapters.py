"""Adapters against the usual loops of their frameworks.

Run: ``python benchmarks/adapters.py [name ...]``. Each row is one ratio, of medians of rounds in which both take turns.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, table

import cachelayer

RECORDS = 100_000
AIMS = {"to_tf of elements, .batch(256)": "10"}
Row = tuple[str, float, float, str]
"""What is done, our items a second, those of the other way, and what that is."""


def huggingface(folder: Path) -> list[Row]:
    """Builds from datasets on disk, of rows of 3 KB."""
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    rng = np.random.default_rng(0)
    raw = pa.py_buffer(rng.integers(97, 123, RECORDS * 3072, np.uint8))
    tokens = pa.array(rng.integers(0, 50_000, RECORDS * 512, np.int32))
    texts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(1024), RECORDS, [None, raw])
    offsets = pa.array(np.arange(0, RECORDS * 512 + 1, 512, dtype=np.int32))
    images = pa.FixedSizeBinaryArray.from_buffers(pa.binary(3072), RECORDS, [None, raw])
    columns = {
        "bytes and a label": {"image": images.cast(pa.binary()), "label": np.arange(RECORDS)},
        "a text and tokens": {
            "text": texts.cast(pa.binary()).cast(pa.string()),
            "tokens": pa.ListArray.from_arrays(offsets, tokens),
        },
    }
    rows: list[Row] = []
    for name, arrays in columns.items():
        datasets.Dataset(pa.table(arrays)).save_to_disk(folder / name)
        dataset = datasets.load_from_disk(folder / name)
        spec = {"text": str, "tokens": cachelayer.ArraySpec(np.int32, (None,))} if "text" in arrays else None

        def ours(dataset: datasets.Dataset = dataset) -> int:
            return _built(folder, dataset)

        def loop(dataset: datasets.Dataset = dataset, spec: object = spec) -> int:
            elements = (row for row in dataset)
            if spec is not None:
                # Lists are structure: whoever writes this loop makes arrays of them.
                elements = ({**row, "tokens": np.array(row["tokens"], np.int32)} for row in dataset)
            return _built(folder, elements, element_spec=spec)

        rates = medians({"ours": ours, "loop": loop})
        rows.append((f"build of {RECORDS:,} rows of {name}", rates["ours"], rates["loop"], "a loop over the rows"))
    return rows


def parquet(folder: Path) -> list[Row]:
    """Builds from a Parquet file of rows of 3 KB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cachelayer.adapters.pyarrow import from_parquet

    pixels = np.random.default_rng(0).integers(0, 256, RECORDS * 3072, np.uint8)
    data = pa.FixedSizeBinaryArray.from_buffers(pa.binary(3072), RECORDS, [None, pa.py_buffer(pixels)])
    columns = {
        "bytes": data.cast(pa.binary()),
        "a list of numbers": pa.FixedSizeListArray.from_arrays(pa.array(pixels), 3072),
    }
    rows: list[Row] = []
    for name, column in columns.items():
        file = folder / f"{name}.parquet"
        pq.write_table(pa.table({"image": column, "label": np.arange(RECORDS)}), file, row_group_size=10_000)
        # A row of numbers takes the loop milliseconds: fewer of them tell its rate.
        count = RECORDS if name == "bytes" else RECORDS // 50

        def ours(file: Path = file) -> int:
            return _built(folder, from_parquet(file))

        def loop(file: Path = file, count: int = count, numbers: bool = name != "bytes") -> int:
            batches = pq.ParquetFile(file).iter_batches(batch_size=1024)
            few = islice((row for batch in batches for row in batch.to_pylist()), count)
            kind = (lambda row: {**row, "image": np.array(row["image"], np.uint8)}) if numbers else (lambda row: row)
            return _built(folder, (kind(row) for row in few))

        rates = medians({"ours": ours, "loop": loop})
        rows.append((f"build of Parquet with {name}", rates["ours"], rates["loop"], "a loop over its rows"))
    return rows


def _built(folder: Path, source: object, **options: Any) -> int:
    shutil.rmtree(folder / "storage", ignore_errors=True)
    return len(cachelayer.Storage(folder / "storage").submit(source, "d", "v1", **options))


def torch_loader(folder: Path) -> list[Row]:
    """Shuffled batches of 256 of 50k records of 3 KB, as tensors, without workers."""
    import datasets
    import pyarrow as pa
    from torch.utils.data import DataLoader

    from cachelayer.adapters.torch import BatchSampler, loader, to_torch

    datasets.disable_progress_bars()
    count, size = RECORDS // 2, 256
    images, labels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8), np.arange(count)
    ref = cachelayer.Storage(folder / "storage").submit({"image": images, "label": labels}, "d", "v1")
    flat = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 3072)
    datasets.Dataset(pa.table({"image": flat, "label": labels})).save_to_disk(folder / "lists")
    features = datasets.Features({"image": datasets.Array3D((32, 32, 3), "uint8"), "label": datasets.Value("int64")})
    few = datasets.Dataset.from_dict(
        {"image": images[: count // 10], "label": labels[: count // 10]}, features=features
    )
    few.save_to_disk(folder / "images")
    order = np.random.default_rng(5).permutation

    def drained(batches: object) -> int:
        return sum(len(batch["label"]) for batch in batches)

    def collated(dataset: object) -> Callable[[], int]:
        return lambda: drained(DataLoader(dataset, size, sampler=order(len(dataset)).tolist()))

    rates = medians(
        {
            "elements": collated(to_torch(ref)),
            "batches": lambda: drained(DataLoader(to_torch(ref), None, sampler=BatchSampler(ref, size))),
            "stream": lambda: drained(loader(ref.stream(size, shuffle=True, seed=5))),
            "lists": collated(datasets.load_from_disk(folder / "lists").with_format("numpy")),
            "images": collated(datasets.load_from_disk(folder / "images").with_format("numpy")),
        },
    )
    what = {"elements": "DataLoader, __getitems__", "batches": "DataLoader, BatchSampler", "stream": "loader(stream)"}
    others = {"lists": "datasets, numpy, lists", "images": "datasets, numpy, Array3D"}
    return [(what[a], rates[a], rates[b], others[b]) for a in what for b in others]


def tensorflow(folder: Path) -> list[Row]:
    """Shuffled elements and batches of 50k records of 3 KB as a ``tf.data.Dataset``."""
    import tensorflow as tf

    from cachelayer.adapters.tensorflow import to_tf

    count = RECORDS // 2
    images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
    ref = cachelayer.Storage(folder / "storage").submit({"image": images, "label": np.arange(count)}, "d", "v1")
    signature = {"image": tf.TensorSpec((32, 32, 3), tf.uint8), "label": tf.TensorSpec((), tf.int64)}
    few = count // 10

    def generated() -> int:
        stream = ref[:few].stream(shuffle=True, seed=5)
        dataset = tf.data.Dataset.from_generator(lambda: iter(stream), output_signature=signature)
        return sum(len(batch["label"]) for batch in dataset.batch(256))

    def elements() -> int:
        return sum(len(batch["label"]) for batch in to_tf(ref.stream(shuffle=True, seed=5)).batch(256))

    def batches() -> int:
        return sum(len(batch["label"]) for batch in to_tf(ref.stream(256, shuffle=True, seed=5)))

    rates = medians({"elements": elements, "batches": batches, "generated": generated})
    what = {"elements": "to_tf of elements, .batch(256)", "batches": "to_tf of batches of 256"}
    return [(what[name], rates[name], rates["generated"], "from_generator, .batch(256)") for name in what]


ROWS: dict[str, Callable[[Path], list[Row]]] = {
    "huggingface": huggingface,
    "parquet": parquet,
    "tensorflow": tensorflow,
    "torch": torch_loader,
}


def main(names: list[str]) -> None:
    """Print the table."""
    found: list[Row] = []
    for name in names or ROWS:
        with tempfile.TemporaryDirectory() as made:
            found += ROWS[name](Path(made))
    shown = [
        (what, f"{ours:,.0f}", f"{theirs:,.0f}", other, f"{ours / theirs:.1f}", AIMS.get(what, ""))
        for what, ours, theirs, other in found
    ]
    title = f"Adapters ({machine()})"
    print(table(title, ("what", "cachelayer, items/s", "the other, items/s", "the other", "ratio", "aim"), shown))


if __name__ == "__main__":
    main(sys.argv[1:])
