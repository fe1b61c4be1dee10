"""A declared spec that lacks keys of the first element is completed from it, before the build is decided."""

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leftovers import noted_shards

import cachelayer
from cachelayer import ArraySpec, Storage
from cachelayer.errors import ElementError, SourceError

ROWS = [{"id": i, "tokens": [1] * (i % 4), "meta": {"score": i / 2, "url": f"u{i}"}} for i in range(600)]
PART = {"tokens": ArraySpec("int32", (None,)), "meta": {"score": "float32"}}
WHOLE = {
    "id": ArraySpec("int64"),
    "tokens": ArraySpec("int32", (None,)),
    "meta": {"score": ArraySpec("float32"), "url": ArraySpec(str)},
}
Pair = namedtuple("Pair", ["x", "y"])


class Sized:
    """Items by number, and no iterator."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, number: int) -> Any:
        return ROWS[number]


def each() -> Iterator[Any]:
    yield from ROWS


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a list": (ROWS, {}),
    "a function": (each, {}),
    "a generator": (each(), {}),
    "an iterator": (map(dict, ROWS), {}),
    "items by number": (Sized(), {}),
    "items by two workers": (Sized(), {"workers": 2}),
    "items by a host": (Sized(), {"hosts": (0, 1)}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("source", "options"), SOURCES.values(), ids=SOURCES)
def test_a_partial_spec_gives_the_version_of_the_complete_one(storage: Storage, source: Any, options: Any) -> None:
    # Only what can be divided has the same shards, whoever builds it.
    shard_bytes = 5_000 if options else 1 << 20
    ref = storage.cache(source, "part@v1", element_spec=PART, shard_bytes=shard_bytes, **options)
    assert ref.element_spec == WHOLE
    assert list(ref.element_spec) == list(ROWS[0])
    assert ref.digest == storage.cache(ROWS, "whole@v1", element_spec=WHOLE, shard_bytes=shard_bytes).digest
    assert ref[599]["meta"] == {"score": 299.5, "url": "u599"}


@pytest.mark.parametrize("taken", [list, iter, lambda rows: cachelayer.sharded(lambda *_: rows, 1)])
def test_a_field_that_begins_as_null_is_completed_from_the_first_element_that_has_it(
    storage: Storage, taken: Any
) -> None:
    rows = [{"id": i, "late": None if i < 100 else [float(i)]} for i in range(120)]
    ref = storage.cache(taken(rows), "d@v1", element_spec={"id": "int32"})
    assert ref.element_spec == {"id": ArraySpec("int32"), "late": ArraySpec("float64", (None,), nullable=True)}


@pytest.mark.parametrize("taken", [list, iter])
def test_a_partial_spec_of_rows_is_completed_from_the_first_batch(storage: Storage, taken: Any) -> None:
    batches = [
        {"id": np.arange(2), "tokens": cachelayer.Ragged(np.arange(5), np.array([0, 1, 5])), "url": ["a", "b"]},
        {"id": np.arange(2, 4), "tokens": cachelayer.Ragged(np.arange(2), np.array([0, 0, 2])), "url": ["c", "d"]},
    ]
    spec = {"tokens": ArraySpec("int64", (None,))}
    ref = storage.cache(taken(batches), "rows@v1", unbatch=True, element_spec=spec)
    assert ref.element_spec == {"id": ArraySpec("int64"), **spec, "url": ArraySpec(str)}
    assert [(int(row["id"]), row["url"]) for row in ref] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


def test_an_interrupted_build_is_resumed_with_the_complete_spec(storage: Storage, tmp_path: Path) -> None:
    # What a build changes of its own source counts as changed, so this is on disk.
    broken = tmp_path / "broken"
    broken.touch()

    class Failing(Sized):
        def __getitem__(self, number: int) -> Any:
            if broken.exists() and number == 505:
                broken.unlink()
                raise OSError("the disk went away")
            return super().__getitem__(number)

    with pytest.raises(SourceError, match="record 505"):
        storage.cache(Failing(), "d@v1", element_spec=PART, shard_bytes=4_000)
    finished = noted_shards(storage, "d", "v1")
    ref = storage.cache(Failing(), "d@v1", element_spec=PART, shard_bytes=4_000)
    assert ref.element_spec == WHOLE
    assert len(finished) > 3
    assert {*finished} <= {shard.name for shard in ref._base.version.manifest.shards}


def test_the_same_partial_spec_is_no_change(storage: Storage) -> None:
    storage.cache(ROWS, "d@v1", element_spec=PART)
    storage.cache(ROWS, "d@v1", element_spec=PART, on_change="error")
    for other in ({"id": np.int32}, {"ids": np.int64}, WHOLE, None):
        with pytest.raises(cachelayer.StaleVersionError, match="with other options: element_spec"):
            storage.cache(ROWS, "d@v1", element_spec=other, on_change="error")


def test_specs_within_tuples_are_completed(storage: Storage) -> None:
    rows = [(Pair({"a": 1, "b": 2}, 3), {"c": None, "d": 4})]
    ref = storage.cache(rows, "d@v1", element_spec=(Pair({"b": "int8"}, "int8"), {"c": None}))
    (x, y), last = ref.element_spec
    assert (x, y) == ({"a": ArraySpec("int64"), "b": ArraySpec("int8")}, ArraySpec("int8"))
    assert last == {"c": None, "d": ArraySpec("int64")}


def test_a_none_in_all_elements_under_a_key_that_is_not_declared_is_refused_with_its_path(storage: Storage) -> None:
    rows = [{"a": 1, "b": {"c": None}}] * 100
    with pytest.raises(ElementError, match=r"\['c'\]"):
        storage.cache(rows, "d@v1", element_spec={"a": "int8"})


@pytest.mark.parametrize("reuses", [False, True])
def test_what_is_not_declared_is_inferred_from_the_first_elements(storage: Storage, reuses: bool) -> None:
    def rows() -> Iterator[Any]:
        memory = np.arange(100)
        for number in range(100):
            yield {"a": 1, "tokens": memory[: number % 7], "b": {"c": None if number < 5 else number}}
            memory += reuses

    ref = storage.cache(rows, "d@v1", element_spec={"a": "int8"})
    assert ref.element_spec == {
        "a": ArraySpec("int8"),
        "tokens": ArraySpec("int64", (None,)),
        "b": {"c": ArraySpec("int64", nullable=True)},
    }
    assert ref[4]["tokens"].tolist() == [number + 4 * reuses for number in range(4)]
    assert ref[5]["b"]["c"] == 5


def test_parts_of_one_element_each_are_looked_at_together(storage: Storage) -> None:
    parts = cachelayer.sharded(lambda number, count: [{"tokens": np.arange(number)}], 10)
    assert storage.cache(parts, "d@v1").element_spec == {"tokens": ArraySpec("int64", (None,))}


def test_a_partial_spec_is_completed_from_the_parts(storage: Storage) -> None:
    parts = cachelayer.sharded(lambda number, count: [{"a": number, "tokens": np.arange(number)}], 4)
    ref = storage.cache(parts, "d@v1", element_spec={"tokens": ArraySpec("int64", (None,))})
    assert ref.element_spec == {"a": ArraySpec("int64"), "tokens": ArraySpec("int64", (None,))}


def test_a_later_element_that_does_not_fit_is_named_with_its_leaf_and_the_fix(storage: Storage) -> None:
    rows = [{"tokens": np.arange(3)}] * 64 + [{"tokens": np.arange(4)}]
    for source in (rows, iter(rows)):
        with pytest.raises(ElementError, match="element_spec=") as caught:
            storage.cache(source, "d@v1")
        assert (caught.value.record, caught.value.path) == (64, "['tokens']")
    assert storage.cache(rows, "d@v1", element_spec={"tokens": ArraySpec("int64", (None,))})[64]["tokens"].size == 4


def test_elements_may_be_left_out_before_any_has_all_keys(storage: Storage) -> None:
    rows = [{"a": 1, "error": "x"}, {"a": 2}, {"a": 3}]
    with pytest.warns(cachelayer.CacheLayerWarning, match="1 of 3"):
        assert len(storage.cache(rows, "d@v1", element_spec={"a": "int8"}, on_error="skip")) == 2
