"""Values that cross Hugging Face's datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
from values_across import Row, ValuesAcross

from cachelayer import Ragged
from cachelayer.adapters.huggingface import to_datasets, to_iterable_dataset
from cachelayer.adapters.sources.arrow_columns import dtype_of


def _dataset(ref: Any) -> Any:
    with TemporaryDirectory() as folder:
        return to_datasets(ref, cache_dir=folder)


def _leaf(feature: Any, value: Any) -> Any:
    """Return a value of a row as a ref has it."""
    if value is None or feature is None:
        return None
    if isinstance(feature, dict):
        return {name: _leaf(child, value[name]) for name, child in feature.items()}
    dims: list[int] = []
    while isinstance(feature, datasets.List):
        dims.append(feature.length)
        feature = feature.feature
    dtype = dtype_of(feature.pa_type, "")
    if not dims:
        return value if isinstance(dtype, type) else np.array(value, dtype)[()]
    kind = object if isinstance(dtype, type) else dtype
    if dims[1:] == [-1]:
        splits = np.cumsum([0, *map(len, value)])
        return Ragged(np.array([each for part in value for each in part], kind), splits)
    return np.array(value, kind).reshape(len(value), *dims[1:])


def _records(dataset: Any) -> list[Any]:
    return [{name: _leaf(child, row[name]) for name, child in dataset.features.items()} for row in dataset]


@dataclass
class _Rows:
    rows: list[Any]

    def __call__(self) -> Iterator[Any]:
        return iter(self.rows)


def _generated(ref: Any, folder: Path) -> Any:
    rows = [{name: _unpacked(leaf) for name, leaf in element.items()} for element in ref]
    return datasets.IterableDataset.from_generator(_Rows(rows))


def _unpacked(leaf: Any) -> Any:
    """Return a leaf as Python has it: a list of arrays for a Ragged."""
    if not isinstance(leaf, Ragged):
        return leaf
    return np.split(leaf.flat_values, leaf.row_splits[1:-1]) if len(leaf) else []


class TestDatasets(ValuesAcross):
    row = Row("datasets", out=_dataset)


class TestStreams(ValuesAcross):
    row = Row("datasets_stream", out=lambda ref: to_iterable_dataset(ref.stream()), read=_records)


class TestRowsOfPython(ValuesAcross):
    row = Row("datasets_rows", make=_generated)
