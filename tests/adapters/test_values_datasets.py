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
from cachelayer.adapters.huggingface import to_datasets


def _dataset(ref: Any) -> Any:
    with TemporaryDirectory() as folder:
        return to_datasets(ref, cache_dir=folder)


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


class TestRowsOfPython(ValuesAcross):
    row = Row("datasets_rows", make=_generated)
