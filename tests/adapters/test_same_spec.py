"""The same values have the same spec, wherever they come from, and come back alike."""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from optional_packages import is_installed

import cachelayer
from cachelayer import ArraySpec, NullableDict, RaggedSpec, Storage
from cachelayer.adapters.pyarrow import from_json
from cachelayer.errors import ElementError
from cachelayer.specs.spec import as_nullable, with_nullable_values

INT, FLOAT, TEXT = ArraySpec("int64"), ArraySpec("float64"), ArraySpec(str)
INTS, FLOATS, TEXTS = ArraySpec("int64", (None,)), ArraySpec("float64", (None,)), ArraySpec(str, (None,))
NESTED = RaggedSpec("int64", (None, None))


def or_none(leaf: Any) -> Any:
    return as_nullable(leaf)


Rows = list[dict[str, Any]]
SOURCES: dict[str, Callable[[Rows, Path], Any]] = {
    "generator": lambda rows, _: lambda: iter(rows),
    "list": lambda rows, _: rows,
    "iterator": lambda rows, _: iter(rows),
    "parts": lambda rows, _: cachelayer.sharded(lambda number, count: rows[number::count], 1),
    "JSON lines": lambda rows, folder: from_json(written(rows, folder)),
    "datasets": lambda rows, _: datasets.IterableDataset.from_generator(lambda: iter(rows)),
    "pandas": lambda rows, _: pd.DataFrame({"f": pd.Series([row.get("f") for row in rows], dtype=object)}),
}


def written(rows: Rows, folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fields(*values: Any) -> Rows:
    return [{"f": value} for value in values]


JSON: dict[str, tuple[Rows, Any]] = {
    "integers": (fields(1, -2), INT),
    "integers past 2^63": (fields(1, 2**63), ArraySpec("uint64")),
    "an integer, then a float": (fields(1, 2.5), FLOAT),
    "flags": (fields(True, False), ArraySpec("bool")),
    "texts": (fields("a", ""), TEXT),
    "None first": (fields(None, 1.5), or_none(FLOAT)),
    "None in all of the first": (fields(*[None] * 300, 1), or_none(INT)),
    "lists of two lengths": (fields([1, 2, 3], [4]), INTS),
    "lists of one length": (fields([1, 2], [3, 4]), INTS),
    "an empty list first": (fields([], [1]), INTS),
    "empty lists in all of the first": (fields(*[[]] * 300, ["a"]), TEXTS),
    "None, then an empty list": (fields(None, [], [1]), or_none(INTS)),
    "a float in one list": (fields([1], [2, 0.5]), FLOATS),
    "lists of texts": (fields(["a", "b"], []), TEXTS),
    "lists with None": (fields([1, None], [], [None, None]), with_nullable_values(INTS)),
    "lists of texts with None": (fields([None, "a"], ["", None]), with_nullable_values(TEXTS)),
    "lists of flags with None": (fields([True, None], [False]), ArraySpec("bool", (None,), nullable_values=True)),
    "nested lists with None": (fields([[1], [2, None]], [[]]), with_nullable_values(NESTED)),
    "None, and lists with None": (fields(None, [0.5, None]), with_nullable_values(or_none(FLOATS))),
    "nested lists": (fields([[1], [2, 3]], [], [[]]), NESTED),
    "nested lists of three levels": (
        fields([[[1]]], [[[2, 3], []], []]),
        RaggedSpec("int64", (None,) * 3, ragged_rank=2),
    ),
    "dicts": (fields({"a": 1, "b": "x"}, {"a": 2, "b": "y"}), {"a": INT, "b": TEXT}),
    "a dict that is None": (fields(None, {"a": 1}), NullableDict({"a": INT})),
    "a dict within, that is None": (
        fields({"a": {"b": 1}}, {"a": None}, None, {"a": {"b": None}}),
        NullableDict({"a": NullableDict({"b": or_none(INT)})}),
    ),
    "nested dicts": (fields({"a": {"b": [1]}}, {"a": {"b": []}}), {"a": {"b": INTS}}),
    "a key that comes second": (fields({"a": 1}, {"a": 2, "b": "x"}), {"a": INT, "b": or_none(TEXT)}),
    "a key that goes": (fields({"a": 1, "b": [1]}, {"a": 2}), {"a": INT, "b": or_none(INTS)}),
    "a dict that lacks all keys": (fields({"a": 1}, {}), {"a": or_none(INT)}),
    "a dict whose dict is missing": (
        fields({"a": 1, "b": {"c": 2}}, {"a": 2}),
        {"a": INT, "b": NullableDict({"c": INT})},
    ),
    "lists of dicts": (fields([{"a": 1, "b": [1]}], [], [{"a": 2, "b": []}] * 2), {"a": INTS, "b": NESTED}),
    "lists of lists of dicts": (fields([[{"a": 1}], []], [[{"a": 2}] * 2]), {"a": NESTED}),
    "a list of several kinds": (fields([1, "a"], [2, "b"]), [INT, TEXT]),
    "a list with a dict": (fields([1, {"a": [1]}], [2, {"a": [1, 2]}]), [INT, {"a": INTS}]),
}
DAY, NOON = dt.date(2020, 1, 2), dt.datetime(2020, 1, 2, 12)
OTHERS: dict[str, tuple[Rows, Any]] = {
    "bytes": (fields(b"a", b""), ArraySpec(bytes)),
    "lists of bytes": (fields([b"a"], []), ArraySpec(bytes, (None,))),
    "arrays of one shape": (fields(np.zeros((2, 3), "f"), np.ones((2, 3), "f")), ArraySpec("f", (2, 3))),
    "arrays of two shapes": (fields(np.zeros((2, 3), "f"), np.ones((1, 3), "f")), ArraySpec("f", (None, 3))),
    "as many arrays": (fields([np.zeros(1), np.zeros(2)]), [ArraySpec("d", (1,)), ArraySpec("d", (2,))]),
    "more or fewer arrays": (fields([np.zeros(1), np.zeros(2)], [np.zeros(1)]), RaggedSpec("d", (None, None))),
    "tuples": (fields((1, "a"), (2, "b")), (INT, TEXT)),
    "more or fewer tuples": (fields([(1, 2)], [(1, 2), (3, 4)]), NESTED),
    "an array of texts": (fields(np.array(["a", "b"], object), np.array([], object)), TEXTS),
    "arrays of flags and None": (
        fields(np.array([True], object), np.array([None, False], object)),
        ArraySpec("bool", (None,), nullable_values=True),
    ),
    "arrays of integers and None": (
        fields(np.array([1, None], object), np.array([], object), np.array([2], object)),
        with_nullable_values(INTS),
    ),
    "arrays of integers as objects": (fields(np.array([1, 2], object), np.array([], object)), INTS),
    "arrays of arrays, as frames have nested lists": (
        fields(np.array([[1], [2, 3]], object), np.array([[], [4]], object)),
        NESTED,
    ),
    "texts of which some are None, as they are read": (
        fields(
            cachelayer.Nullable(np.array(["a", ""], object), np.array([True, False])),
            cachelayer.Nullable(np.array([], object), np.array([], bool)),
        ),
        with_nullable_values(TEXTS),
    ),
    "a list of numpy's numbers": (fields([np.int64(1)], [np.int64(2), np.int64(3)]), INTS),
    "numpy's numbers": (fields(np.float32(1), np.float32(2)), ArraySpec("f")),
    "dates": (fields(DAY, DAY), ArraySpec("M8[D]")),
    "moments": (fields(NOON, None), or_none(ArraySpec("M8[us]"))),
    "spans": (fields([dt.timedelta(1)], []), ArraySpec("m8[us]", (None,))),
}
CASES = [
    *((name, source) for name in JSON for source in SOURCES),
    *((name, source) for name in OTHERS for source in SOURCES if source != "JSON lines"),
]


def plain(value: Any) -> Any:
    """Return values of Python; None in place of a dict of Nones, and a list of dicts in place of a dict of lists."""
    if isinstance(value, dict):
        fields = {key: plain(child) for key, child in value.items()}
        present = {key: child for key, child in fields.items() if child is not None}
        if present and all(isinstance(child, list) for child in present.values()):
            return [plain(dict(zip(present, row, strict=True))) for row in zip(*present.values(), strict=True)]
        return present or None
    if isinstance(value, (cachelayer.Nullable, cachelayer.Ragged)):
        return plain(value.to_list())
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return list(map(plain, value)) if isinstance(value, (list, tuple)) else value


NO_CELLS = {"texts of which some are None, as they are read"}
"""Cases whose rows pandas before 3 does not put into a frame."""


@pytest.fixture(scope="module")
def digest_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the digest of the rows of a case, as a list."""
    return cache(
        lambda name: Storage(tmp_path_factory.mktemp("rows")).submit({**JSON, **OTHERS}[name][0], "d@v1").digest
    )


@pytest.mark.parametrize(("name", "source"), CASES)
def test_the_same_values_have_the_same_spec_and_come_back(
    storage: Storage, digest_of: Callable[[str], str], tmp_path: Path, name: str, source: str
) -> None:
    if source == "pandas" and name in NO_CELLS and not is_installed("pandas>=3"):
        pytest.skip("needs pandas>=3: older ones put no such rows into a frame")
    rows, spec = {**JSON, **OTHERS}[name]
    ref = storage.submit(SOURCES[source](rows, tmp_path), "d@v1")
    assert ref.element_spec == {"f": spec}
    if not isinstance(spec, dict):
        assert [plain(element["f"]) for element in ref] == [plain(row["f"]) for row in rows]
    assert ref.digest == digest_of(name)


@pytest.mark.parametrize("items", [[1, "a"], [{1}, {2}], [object(), None]], ids=["kinds", "sets", "objects"])
def test_an_array_of_objects_of_no_kind_is_refused_by_name(storage: Storage, items: list[Any]) -> None:
    with pytest.raises(ElementError, match=r"\['f'\].*array of objects"):
        storage.submit(fields(np.array(items, object)), "d@v1")


@pytest.mark.parametrize("name", [*JSON, *OTHERS])
def test_what_was_read_is_stored_again_as_it_was(storage: Storage, name: str) -> None:
    ref = storage.submit({**JSON, **OTHERS}[name][0], "d@v1")
    again = storage.submit(list(ref), "read@v1", element_spec=ref.element_spec)
    batches = storage.submit(ref.stream(2), "batches@v1", unbatch=True)
    assert again.digest == batches.digest == ref.digest


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "pandas"])
def test_a_key_that_rows_lack_and_a_partial_spec(storage: Storage, tmp_path: Path, source: str) -> None:
    rows = [{"id": 1}, {"id": 2, "t": "a", "x": 1}, {"t": "b"}]
    spec = {"x": ArraySpec("float32", nullable=True), "id": ArraySpec("int32", nullable=True)}
    ref = storage.submit(SOURCES[source](rows, tmp_path), "d@v1", element_spec=spec)
    assert ref.element_spec == {"id": spec["id"], "t": or_none(TEXT), "x": spec["x"]}
    assert [plain(element) for element in ref] == rows


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("value", [None, [], [[]], {"a": None}, [{"a": []}]])
def test_what_no_value_tells_is_refused_with_the_line_to_write(
    storage: Storage, tmp_path: Path, source: str, value: Any
) -> None:
    with pytest.raises(cachelayer.CacheLayerError, match=r"\['f'\].*element_spec="):
        storage.submit(SOURCES[source](fields(value, value), tmp_path), "d@v1")


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_declared_is_not_looked_at(storage: Storage, tmp_path: Path, source: str) -> None:
    rows = fields({"a": None, "b": [], "c": 1}, {"a": None, "b": [], "c": 2})
    spec = {"f": {"a": ArraySpec("int8", nullable=True), "b": ArraySpec("int8", (None,))}}
    ref = storage.submit(SOURCES[source](rows, tmp_path), "d@v1", element_spec=spec)
    assert ref.element_spec == {"f": {**spec["f"], "c": INT}}


def test_a_key_of_pythons_dicts_that_is_first_missing_later_is_refused_with_the_line_to_write(storage: Storage) -> None:
    def rows() -> Iterator[Any]:
        yield from ({"a": 1, "b": 2} for _ in range(100))
        yield {"a": 1}

    with pytest.raises(ElementError, match="nullable=True") as caught:
        storage.submit(rows, "d@v1")
    assert caught.value.record == 100
    ref = storage.submit(rows, "d@v1", element_spec={"b": ArraySpec("int64", nullable=True)})
    assert ref[100] == {"a": 1, "b": None}
