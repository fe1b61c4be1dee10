"""What can be a source, and what cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import MAX_BATCH_RECORDS, batch_records
from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError


@pytest.mark.parametrize(
    "wrong",
    [3, None, object(), b"bytes", bytearray(b"x"), np.array(3), {"a": [1, 2]}, {}, {"a": 3},
     {"a": np.zeros(2), "b": 1}, {"a": np.zeros(())}, lambda: 3],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)  # fmt: skip
def test_what_is_no_source_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match="is not a source"):
        as_source(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a": np.ma.masked_array([1, 2], [True, False])},
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, "V3"),
        {1: np.zeros(2)},
    ],
    ids=repr,
)
def test_arrays_that_cannot_be_stored_are_refused(wrong: Any) -> None:
    with pytest.raises(CacheLayerError):
        as_source(wrong)


def test_batches_stay_small() -> None:
    assert batch_records(0) == batch_records(1) == MAX_BATCH_RECORDS
    assert batch_records(1e12) == 1
    large = [len(batch) for batch in as_source([np.zeros(1 << 21, np.uint8)] * 5).batches()]
    assert large == [2, 2, 1]


def test_a_function_that_fails_before_it_returns_a_source_is_named() -> None:
    def load() -> list[int]:
        raise FileNotFoundError("no train.csv")

    with pytest.raises(SourceError, match=r"train\.csv") as caught:
        as_source(load)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_dict_of_datasets_is_taken_as_splits(storage: Storage) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    grain = pytest.importorskip("grain")
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    torch = pytest.importorskip("torch")
    ref = cachelayer.wrap(list(range(5)), identity="five")
    splits: dict[str, Any] = {
        "grain": grain.MapDataset.range(3),
        "torch": torch_data.TensorDataset(torch.arange(4)),
        "frame": pandas.DataFrame({"a": [1, 2]}),
        "table": pyarrow.table({"a": [1]}),
        "ref": ref,
        "stream": ref.stream(shuffle=True, seed=1),
    }
    made: Any = storage.cache(splits, "mixed@v1")
    assert {name: len(part) for name, part in made.items()} == {
        "grain": 3, "torch": 4, "frame": 2, "table": 1, "ref": 5, "stream": 5
    }  # fmt: skip
    assert made["grain"].dataset_id == "mixed.grain"
    with pytest.raises(InvalidTypeError, match=r"splits grain, torch, .*cache\(\)"):
        storage.cache(lambda: splits, "made@v1")
    with pytest.raises(InvalidTypeError, match="not a source"):
        storage.cache({"train": grain.MapDataset.range(3), "names": ["a"]}, "half@v1")
    columns = {"a": torch.arange(3), "b": pandas.Series([1, 2, 3])}
    assert len(storage.cache(columns, "columns@v1")) == 3
