"""Rows that only Hugging Face's datasets has: each goes in unchanged, or is refused by its record and leaf."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Array2D, ClassLabel, Features, Json, List, Translation, Value
from PIL import Image
from values_across import assert_same
from values_table import BIG, NS

import cachelayer
from cachelayer import CacheLayerWarning, ElementError, ImageSpec, InvalidTypeError, Storage
from cachelayer.adapters.huggingface import to_datasets


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("values"))


@dataclass
class Rows:
    """What ``from_generator`` calls."""

    values: list[Any]

    def __call__(self) -> Iterator[Any]:
        return ({"x": value} for value in self.values)

    def __reduce__(self) -> Any:
        # datasets hashes what it is given, and knows no hash of some values.
        return Rows, ([],)


def streamed(values: list[Any], feature: Any = None) -> datasets.IterableDataset:
    features = None if feature is None else Features({"x": feature})
    return datasets.IterableDataset.from_generator(Rows(values), features=features)


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "PNG")
    return file.getvalue()


def i8(*values: int) -> Any:
    return np.array(values, "i1")


WITHOUT: dict[str, tuple[list[Any], list[Any] | str]] = {
    "timedelta": ([dt.timedelta(days=3, microseconds=1)], [np.timedelta64(3 * 86400 * 10**6 + 1, "us")]),
    "an integer of Python past 2^63": ([1, 2**63], [np.uint64(1), np.uint64(2**63)]),
    "big-endian": ([np.array([1], ">i4")], [np.array([1], "i4")]),
    "decimals": ([Decimal("1.5")], "record 0, .*x"),
    "another key": ([{"a": 1}, {"a": 1, "b": 2}], "record 0, .*x"),
    "a missing key": ([{"a": 1, "b": 2}, {"a": 1}], "record 1, .*x"),
    "an integer beside a float": ([1, 0.5], [np.float64(1), np.float64(0.5)]),
    "a large integer beside a float": ([BIG, 0.5], "record 0, .*x"),
    "bytes in a list of texts": ([["a", b"b"]], "record 0, .*x"),
    "a flag beside a number": ([1, True], "record 1, .*x"),
    "nanoseconds of pandas": ([pd.Timestamp(NS)], [np.datetime64(NS, "ns")]),
    "nanoseconds of pandas with a zone": ([pd.Timestamp(NS, tz="UTC")], "record 0, .*x"),
    "times with and without a zone in lists": (
        [[dt.datetime(2020, 1, 1)], [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]],
        "record 1, .*x",
    ),
    "a moment after dates": ([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)], "record 1, .*x"),
    "a time of day with a zone": ([dt.time(1, tzinfo=dt.UTC)], "record 0, .*x"),
    "arrays without dimensions": ([np.array(5), torch.tensor(6)], [np.int64(5), np.int64(6)]),
    "tensors whose gradient is wanted": ([torch.ones(2, requires_grad=True)], [np.ones(2, np.float32)]),
    "bfloat16": ([torch.ones(2, dtype=torch.bfloat16)], [np.ones(2, ml_dtypes.bfloat16)]),
    "arrays of two ranks": ([np.ones(2), np.ones((2, 2))], "record 1, .*x"),
    "arrays of two dtypes": ([np.ones(1), np.array([BIG])], "record 1, .*x"),
    "masked arrays": ([np.ma.array([1, 2], mask=[0, 1])], "record 0, .*x"),
    "pictures": ([Image.new("RGB", (1, 1), (1, 2, 3))], [np.array([[[1, 2, 3]]], np.uint8)]),
    "a lone surrogate": (["a", "\ud800"], ["a", "\ud800"]),
}
WITH: dict[str, tuple[Any, list[Any], list[Any] | str]] = {
    "nanoseconds of pandas": (Value("timestamp[ns]"), [pd.Timestamp(NS), None], [np.datetime64(NS, "ns"), None]),
    "nanoseconds as microseconds": (Value("timestamp[us]"), [pd.Timestamp(NS)], "record 0, .*x"),
    "far seconds": (Value("timestamp[s]"), [np.datetime64(2**60, "s")], [np.datetime64(2**60, "s")]),
    "2^64 - 1 in lists": (List(Value("uint64")), [[2**64 - 1]], [np.array([2**64 - 1], "u8")]),
    "-1 without signs": (Value("uint64"), [-1], "record 0, .*x"),
    "a fraction as an integer": (Value("int8"), [1, 1.5], "record 1, .*x"),
    "a fraction as an integer in arrays": (Array2D((1, 1), "int8"), [[[1.5]]], "record 0, .*x"),
    "text as a flag": (List(Value("bool")), [["False"]], "record 0, .*x"),
    "bytes as text": (Value("string"), [b"a"], "record 0, .*x"),
    "a lone surrogate": (Value("large_string"), ["a", "\ud800"], ["a", "\ud800"]),
    "a rounded float": (Value("float32"), [0.1], [np.float32(0.1)]),
    "a float past float16": (List(Value("float16")), [[1.0], [7e4]], "record 1, .*x"),
    "lists of nothing": (List(Value("int8"), 0), [[], None], [i8(), None]),
    "lists of other lengths": (List(Value("int8"), 2), [[1, 2], [1]], "record 1, .*x"),
    "arrays of nanoseconds": (
        Array2D((1, 1), "timestamp[ns]"),
        [np.array([[NS]]).view("M8[ns]")],
        [np.array([[NS]]).view("M8[ns]")],
    ),
    "another key": ({"a": Value("int8")}, [{"a": 1, "z": 2}], "record 0, .*x"),
    "labels": (
        ClassLabel(names=["a", "b"]),
        [0, "b", -1, None],
        [np.int64(0), np.int64(1), np.int64(-1), None],
    ),
    "an unknown label": (ClassLabel(names=["a"]), ["a", "z"], "record 1, .*x"),
    "a label that is too large": (ClassLabel(names=["a"]), [0, 5], "record 1, .*x"),
    "translations": (Translation(["en", "fr"]), [{"fr": "oui", "en": None}], [{"en": None, "fr": "oui"}]),
    "dates": (Value("date32"), [dt.date(1970, 1, 6), np.datetime64(5, "D")], [np.datetime64(5, "D")] * 2),
    "a moment as a date": (Value("date32"), [dt.datetime(2020, 1, 1, 5)], "record 0, .*x"),
    "times of day": (Value("time64[ns]"), [dt.time(0, 0, 0, 1), None], "record 0, .*x"),
    "spans": (Value("duration[us]"), [dt.timedelta(microseconds=5)], [np.timedelta64(5, "us")]),
    "JSON": (Json(), [{"a": [1, "b"]}, "x", None], ['{"a":[1,"b"]}', '"x"', None]),
    "JSON without a number": (Json(), [[1.5], float("nan")], "record 1, .*x"),
    "an image that is none": (datasets.Image(), [{"bytes": None, "path": None}], "record 0, .*x"),
}


def check(storage: Storage, name: str, source: Any, wanted: list[Any] | str) -> None:
    identity = "".join(filter(str.isalnum, name))
    if isinstance(wanted, str):
        with pytest.raises((ElementError, InvalidTypeError), match=f"(?s){wanted}"):
            storage.submit(source, identity, "v1")
        assert identity not in storage.datasets()
        return
    found = list(storage.submit(source, identity, "v1"))
    assert len(found) == len(wanted)
    for element, value in zip(found, wanted, strict=True):
        assert_same(element["x"], value)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_row_without_features_goes_in_unchanged_or_is_refused(name: str, storage: Storage) -> None:
    values, wanted = WITHOUT[name]
    check(storage, f"without {name}", streamed(values), wanted)


@pytest.mark.parametrize("name", WITH)
def test_a_row_of_declared_features_goes_in_unchanged_or_is_refused(name: str, storage: Storage) -> None:
    feature, values, wanted = WITH[name]
    check(storage, f"with {name}", streamed(values, feature), wanted)


@pytest.mark.parametrize("feature", [None, Value("string")])
def test_rows_that_do_not_fit_are_left_out_and_the_others_kept(feature: Any, storage: Storage) -> None:
    source = streamed(["a", {}, "b", b"c", "d"], feature)
    with pytest.warns(CacheLayerWarning, match="record 1,"):
        ref = storage.submit(source, f"skipped-{feature is None}", "v1", on_error="skip")
    assert [element["x"] for element in ref] == ["a", "b", "d"]


@pytest.mark.parametrize("stream", [False, True])
def test_invalid_text_of_a_dataset_is_left_out_too(stream: bool, storage: Storage) -> None:
    dataset = datasets.Dataset(pa.table({"x": pa.array([b"a", b"\xff", b"b"]).view(pa.string())}))
    source = dataset.to_iterable_dataset() if stream else dataset
    with pytest.raises(ElementError, match=r"record 1, .*x"):
        storage.submit(source, f"invalid-{stream}", "v1")
    with pytest.warns(CacheLayerWarning, match="1 of 3 records were left out"):
        ref = storage.submit(source, f"invalid-{stream}", "v1", on_error="skip")
    assert [element["x"] for element in ref] == ["a", "b"]


def test_a_column_that_no_feature_names_is_refused_and_one_that_is_missing_is_null(storage: Storage) -> None:
    features = Features({"x": Value("int8"), "y": Value("int8")})
    rows = datasets.IterableDataset.from_generator(Rows([1]), features=features)
    assert list(storage.submit(rows, "missing-column", "v1")) == [{"x": 1, "y": None}]
    rows = datasets.IterableDataset.from_generator(Rows([1]), features=Features({"y": Value("int8")}))
    with pytest.raises(ElementError, match=r"record 0: .*x"):
        storage.submit(rows, "another-column", "v1")


def test_rows_come_in_the_order_of_the_epoch_that_was_set(storage: Storage) -> None:
    for number, dataset in enumerate((streamed(list(range(30))), datasets.Dataset.from_dict({"x": range(30)}))):
        source = dataset if number == 0 else dataset.to_iterable_dataset(num_shards=3)
        shuffled = source.shuffle(seed=3, buffer_size=9)
        shuffled.set_epoch(2)
        ref = storage.submit(shuffled, f"epoch-{number}", "v1")
        assert [element["x"] for element in ref] == [row["x"] for row in shuffled]


def test_a_dataset_that_goes_on_from_a_state_is_refused(storage: Storage) -> None:
    source = streamed([1, 2, 3])
    next(iter(source))
    source.load_state_dict(source.state_dict())
    with pytest.raises(cachelayer.InvalidArgumentError, match="its first rows would be missing"):
        storage.submit(source, "resumed", "v1")


def test_images_that_are_null_or_broken_stay_what_they_are(storage: Storage, tmp_path: Path) -> None:
    good = picture()
    ref = storage.submit(streamed([None, b"broken", good], datasets.Image()), "images", "v1")
    assert ref.raw().element_spec == {"x": ImageSpec(nullable=True)}
    assert [element["x"] for element in ref.raw()] == [None, b"broken", good]
    with pytest.raises(ElementError, match=r"record 1, leaf \['x'\]"):
        ref[1]
    back = to_datasets(ref, cache_dir=tmp_path).cast_column("x", datasets.Image(decode=False))
    assert [row["x"] and row["x"]["bytes"] for row in back] == [None, b"broken", good]
    with pytest.warns(CacheLayerWarning, match="record 1"):
        kept = storage.submit(streamed([None, b"broken", good], datasets.Image()), "kept", "v1", on_error="skip")
    assert [element["x"] for element in kept.raw()] == [None, good]
