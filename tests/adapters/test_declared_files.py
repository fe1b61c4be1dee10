"""Bytes, and the names of files, are images if they are declared so, whatever source they come from."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import torch
from PIL import Image

from cachelayer import ElementError, ImageSpec, Storage
from cachelayer.adapters.tfrecord import from_tfrecord

COUNT = 3
Cells = list[Any]


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((2, 3, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, cells: Cells) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, number: int) -> Any:
        return {"x": self.cells[number]}


def of_dataset(cells: Cells, _: Path) -> Any:
    return tf.data.Dataset.from_tensor_slices({"x": cells})


def tfrecord(cells: Cells, folder: Path) -> Any:
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for cell in cells:
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[cell]))
            writer.write(tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString())
    return from_tfrecord(folder / "a.tfrecord", {"x": tf.io.FixedLenFeature((), tf.string)})


def text_file(name: str, cells: Cells, folder: Path) -> str:
    lines = [json.dumps({"x": cell}) for cell in cells] if name == "a.jsonl" else ["x", *cells]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def parquet(cells: Cells, folder: Path) -> str:
    pq.write_table(pa.table({"x": cells}), folder / "a.parquet")
    return str(folder / "a.parquet")


ANY: dict[str, Callable[[Cells, Path], Any]] = {
    "rows": lambda cells, _: [{"x": cell} for cell in cells],
    "a generator": lambda cells, _: ({"x": cell} for cell in cells),
    "a column": lambda cells, _: {"x": np.array(cells, object)},
    "an Arrow table": lambda cells, _: pa.table({"x": cells}),
    "a coded table": lambda cells, _: pa.table({"x": pa.array(cells).dictionary_encode()}),
    "Parquet": parquet,
    "pandas": lambda cells, _: pd.DataFrame({"x": cells}),
    "pandas objects": lambda cells, _: pd.DataFrame({"x": np.array(cells, object)}),
    "Polars": lambda cells, _: pl.DataFrame({"x": cells}),
    "Hugging Face": lambda cells, _: datasets.Dataset.from_dict({"x": cells}),
    "Hugging Face, a stream": lambda cells, _: datasets.Dataset.from_dict({"x": cells}).to_iterable_dataset(),
    "PyTorch": lambda cells, _: Rows(cells),
}
OF_BYTES: dict[str, Callable[[Cells, Path], Any]] = {**ANY, "tf.data": of_dataset, "TFRecord": tfrecord}
OF_NAMES: dict[str, Callable[[Cells, Path], Any]] = {
    **ANY,
    "an array of names": lambda cells, _: {"x": np.array(cells)},
    "paths": lambda cells, _: [{"x": Path(cell)} for cell in cells],
    "JSON lines": lambda cells, folder: text_file("a.jsonl", cells, folder),
    "CSV": lambda cells, folder: text_file("a.csv", cells, folder),
}


def check(storage: Storage, source: Any, version: str = "v1") -> None:
    ref = storage.submit(source, f"d@{version}", element_spec={"x": ImageSpec()})
    assert [row["x"].tolist() for row in ref] == [np.full((2, 3, 3), number).tolist() for number in range(COUNT)]


@pytest.mark.parametrize("name", OF_BYTES)
def test_bytes_of_any_source_can_be_declared_images(storage: Storage, tmp_path: Path, name: str) -> None:
    check(storage, OF_BYTES[name]([png(number) for number in range(COUNT)], tmp_path))


@pytest.mark.parametrize("name", OF_NAMES)
def test_names_of_files_of_any_source_can_be_declared_images(storage: Storage, tmp_path: Path, name: str) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(png(number))
    check(storage, OF_NAMES[name](list(map(str, paths)), tmp_path))
    with pytest.raises(ElementError, match=rf"record 1, .*{tmp_path.name}/none"):
        check(storage, OF_NAMES[name]([str(paths[0]), str(tmp_path / "none")], tmp_path), "v2")
