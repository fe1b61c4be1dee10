"""Hugging Face datasets in and out, against the package itself."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Array2D, ClassLabel, Features, Json, List, Translation, Value
from optional_packages import is_installed
from pages import run_page
from pictures_and_sounds import PIXELS, SOUNDS, png, wav
from PIL import Image
from values_across import Row, ValuesAcross, assert_same
from values_table import BIG, NS

import cachelayer
from cachelayer import ArraySpec, AudioSpec, ElementError, ImageSpec, Ragged, RaggedSpec, Storage
from cachelayer.adapters.huggingface import to_datasets
from cachelayer.testing import FailingSourceTests, SourceTests


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "text": f"räw {number}" * (number % 5),
        "label": number % 3,
        "tokens": list(range(number % 6)),
        "nested": {"flag": number % 2 == 0, "deep": {"when": dt.datetime(2020, 1, 1, 0, 0, number % 60)}},
        "maybe": None if number % 4 == 1 else number,
    }


FEATURES = Features(
    {
        "id": Value("int64"),
        "text": Value("string"),
        "label": ClassLabel(names=["cat", "dog", "fish"]),
        "tokens": List(Value("int16")),
        "nested": {"flag": Value("bool"), "deep": {"when": Value("timestamp[us]")}},
        "maybe": Value("int32"),
    }
)


def element(number: int) -> dict[str, Any]:
    given = row(number)
    return given | {
        "id": np.int64(number),
        "label": np.int64(given["label"]),
        "tokens": np.array(given["tokens"], np.int16),
        "nested": {
            "flag": np.bool_(given["nested"]["flag"]),
            "deep": {"when": np.datetime64(given["nested"]["deep"]["when"], "us")},
        },
        "maybe": None if given["maybe"] is None else np.int32(number),
    }


def generated(count: int, error: Exception | None = None) -> Iterator[dict[str, Any]]:
    for number in range(count):
        if error is not None and number == 17:
            raise error
        yield row(number)


def in_memory(count: int) -> datasets.Dataset:
    rows = list(generated(count))
    return datasets.Dataset.from_dict({name: [each[name] for each in rows] for name in FEATURES}, features=FEATURES)


class TestDataset(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        return in_memory(count)

    def element(self, number: int) -> Any:
        return element(number)


class TestSelectionOnDisk(TestDataset):
    def source(self, count: int, folder: Path) -> Any:
        order = np.random.default_rng(0).permutation(count)
        in_memory(count).select(order).save_to_disk(folder / "saved")
        return datasets.load_from_disk(folder / "saved").select(np.argsort(order))


class TestIterableOfPython(TestDataset, FailingSourceTests):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        given = {"count": count, "error": self.error}
        return datasets.IterableDataset.from_generator(generated, gen_kwargs=given, features=FEATURES)


class TestIterableOfArrow(TestDataset):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return in_memory(count).to_iterable_dataset(num_shards=1)


def nullable(dtype: Any, *shape: int | None) -> ArraySpec:
    return ArraySpec(dtype, shape, nullable=True)


def ragged(*shape: int | None, **options: Any) -> RaggedSpec:
    return RaggedSpec("int8", shape, nullable=True, **options)


PAGES = [{"bytes": png(pixels), "path": None} for pixels in PIXELS[:3]]
COLUMNS: dict[str, tuple[Any, list[Any], Any]] = {
    "zone": (
        Value("timestamp[s, tz=Europe/Berlin]"),
        [dt.datetime(2020, 1, 2, tzinfo=dt.UTC)],
        ArraySpec("M8[s]", nullable=True, timezone="Europe/Berlin"),
    ),
    "date64": (Value("date64"), [dt.date(2020, 1, 2), dt.date(1960, 1, 1)], nullable("M8[ms]")),
    "time32": (Value("time32[s]"), [dt.time(1, 2, 3)], nullable("m8[s]")),
    "time64": (Value("time64[us]"), [dt.time(1, 2, 3, 4)], nullable("m8[us]")),
    "decimals": (Value("decimal128(5, 2)"), [Decimal("1.10"), Decimal("-20.00")], nullable("float64")),
    "large text": (Value("large_string"), ["a", "", "ü"], nullable(str)),
    "large bytes": (Value("large_binary"), [b"a", b"", b"\0"], nullable(bytes)),
    "nothing": (Value("null"), [None], None),
    "lists": (List(List(Value("int8"))), [[[1], []], [], [[2, 3]]], ragged(None, None)),
    "deep": (List(List(List(Value("int8"), 2))), [[[[1, 2]], []], [], [[[2, 3]]]], ragged(None, None, 2)),
    "deepest": (
        List(List(List(Value("int8"))), 2),
        [[[[1, 2], []], [[3]]], [[], [[4]]]],
        ragged(None, None, None, ragged_rank=2),
    ),
    "rows": (List(List(Value("float32"), 2)), [[[1.0, 2.0]], []], nullable("float32", None, 2)),
    "pairs": (List(Value("string"), 2), [["a", "bc"], ["", "d"]], nullable(str, 2)),
    "any": (Array2D((None, 2), "float32"), [[[1, 2]], [[3, 4], [5, 6]]], nullable("float32", None, 2)),
    "2ds": (List(Array2D((1, 2), "int32")), [[[[1, 2]]], [[[3, 4]], [[5, 6]]]], nullable("int32", None, 1, 2)),
    "large 2ds": (datasets.LargeList(Array2D((1, 1), "int8")), [[[[1]]], []], nullable("int8", None, 1, 1)),
    "lists of dicts": (
        List({"at": List(Value("float32"), 2), "name": Value("string"), "ids": List(Value("int8"))}),
        [[{"at": [1, 2], "name": "a", "ids": [1]}, {"at": [3, 4], "name": "b", "ids": []}], []],
        {"at": nullable("float32", None, 2), "name": nullable(str, None), "ids": ragged(None, None)},
    ),
    "images in lists": (List(datasets.Image()), [PAGES[:2], [], PAGES], nullable(bytes, None)),
    "images as files": (datasets.Image(decode=False), PAGES, nullable(bytes)),
}


if is_installed("pyarrow>=24"):
    COLUMNS["views of text"] = (Value("string_view"), ["a", "a text that is longer than a view holds"], nullable(str))
if is_installed("datasets>=5.1"):
    COLUMNS["bytes of fixed width"] = (Value("fixed_size_binary[3]"), [b"abc", b"a\0\0"], nullable(bytes))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_any_feature_comes_in_and_goes_out(storage: Storage, tmp_path: Path, name: str) -> None:
    feature, values, spec = COLUMNS[name]
    values, features = [values[0], None, *values[1:]], Features({"x": feature})
    dataset = datasets.Dataset.from_dict({"x": values}, features=features)
    ref = storage.cache(dataset, "d@v1")
    assert ref.element_spec == {"x": spec}
    for element, value in zip(ref, values, strict=True):
        leaf = element["x"]
        if isinstance(leaf, Ragged) or getattr(leaf, "ndim", 0):
            assert (leaf.to_list() if isinstance(leaf, Ragged) else as_files(leaf.tolist())) == value
    for view in (ref, ref[1:]):
        back = to_datasets(view, cache_dir=tmp_path)
        assert back.features == features
        assert arrow_rows(back) == arrow_rows(dataset)[-len(view) :]


def arrow_rows(dataset: datasets.Dataset) -> Any:
    """A column as it is stored: datasets itself does not read nulls among arrays of unknown shape."""
    column = dataset.data.table["x"].combine_chunks()
    return (column.storage if isinstance(column, pa.ExtensionArray) else column).to_pylist()


def as_files(values: list[Any]) -> list[Any]:
    return [{"bytes": value, "path": None} if isinstance(value, bytes) else value for value in values]


def test_translations_are_dicts_of_texts(storage: Storage, tmp_path: Path) -> None:
    one, many = Translation(["fr", "en"]), datasets.TranslationVariableLanguages(["en", "fr"])
    rows = {"one": [{"fr": "oui", "en": "yes"}], "many": [{"en": "yes", "fr": ["oui", "ouais"]}]}
    dataset = datasets.Dataset.from_dict(rows, features=Features({"one": one, "many": many}))
    ref = storage.cache(dataset, "d@v1")
    assert ref[0]["one"] == {"en": "yes", "fr": "oui"}
    assert ref[0]["many"]["translation"].tolist() == ["yes", "ouais", "oui"]
    back = to_datasets(ref, cache_dir=tmp_path)
    assert back.features == dataset.features
    assert back[:] == dataset[:]


def images(count: int = 20) -> datasets.Dataset:
    rows = {"image": [Image.fromarray(pixels) for pixels in PIXELS[:count]], "label": list(range(count))}
    features = Features({"image": datasets.Image(), "label": Value("int64")})
    return datasets.Dataset.from_dict(rows, features=features)


def test_images_stay_their_files_and_are_decoded_when_read(storage: Storage, tmp_path: Path) -> None:
    dataset = images()
    ref = storage.cache(dataset, "d@v1")
    assert ref.raw().element_spec["image"] == ImageSpec()
    stored = dataset.cast_column("image", datasets.Image(decode=False))
    for i, pixels in enumerate(PIXELS):
        np.testing.assert_array_equal(ref[i]["image"], pixels)
        assert ref.raw()[i]["image"] == stored[i]["image"]["bytes"]
    back = to_datasets(ref, cache_dir=tmp_path)
    assert back.features == dataset.features
    assert [np.asarray(each["image"]).tolist() for each in back] == [pixels.tolist() for pixels in PIXELS]
    found = storage.cache(streamed([row["image"] for row in dataset]), "generated@v1")
    assert found.raw().element_spec == {"x": ImageSpec()}
    np.testing.assert_array_equal(found[3]["x"], PIXELS[3])
    gray = storage.cache(dataset.cast_column("image", datasets.Image(mode="L")), "gray@v1")
    np.testing.assert_array_equal(gray[3]["image"], np.asarray(Image.fromarray(PIXELS[3]).convert("L")))


def test_images_that_are_only_named_are_read(storage: Storage, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, pixels in zip(paths, PIXELS, strict=False):
        path.write_bytes(png(pixels))
    dataset = datasets.Dataset.from_dict({"image": [*map(str, paths), None]})
    dataset = dataset.cast_column("image", datasets.Image())
    ref = storage.cache(dataset, "d@v1")
    for i in range(3):
        np.testing.assert_array_equal(ref[i]["image"], PIXELS[i])
    assert ref[3]["image"] is None
    paths[1].unlink()
    with pytest.raises(ElementError, match=r"\['image'\]"):
        storage.cache(dataset, "d@v2")


def test_sounds_stay_their_files_and_are_decoded_when_read(storage: Storage, tmp_path: Path) -> None:
    files = [{"bytes": wav(samples), "path": None} for samples in SOUNDS]
    feature = datasets.Audio(sampling_rate=16000, num_channels=1)
    table = pa.table({"audio": pa.array(files, feature.pa_type)})
    dataset = datasets.Dataset(table, info=datasets.DatasetInfo(features=Features({"audio": feature})))
    ref = storage.cache(dataset, "d@v1")
    assert ref.raw().element_spec == {"audio": AudioSpec(16000, 1)}
    np.testing.assert_allclose(ref[2]["audio"], SOUNDS[2].mean(axis=1), rtol=1e-6)
    assert ref.raw()[2]["audio"] == files[2]["bytes"]
    back = to_datasets(ref, cache_dir=tmp_path)
    assert back.features == dataset.features
    assert back.data.table["audio"].to_pylist() == files


def test_a_dict_of_splits_gives_a_dict_of_refs(storage: Storage) -> None:
    splits = datasets.DatasetDict({"train": in_memory(30), "test": in_memory(7)})
    for name, make in (("d", storage.cache), ("d", storage.cache), ("other", storage.submit)):
        refs: Any = make(splits, name, "v1", metadata={"by": "me"})
        assert {split: len(ref) for split, ref in refs.items()} == {"train": 30, "test": 7}
        assert [ref.dataset_id for ref in refs.values()] == [f"{name}.train", f"{name}.test"]
    assert refs["test"].metadata["by"] == "me"
    assert refs["test"].metadata["huggingface_features"]["label"]["names"] == ["cat", "dog", "fish"]
    streamed = datasets.IterableDatasetDict({"train": in_memory(9).to_iterable_dataset()})
    assert len(storage.cache(streamed, "e@v1")["train"]) == 9
    with pytest.raises(TypeError, match="DatasetDict"):
        storage.cache(lambda: splits, "f@v1")


def test_formats_do_not_matter_but_for_their_columns(storage: Storage) -> None:
    ref = storage.cache(in_memory(5).with_format("numpy", columns=["id", "text"]), "d@v1")
    assert list(ref.element_spec) == ["id", "text"]
    whole = storage.cache(in_memory(5).with_format("torch"), "d@v2")
    assert whole.digest == storage.cache(in_memory(5), "d@v3").digest
    with pytest.raises(ValueError, match=r"the dataset has a transform.*with dataset\.map"):
        storage.cache(in_memory(5).with_transform(lambda rows: rows), "d@v4")


def test_a_column_that_was_all_null_at_first_is_read_on_or_named_where_it_is_not(storage: Storage) -> None:
    def rows(nulls: int = 400) -> Iterator[dict[str, Any]]:
        yield from ({"x": i, "y": None} for i in range(nulls))
        yield {"x": 400, "y": 1}

    assert storage.submit(datasets.IterableDataset.from_generator(rows), "d@v0")[400]["y"] == 1
    with pytest.raises(ElementError, match=r"leaf .*y.*element_spec={'y': cachelayer.ArraySpec"):
        storage.submit(datasets.IterableDataset.from_generator(rows, gen_kwargs={"nulls": 10_300}), "d@v1")
    typed = Features({"x": Value("int64"), "y": Value("int8")})
    ref = storage.cache(datasets.IterableDataset.from_generator(rows, features=typed), "d@v1")
    assert [ref[0]["y"], ref[400]["y"]] == [None, 1]


@pytest.mark.parametrize("count", [0, 3, 700])
def test_a_dataset_comes_back_whole_from_a_mapped_file(storage: Storage, tmp_path: Path, count: int) -> None:
    ref = storage.cache(in_memory(count), "d@v1", allow_empty=True)
    back = to_datasets(ref, cache_dir=tmp_path)
    assert back.features == FEATURES
    assert back[:] == in_memory(count)[:]
    files = list(tmp_path.glob("cachelayer/*"))
    assert [file["filename"] for file in back.cache_files] == list(map(str, files))
    written = files[0].stat().st_mtime_ns
    assert len(to_datasets(ref, cache_dir=tmp_path)) == count
    assert files[0].stat().st_mtime_ns == written


def test_a_ref_of_another_source_has_the_features_of_its_spec(storage: Storage, tmp_path: Path) -> None:
    spec = {
        "image": ImageSpec("L"),
        "sound": AudioSpec(8000),
        "pixels": ArraySpec("u1", (2, 3)),
        "day": ArraySpec("M8[D]"),
    }
    element = {
        "image": png(PIXELS[0]),
        "sound": wav(SOUNDS[0], 8000),
        "pixels": np.ones((2, 3), "u1"),
        "day": np.datetime64("2020-01-01"),
    }
    assert to_datasets(storage.cache([element], "d@v1", element_spec=spec), cache_dir=tmp_path).features == Features(
        {
            "image": datasets.Image(mode="L"),
            "sound": datasets.Audio(sampling_rate=8000),
            "pixels": List(List(Value("uint8"), 3), 2),
            "day": Value("date32"),
        }
    )
    joined = cachelayer.concat([storage.cache(images(4), "e@v1"), storage.cache(images(3), "f@v1")])
    assert to_datasets(joined, cache_dir=tmp_path)[5]["image"] == PIXELS[1].tolist()


@pytest.mark.parametrize("rows", [[np.arange(3)], [{"x": np.complex64(1)}], [{"x": (1, 2)}], [{"x": "\ud800"}]])
def test_elements_that_are_no_rows_of_arrow_are_refused(storage: Storage, tmp_path: Path, rows: list[Any]) -> None:
    with pytest.raises(cachelayer.InvalidTypeError, match=r"dicts; elements are|\['x'\]"):
        to_datasets(storage.cache(rows, "d@v1"), cache_dir=tmp_path)


@dataclass
class Rows:
    """What ``from_generator`` calls."""

    rows: list[Any]

    def __call__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __reduce__(self) -> Any:
        # datasets hashes what it is given, and knows no hash of some values.
        return Rows, ([],)


def streamed(values: list[Any], feature: Any = None) -> datasets.IterableDataset:
    features = None if feature is None else Features({"x": feature})
    return datasets.IterableDataset.from_generator(Rows([{"x": value} for value in values]), features=features)


def i8(*values: int) -> Any:
    return np.array(values, "i1")


REFUSED: dict[str, tuple[Any, list[Any]]] = {
    "only nulls in lists": (List(Value("null")), [[]]),
    "palettes with transparency": (datasets.Image(mode="PA"), [None]),
    "null lists in lists": (List(List(Value("int8"))), [[[1]], [[1], None]]),
    "null dicts in lists": (List({"a": Value("int8")}), [[{"a": 1}], [{"a": 1}, None]]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_dataset_holds_that_is_not_stored_is_refused_by_its_leaf(storage: Storage, name: str) -> None:
    feature, values = REFUSED[name]
    dataset = datasets.Dataset.from_dict({"x": values}, features=Features({"x": feature}))
    with pytest.raises((cachelayer.InvalidTypeError, ElementError), match=r"leaf \['x'\]"):
        storage.cache(dataset, "d@v1")


WITHOUT: dict[str, tuple[list[Any], list[Any] | str]] = {
    "timedelta": ([dt.timedelta(days=3, microseconds=1)], [np.timedelta64(3 * 86400 * 10**6 + 1, "us")]),
    "an integer of Python past 2^63": ([1, 2**63], [np.uint64(1), np.uint64(2**63)]),
    "big-endian": ([np.array([1], ">i4")], [np.array([1], "i4")]),
    "decimals": ([Decimal("1.5")], "record 0, .*x"),
    "another key": (
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"a": np.int64(1), "b": None}, {"a": np.int64(1), "b": np.int64(2)}],
    ),
    "a missing key": (
        [{"a": 1, "b": 2}, {"a": 1}],
        [{"a": np.int64(1), "b": np.int64(2)}, {"a": np.int64(1), "b": None}],
    ),
    "an integer beside a float": ([1, 0.5], [np.float64(1), np.float64(0.5)]),
    "a large integer beside a float": ([BIG, 0.5], "record 0, .*x"),
    "bytes in a list of texts": ([["a", b"b"]], [["a", b"b"]]),
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
    "lists of arrays": ([[i8(1, 2), i8()], []], [Ragged(i8(1, 2), np.array([0, 2, 2])), Ragged(i8(), np.array([0]))]),
    "masked arrays": ([np.ma.array([1, 2], mask=[0, 1])], "record 0, .*x"),
    "pictures": ([Image.new("RGB", (1, 1), (1, 2, 3))], [np.array([[[1, 2, 3]]], np.uint8)]),
    "a lone surrogate": (["a", "\ud800"], ["a", "\ud800"]),
}
WITH: dict[str, tuple[Any, list[Any], list[Any] | str]] = {
    "nanoseconds of pandas": (Value("timestamp[ns]"), [pd.Timestamp(NS), None], [np.datetime64(NS, "ns"), None]),
    "nanoseconds as microseconds": (Value("timestamp[us]"), [pd.Timestamp(NS)], "record 0, .*x"),
    "far seconds": (Value("timestamp[s]"), [np.datetime64(2**60, "s")], [np.datetime64(2**60, "s")]),
    "2^64 - 1 in lists": (List(Value("uint64")), [[2**64 - 1]], [np.array([2**64 - 1], "u8")]),
    "decimals": (Value("decimal128(5, 2)"), [Decimal("1.1"), None], [np.float64(1.1), None]),
    "decimals in lists": (List(Value("decimal128(5, 2)")), [[Decimal("1.1")]], [np.array([1.1])]),
    "a decimal with more digits": (Value("decimal128(5, 2)"), [Decimal("1.1"), Decimal("1.234")], "record 1, .*x"),
    "-1 without signs": (Value("uint64"), [-1], "record 0, .*x"),
    "whole floats of numpy as integers": (Value("int64"), [np.float64(3)], [np.int64(3)]),
    "whole floats in arrays as integers": (Array2D((1, 2), "int8"), [np.ones((1, 2))], [np.ones((1, 2), "i1")]),
    "doubles of numpy in lists": (List(Value("float32")), [np.array([0.1])], [np.array([0.1], "f4")]),
    "a fraction of numpy as an integer": (Value("int8"), [np.float32(1.5)], "record 0, .*x"),
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
    "JSON": (Json(), [{"a": [1, "b"]}, "x", None], [{"a": [1, "b"]}, "x", None]),
    "JSON without a number": (Json(), [[1.5], float("nan")], "record 1, .*x"),
    "an image that is none": (datasets.Image(), [{"bytes": None, "path": None}], "record 0, .*x"),
}


@pytest.mark.parametrize(("name", "declared"), [*((name, False) for name in WITHOUT), *((name, True) for name in WITH)])
def test_a_row_of_a_generator_goes_in_unchanged_or_is_refused(name: str, declared: bool, storage: Storage) -> None:
    feature, values, wanted = WITH[name] if declared else (None, *WITHOUT[name])
    source = streamed(values, feature)
    if isinstance(wanted, str):
        with pytest.raises((ElementError, cachelayer.InvalidTypeError), match=f"(?s){wanted}"):
            storage.submit(source, "d@v1")
        assert storage.datasets() == []
        return
    for element, value in zip(storage.submit(source, "d@v1"), wanted, strict=True):
        assert_same(element["x"], value)


@pytest.mark.parametrize("feature", [None, Value("string"), "dataset", "streamed dataset"])
def test_rows_that_do_not_fit_are_left_out_and_the_others_kept(feature: Any, storage: Storage) -> None:
    if isinstance(feature, str):
        table = pa.table({"x": pa.array([b"a", b"\xff", b"b"]).view(pa.string())})
        source: Any = datasets.Dataset(table)
        source = source if feature == "dataset" else source.to_iterable_dataset()
    else:
        source = streamed(["a", {}, "b", b"c"], feature)
    with pytest.warns(cachelayer.CacheLayerWarning, match="record 1,"):
        ref = storage.submit(source, "d@v1", on_error="skip")
    assert [element["x"] for element in ref] == ["a", "b"]


def test_a_column_that_no_feature_names_is_refused_and_one_that_is_missing_is_null(storage: Storage) -> None:
    features = Features({"x": Value("int8"), "y": Value("int8")})
    rows = datasets.IterableDataset.from_generator(Rows([{"x": 1}]), features=features)
    assert list(storage.submit(rows, "missing-column@v1")) == [{"x": 1, "y": None}]
    rows = datasets.IterableDataset.from_generator(Rows([{"x": 1}]), features=Features({"y": Value("int8")}))
    with pytest.raises(ElementError, match=r"record 0: .*x"):
        storage.submit(rows, "another-column@v1")


def test_rows_come_in_the_order_of_the_epoch_that_was_set(storage: Storage) -> None:
    for number, dataset in enumerate((streamed(list(range(30))), datasets.Dataset.from_dict({"x": range(30)}))):
        source = dataset if number == 0 else dataset.to_iterable_dataset(num_shards=3)
        shuffled = source.shuffle(seed=3, buffer_size=9)
        shuffled.set_epoch(2)
        ref = storage.submit(shuffled, f"epoch-{number}@v1")
        assert [element["x"] for element in ref] == [row["x"] for row in shuffled]


def test_a_dataset_that_goes_on_from_a_state_is_refused(storage: Storage) -> None:
    source = streamed([1, 2, 3])
    next(iter(source))
    source.load_state_dict(source.state_dict())
    with pytest.raises(cachelayer.InvalidArgumentError, match="its first rows would be missing"):
        storage.submit(source, "resumed@v1")


def test_images_that_are_null_stay_so_and_broken_ones_are_refused(storage: Storage, tmp_path: Path) -> None:
    good = png(PIXELS[0])
    with pytest.raises(ElementError, match=r"record 1, leaf \['x'\]"):
        storage.submit(streamed([None, b"broken", good], datasets.Image()), "images@v1")
    ref = storage.submit(streamed([None, good], datasets.Image()), "images@v1")
    assert ref.raw().element_spec == {"x": ImageSpec(nullable=True)}
    assert [element["x"] for element in ref.raw()] == [None, good]
    back = to_datasets(ref, cache_dir=tmp_path).cast_column("x", datasets.Image(decode=False))
    assert [row["x"] and row["x"]["bytes"] for row in back] == [None, good]
    with pytest.warns(cachelayer.CacheLayerWarning, match="record 1"):
        kept = storage.submit(streamed([None, b"broken", good], datasets.Image()), "kept@v1", on_error="skip")
    assert [element["x"] for element in kept.raw()] == [None, good]


def _dataset(ref: Any) -> Any:
    with TemporaryDirectory() as folder:
        return to_datasets(ref, cache_dir=folder)


class TestDatasetsValues(ValuesAcross):
    row = Row("datasets", out=_dataset)


def test_the_documented_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    run_page("huggingface.md", 4)


def test_columns_that_came_from_arrow_have_the_features_of_their_types(storage: Storage, tmp_path: Path) -> None:
    table = pa.table(
        {
            "structs": [[{"a": 1}, {"a": 2}], [], [{"a": 3}]],
            "time": pa.array([dt.time(1, 2), None, dt.time(3)], pa.time64("us")),
            "kind": pa.array(["b", "a", "b"]).dictionary_encode(),
        }
    )
    ref: Any = storage.cache(table, "typed@v1")
    with pytest.warns(cachelayer.CacheLayerWarning, match="column 'kind' came as categories.*ClassLabel"):
        dataset = to_datasets(ref, cache_dir=tmp_path)
    assert dataset.features["structs"] == datasets.List({"a": datasets.Value("int64")})
    assert dataset.features["time"] == datasets.Value("time64[us]")
    for name in table.column_names:
        assert list(dataset[name]) == table[name].to_pylist()


def test_columns_keep_their_features_beside_others_that_come_later(storage: Storage, tmp_path: Path) -> None:
    features = {"label": datasets.ClassLabel(names=["no", "yes"]), "text": datasets.Value("string")}
    rows = {"label": [0, 1], "text": ["a", "b"]}
    storage.cache(datasets.Dataset.from_dict(rows, features=datasets.Features(features)), "rows@v1")
    storage.add_columns("rows@v1", "added", {"score": np.array([0.5, 1])})
    short = datasets.Dataset.from_dict({"label": [1]}, features=datasets.Features({"label": features["label"]}))
    score = {"score": datasets.Value("float64")}
    for ref, expected in (
        (storage.fetch("rows@added"), features | score),
        (storage.rewrite("rows@added", "rewritten"), features | score),
        (storage.rewrite("rows@v1", "texts", fields=["text"]), {"text": features["text"]}),
        (storage.append("rows@v1", "longer", short, fill={"text": None}), features),
        (
            storage.add_columns("rows@v1", "replaced", {"label": np.array([7, 8])}, replace=True),
            {"text": features["text"], "label": datasets.Value("int64")},
        ),
    ):
        data = to_datasets(ref, cache_dir=tmp_path)
        assert data.features == expected
        assert [list(row) for row in data] == [list(element) for element in ref]


def test_batches_that_are_cached_are_named(storage: Storage) -> None:
    batches = datasets.Dataset.from_dict({"n": list(range(6))}).to_iterable_dataset().batch(2)
    with pytest.warns(cachelayer.CacheLayerWarning, match=r"Leave out \.batch\(\)"):
        assert len(storage.cache(batches, "batches@v1")) == 3
