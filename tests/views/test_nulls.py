"""Dicts that are None, and nulls within lists: they come back as they were, in every view, and from every source."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cachelayer
from cachelayer import ArraySpec, DataRef, InvalidArgumentError, JsonSpec, Nullable, NullableDict, Ragged, Storage
from cachelayer.adapters.pandas import to_pandas
from cachelayer.adapters.polars import to_polars
from cachelayer.adapters.pyarrow import from_json, to_arrow
from cachelayer.errors import CacheLayerError, CacheLayerWarning, ElementError

ROWS: list[Any] = [
    {"i": 1, "m": {"a": 1, "b": {"c": "x"}}, "t": ["a", None], "n": [1.5, None]},
    {"i": 2, "m": None, "t": None, "n": []},
    {"i": 3, "m": {"a": None, "b": None}, "t": [], "n": None},
    {"i": 4, "m": {"a": 4, "b": {"c": None}}, "t": ["q", "r"], "n": [2.5]},
]
SPEC = {
    "i": ArraySpec("int64"),
    "m": NullableDict(a=ArraySpec("int64", nullable=True), b=NullableDict(c=ArraySpec(str, nullable=True))),
    "t": ArraySpec(str, (None,), nullable=True, nullable_values=True),
    "n": ArraySpec("float64", (None,), nullable=True, nullable_values=True),
}
CLEAN: list[Any] = [{"i": 9, "m": {"a": 1, "b": {"c": "y"}}, "t": ["z"], "n": [0.5, 1.0]}] * 2


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, (Nullable, Ragged)):
        return value.to_list()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def rows_of(records: Any) -> list[Any]:
    return [plain(element) for element in records]


@pytest.fixture
def ref(storage: Storage) -> DataRef[Any]:
    return storage.cache(lambda: iter(ROWS), "d@v1")


def test_elements_and_batches_have_them_as_they_were(ref: DataRef[Any]) -> None:
    assert ref.element_spec == SPEC
    assert rows_of(ref) == [plain(ref[row]) for row in range(4)] == rows_of(ref.__getitems__(range(4))) == ROWS
    batch = ref.read([2, 1, 0])
    assert isinstance(batch["m"], Nullable)
    assert batch["m"].valid.tolist() == [True, False, True]
    assert batch["m"]["a"].to_list() == [None, None, 1]
    assert batch["m"]["b"].to_list() == [None, None, {"c": "x"}]
    assert plain(batch) == {key: [row[key] for row in ROWS[2::-1]] for key in SPEC}
    assert [row for each in ref.stream(3) for row in plain(each["n"])] == [row["n"] for row in ROWS]
    assert rows_of(ref.fields("m/a")) == [{"m": {"a": 1}}, {"m": None}, {"m": {"a": None}}, {"m": {"a": 4}}]
    assert rows_of(ref.fields("m/b/c", "i")[1:3]) == [{"i": 2, "m": None}, {"i": 3, "m": {"b": None}}]
    mapped = ref.stream(4).map(lambda element: {"m": element["m"], "moved": {"n": element["n"]}, "k": element["i"] * 2})
    assert plain(next(iter(mapped))["m"]) == [row["m"] for row in ROWS]


SOURCES = {
    "list": lambda folder, ref: ROWS,
    "refs": lambda folder, ref: ref,
    "Arrow": lambda folder, ref: to_arrow(ref),
    "Parquet": lambda folder, ref: folder / "rows.parquet",
    "JSON lines": lambda folder, ref: from_json(folder / "rows.jsonl"),
    "pandas": lambda folder, ref: to_pandas(ref),
    "polars": lambda folder, ref: to_polars(ref),
    "datasets": lambda folder, ref: datasets.Dataset.from_list(ROWS),
    "rows of datasets": lambda folder, ref: datasets.IterableDataset.from_generator(lambda: iter(ROWS)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_they_come_from_every_source_with_one_digest(
    ref: DataRef[Any], storage: Storage, tmp_path: Path, name: str
) -> None:
    pq.write_table(to_arrow(ref), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    again = storage.cache(SOURCES[name](tmp_path, ref), "again@v1")
    assert (rows_of(again), again.element_spec, again.digest) == (ROWS, SPEC, ref.digest)
    assert to_arrow(again).to_pylist() == ROWS


def test_versions_with_and_without_them_go_together(ref: DataRef[Any], storage: Storage) -> None:
    clean = storage.cache(CLEAN, "clean@v1")
    lists = {"t": ArraySpec(str, (None,)), "n": ArraySpec("float64", (None,))}
    assert clean.element_spec == {"i": SPEC["i"], "m": {"a": ArraySpec("int64"), "b": {"c": ArraySpec(str)}}, **lists}
    assert rows_of(cachelayer.concat([clean, ref])) == CLEAN + ROWS
    assert plain(cachelayer.concat([clean, ref]).read([0, 2, 3])["n"]) == [[0.5, 1.0], [1.5, None], []]
    appended = storage.append("clean@v1", "v2", ROWS)
    assert rows_of(appended) == CLEAN + ROWS
    assert appended.element_spec == SPEC
    assert storage.rewrite("d@v1", "v2").digest == ref.digest
    columns = pa.table({"z": [{"q": 1}, None, {"q": None}, None], "l": [[1, None], None, [], [3]]})
    added = storage.add_columns("d@v1", "v3", columns)
    assert [plain(row["z"]) for row in added] == columns["z"].to_pylist()
    assert [plain(row["l"]) for row in added] == columns["l"].to_pylist()
    many = storage.cache(ROWS * 50, "many@v1")
    assert storage.cache(ROWS * 50, "many@v2", workers=2).digest == many.digest


def test_conditions_counts_and_statistics_see_them(ref: DataRef[Any]) -> None:
    assert [row["i"] for row in ref.where("m is None")] == [2]
    assert [row["i"] for row in ref.where("m is not None and m.b is None")] == [3]
    assert [row["i"] for row in ref.where("m.a is None")] == [2, 3]
    assert [row["i"] for row in ref.where("m.a > 1 or m is None")] == [2, 4]
    for wrong in ("m == 1", "m", "m > m", "m in [1]"):
        with pytest.raises(InvalidArgumentError, match="m"):
            ref.where(wrong)
    assert ref.count_by("m/a") == {None: 2, 1: 1, 4: 1}
    assert [leaf.nulls for leaf in ref.stats().leaves] == [0, 2, 3, 1, 1]
    assert "None" in ref._repr_html_()


def test_what_has_no_null_refuses_them_by_name(ref: DataRef[Any], storage: Storage) -> None:
    for call in (lambda: ref.windows("n", 2), lambda: ref.packed("n", 2), lambda: ref.padded({"n": 2})):
        with pytest.raises(InvalidArgumentError, match="'n' is float64 or None"):
            call()
    with pytest.raises(ElementError, match="JsonSpec"):
        storage.cache([{"x": [{"a": 1}]}, {"x": [{"a": 1}, None]}], "lists@v1")
    with pytest.raises(CacheLayerError, match="filled"):
        ref[0]["n"].__array__()
    assert ref[0]["n"].filled(0).tolist() == [1.5, 0.0]
    assert ref.read([0])["n"].values.filled(-1).to_list() == [[1.5, -1.0]]


@pytest.mark.parametrize("source", ["JSON lines", "datasets"])
@pytest.mark.parametrize(
    "values",
    [
        [[{"role": "user"}], [{"role": "tool", "calls": [{"name": "f"}]}]],
        [[{"content": "a"}], [{"content": ["b"]}]],
        [{"a": 1}, {"b": "x"}],
        ["text", {"a": 1}],
        [[1], {"a": [1]}],
        [[{"a": 1}, None]],
        [[1, "a"], [1, "a", "b"]],
    ],
    ids=str,
)
def test_a_field_whose_structure_changes_becomes_json_and_a_warning_says_so(
    storage: Storage, tmp_path: Path, source: str, values: list[Any]
) -> None:
    rows = [{"i": number, "f": value} for number, value in enumerate(values)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    made = from_json(path) if source == "JSON lines" else datasets.IterableDataset.from_generator(lambda: iter(rows))
    with pytest.warns(CacheLayerWarning, match=r"\['f'\].*JSON"):
        ref = storage.cache(made, "d@v1")
    assert ref.element_spec == {"i": ArraySpec("int64"), "f": JsonSpec()}
    assert list(ref) == rows


def test_arrays_of_known_shape_and_columns_hold_nulls(storage: Storage) -> None:
    lists = pa.array([[1, None, 3], None, [4, 5, 6]], pa.list_(pa.int16(), 3))
    ref = storage.cache(pa.table({"x": lists}), "fixed@v1")
    assert ref.element_spec == {"x": ArraySpec("int16", (3,), nullable=True, nullable_values=True)}
    assert to_arrow(ref)["x"].to_pylist() == lists.to_pylist()
    assert ref.read([2, 0])["x"].values.valid.tolist() == [[True] * 3, [True, False, True]]
    frames = [pd.DataFrame({"x": lists.to_pylist()}), pl.DataFrame({"x": lists.to_pylist()})]
    for version, frame in enumerate(frames):
        assert [plain(row["x"]) for row in storage.cache(frame, f"frames@v{version}")] == lists.to_pylist()
    texts = np.array([["a", None], ["b", "c"]], object)
    assert [plain(row["x"]) for row in storage.cache({"x": texts}, "texts@v1")] == texts.tolist()
