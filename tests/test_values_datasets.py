"""Values that cross Hugging Face's datasets."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from values_across import Row, ValuesAcross

from cachelayer.adapters.huggingface import to_datasets


def _dataset(ref: Any) -> Any:
    with TemporaryDirectory() as folder:
        return to_datasets(ref, cache_dir=folder)


class TestDatasets(ValuesAcross):
    row = Row("datasets", out=_dataset)
