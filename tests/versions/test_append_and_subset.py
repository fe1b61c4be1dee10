"""New versions from old: records put behind, or some of them kept, without a copy."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ArraySpec, Storage

SHARD_BYTES = 2000


def rows(start: int, stop: int) -> dict[str, Any]:
    numbers = np.arange(start, stop)
    return {"x": numbers, "image": (numbers[:, None] % 251).astype(np.uint8).repeat(7, 1)}


def submit(storage: Storage, stop: int = 100) -> cachelayer.DataRef[Any]:
    return storage.submit(rows(0, stop), "d@v1", shard_bytes=SHARD_BYTES)


def values(ref: cachelayer.DataRef[Any]) -> list[int]:
    found: list[int] = ref.read(range(len(ref)))["x"].tolist()
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("d/shards/*")}


def test_appended_records_come_behind_those_of_the_base_whose_shards_are_not_touched(
    storage: Storage, tmp_path: Path
) -> None:
    base = submit(storage)
    before = files(tmp_path)
    ref = storage.append("d@v1", "v2", rows(100, 130), shard_bytes=SHARD_BYTES)
    assert before.items() <= files(tmp_path).items()
    assert ref.provenance["base"] == {"version": "v1", "digest": base.digest, "records": 100}
    assert storage.append("d@v1", "v3", iter([]), allow_empty=True).digest == base.digest


@pytest.mark.parametrize(
    "element",
    [{"x": 1.5, "label": "cat"}, {"x": 1}, {"x": 1, "label": "cat", "more": 2}, {"x": "one", "label": None}],
)
def test_an_element_that_does_not_fit_the_base_is_refused_without_advice_that_append_would_refuse(
    storage: Storage, element: Any
) -> None:
    storage.submit([{"x": 0, "label": "dog"}], "d@v1")
    with pytest.raises(cachelayer.ElementError) as error:
        storage.append("d@v1", new="v2", source=[element])
    assert "d@v1" in str(error.value)
    assert "element_spec=" not in str(error.value)


OTHERS: dict[str, Any] = {
    "x": {**rows(0, 3), "x": np.zeros(3, np.int32)},
    "image": {**rows(0, 3), "image": np.zeros((3, 8), np.uint8)},
    "y": {**rows(0, 3), "y": np.zeros(3)},
    "missing": {"x": np.arange(3)},
}


@pytest.mark.parametrize(("told", "source"), OTHERS.items())
def test_another_element_spec_is_refused_with_each_difference(
    storage: Storage, tmp_path: Path, told: str, source: Any
) -> None:
    submit(storage)
    before = files(tmp_path)
    with pytest.raises(cachelayer.InvalidArgumentError, match=rf"d@v1.*{told}"):
        storage.append("d@v1", "v2", source)
    assert list(storage.versions("d")) == ["v1"]
    assert files(tmp_path) == before


def test_leaves_that_are_none_in_what_comes_later_become_nullable(storage: Storage) -> None:
    storage.submit([{"x": 1}, {"x": 2}], "d@v1")
    ref = storage.append("d@v1", "v2", [{"x": None}, {"x": 4}])
    assert [element["x"] for element in ref] == [1, 2, None, 4]
    assert ref.element_spec == {"x": ArraySpec(np.dtype("int64"), nullable=True)}
    again = storage.append("d@v2", "v3", [{"x": 5}])
    assert [element["x"] for element in again] == [1, 2, None, 4, 5]
    assert again.element_spec == ref.element_spec


def test_metadata_is_inherited_and_what_is_given_goes_over_it(storage: Storage) -> None:
    storage.submit([1], "d@v1", metadata={"license": "x", "by": "me"})
    appended = storage.append("d@v1", "v2", [2], metadata={"by": "you"})
    assert appended.metadata == {"license": "x", "by": "you"}
    assert storage.derive("d@v2", "v3", keep=[0], metadata={"n": 1}).metadata == {**appended.metadata, "n": 1}


KEEPS: dict[str, tuple[Any, list[int]]] = {
    "backwards": (slice(None, None, -1), list(range(99, -1, -1))),
    "all": (slice(None), list(range(100))),
    "none": ([], []),
    "repeated": (np.array([7, 7, 7]), [7, 7, 7]),
    "a mask": (np.arange(100) % 10 == 0, list(range(0, 100, 10))),
}


@pytest.mark.parametrize(("keep", "expected"), KEEPS.values(), ids=KEEPS)
def test_a_derived_version_has_the_records_that_were_kept_in_their_order(
    storage: Storage, tmp_path: Path, keep: Any, expected: list[int]
) -> None:
    base = submit(storage)
    before = files(tmp_path)
    ref = storage.derive("d@v1", "v2", keep=keep, description="some", allow_empty=not expected)
    assert values(ref) == expected
    assert ref.digest == base.select(np.array(expected, np.int64)).digest
    assert files(tmp_path) == before
    assert ref.provenance["description"] == "some"


@pytest.mark.parametrize(
    ("keep", "error"),
    [
        ([100], cachelayer.RecordIndexError),
        ([1.5], cachelayer.InvalidTypeError),
        ("v1", cachelayer.InvalidArgumentError),
        (np.ones(99, bool), cachelayer.InvalidArgumentError),
        (3, cachelayer.InvalidTypeError),
    ],
)
def test_what_tells_no_records_is_refused(storage: Storage, keep: Any, error: type[Exception]) -> None:
    submit(storage)
    with pytest.raises(error):
        storage.derive("d@v1", "v2", keep=keep)
    assert list(storage.versions("d")) == ["v1"]


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(25))
@given(steps=st.lists(st.one_of(st.integers(0, 5), st.lists(st.integers(0, 30), max_size=8)), max_size=5))
def test_any_sequence_of_appending_and_deriving_gives_what_lists_give(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | list[int]]
) -> None:
    storage = Storage(tmp_path_factory.mktemp("s"))
    model = list(range(4))
    storage.submit({"x": np.array(model)}, "d@v0", shard_bytes=200)
    fresh = 4
    for number, step in enumerate(steps):
        if isinstance(step, int):
            more = list(range(fresh, fresh + step))
            fresh += step
            model = model + more
            source = {"x": np.array(more, np.int64)}
            storage.append(f"d@v{number}", f"v{number + 1}", source, shard_bytes=200, allow_empty=True)
        else:
            keep = [index % len(model) for index in step] if model else []
            model = [model[index] for index in keep]
            storage.derive(f"d@v{number}", f"v{number + 1}", keep=keep, allow_empty=True)
    ref = storage.fetch(f"d@v{len(steps)}")
    assert values(ref) == model
    assert storage.verify(f"d@v{len(steps)}")
    shutil.rmtree(storage.url)


def test_kept_numbers_that_changed_are_found(storage: Storage, tmp_path: Path) -> None:
    submit(storage)
    storage.derive("d@v1", "v2", keep=[5, 3, 4])
    (path,) = tmp_path.glob("d/manifests/*.i64")
    for damage in (b"", b"\1" * 16, b"\0" * 24, None):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        with pytest.raises(cachelayer.CorruptionError):
            Storage(tmp_path).fetch("d@v2")
        assert not Storage(tmp_path).verify("d@v2")


@pytest.mark.needs("pyarrow", "pandas")
@pytest.mark.parametrize("kind", ["elements", "arrays", "arrow", "pandas"])
def test_an_append_without_a_column_names_it_in_a_short_message_without_advice_that_append_would_refuse(
    storage: Storage, kind: str
) -> None:
    import pandas as pd
    import pyarrow as pa

    whole = {f"column_number_{number:05}": number for number in range(2000)}
    storage.submit([whole], "wide@v1")
    fewer = {name: value for name, value in whole.items() if not name.endswith("0777")}
    lists = {name: [value] for name, value in fewer.items()}
    made = {
        "elements": lambda: [fewer],
        "arrays": lambda: {name: np.array(value) for name, value in lists.items()},
        "arrow": lambda: pa.table(lists),
        "pandas": lambda: pd.DataFrame(lists),
    }
    with pytest.raises(ValueError, match="column_number_00777") as error:
        storage.append("wide@v1", "v2", made[kind]())
    assert len(str(error.value)) < 1200
    assert "element_spec=" not in str(error.value)


def test_no_message_is_longer_than_a_page(storage: Storage) -> None:
    long = "x" * 100_000
    storage.submit([{long: 1, "b": 2}, {long: 1, "b": 2}], "d@v1")
    storage.submit([{f"x{number}": number for number in range(9000)}], "e@v1")
    calls: list[Any] = [
        lambda: storage.fetch(f"d@{long}"),
        lambda: storage.submit([1], f"{long}@v1"),
        lambda: storage.submit([1], "f@v1", **{long: 1}),
        lambda: storage.submit([{"a": 1}, {long: 1}], "f@v1", element_spec={"a": np.int64}),
        lambda: storage.fetch("d@v1").where(f"b > {'1' * 100_000}"),
        lambda: cachelayer.concat([storage.fetch("d@v1"), storage.fetch("e@v1")]),
        lambda: storage.fetch("d@v1").stream(1).without(steps=slice(0, 1)),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(cachelayer.CacheLayerError) as error:
            call()
        assert len(str(error.value)) < 3000
        assert str(error.value)[:5]


def as_frame(elements: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(elements)


def as_table(elements: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(elements)


SOURCES: dict[str, Any] = {
    "list": list,
    "generator": lambda elements: lambda: iter(elements),
    "table": as_table,
    "frame": as_frame,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_schema_grows_by_fields_that_are_filled_for_the_others(storage: Storage, kind: str) -> None:
    ref = storage.submit([{"id": n, "text": str(n)} for n in range(4)], "g@v1", shard_bytes=64)
    added = [{"id": 9, "lang": 3, "url": "a"}]
    with pytest.raises(cachelayer.CacheLayerError, match="text"):
        storage.append("g@v1", new="v2", source=SOURCES[kind](added))
    grown = storage.append("g@v1", new="v2", source=SOURCES[kind](added), fill={"text": "", "lang": -1, "url": None})
    older = [{"id": n, "text": str(n), "lang": -1, "url": None} for n in range(4)]
    assert list(grown) == [*older, {"id": 9, "text": "", "lang": 3, "url": "a"}]
    assert [leaf.nullable for leaf in grown.element_spec.values()] == [False, False, False, True]
    assert storage.verify("g@v2").ok
    assert storage.diff("g@v1", "g@v2").shared.records == len(ref)
    # It goes on growing, and a run goes on over the fields that it knows.
    again = storage.append("g@v2", new="v3", source=SOURCES[kind]([{"id": 5, "text": "x", "lang": 0, "url": "b"}]))
    assert [element["url"] for element in again[3:]] == [None, "a", "b"]
    iterator = iter(ref.stream(1))
    next(iterator)
    iterator.advance_to(again.fields("id", "text"))
    assert [batch["id"].tolist() for batch in iterator] == [[1], [2], [3], [9], [5]]


def test_fields_that_cannot_be_filled_are_named(storage: Storage) -> None:
    storage.submit([{"id": n, "text": str(n)} for n in range(4)], "g@v1")
    more = [{"id": 9, "text": "", "lang": 3}]
    for source in (more, as_table(more)):
        with pytest.raises(cachelayer.CacheLayerError, match="lang"):
            storage.append("g@v1", new="v2", source=source)
        with pytest.raises(cachelayer.InvalidArgumentError, match="lang"):
            storage.append("g@v1", new="v2", source=source, fill={"lang": "a text"})
        with pytest.raises(cachelayer.InvalidArgumentError, match="other"):
            storage.append("g@v1", new="v2", source=source, fill={"lang": 0, "other": 0})
    storage.derive("g@v1", new="few", keep=[1])
    with pytest.raises(cachelayer.RefusedError, match="few"):
        storage.append("g@few", new="v2", source=more, fill={"lang": 0})
    assert list(storage.versions("g")) == ["v1", "few"]
