"""What can be a source, and what cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec
from cachelayer.builds.batches import MAX_BATCH_RECORDS, batch_records
from cachelayer.builds.source import as_source
from cachelayer.errors import CacheLayerError, ElementError, InvalidTypeError, SourceError


def test_arrays_give_their_rows(storage: cachelayer.Storage) -> None:
    arrays = {"a": np.arange(3000, dtype=">i4"), "b": {"c": np.arange(6000.0).reshape(3000, 2)[::-1]}}
    ref = storage.submit(arrays, "arrays", "v1")
    assert ref.element_spec == {"a": ArraySpec("int32"), "b": {"c": ArraySpec("float64", (2,))}}
    read = ref.read(range(3000))
    np.testing.assert_array_equal(read["a"], arrays["a"])
    np.testing.assert_array_equal(read["b"]["c"], arrays["b"]["c"])  # type: ignore[call-overload]
    assert len(storage.submit(np.zeros((5, 2)), "array", "v1", max_records=3)) == 3
    assert len(storage.submit(np.zeros((0, 2)), "array", "v2", allow_empty=True)) == 0


def test_arrays_take_a_declared_spec(storage: cachelayer.Storage) -> None:
    arrays = {"text": np.array([b"a", b"bcd"]), "wide": np.array(["a", "bc"])}
    ref = storage.submit(arrays, "arrays", "v1", element_spec={"text": bytes, "wide": "U4"})
    assert ref.read([0, 1])["text"].tolist() == [b"a", b"bcd"]
    assert ref.read([0, 1])["wide"].dtype == np.dtype("U4")
    assert ref[1]["wide"] == "bc"
    with pytest.raises(ElementError) as caught:
        storage.submit({"x": np.zeros(3)}, "arrays", "v2", element_spec={"x": "float32"})
    assert (caught.value.path, caught.value.expected, caught.value.got) == ("['x']", "float32", "float64[]")


@pytest.mark.parametrize(
    "make",
    [
        lambda: [{"i": i} for i in range(5)],
        lambda: ({"i": i} for i in range(5)),
        lambda: lambda: ({"i": i} for i in range(5)),
        lambda: lambda: [{"i": i} for i in range(5)],
        lambda: ({"i": i} for i in range(5)).__iter__,
        lambda: ({"i": np.int64(i)} for i in range(5)),
        lambda: {"i": np.arange(5)},
    ],
)
def test_anything_that_gives_elements_is_a_source(storage: cachelayer.Storage, make: Any) -> None:
    assert [row["i"] for row in storage.submit(make(), "numbers", "v1")] == [0, 1, 2, 3, 4]


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


def test_a_source_that_fails_names_the_record() -> None:
    def failing() -> Iterator[int]:
        yield from range(MAX_BATCH_RECORDS + 3)
        raise OSError("the disk is gone")

    batches = as_source(failing()).batches(None)
    assert len(next(batches)) == MAX_BATCH_RECORDS
    with pytest.raises(SourceError, match=f"record {MAX_BATCH_RECORDS + 3}: OSError") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, OSError)


def test_batches_stay_small() -> None:
    assert batch_records(0) == batch_records(1) == MAX_BATCH_RECORDS
    assert batch_records(1e12) == 1
    large = [len(batch) for batch in as_source([np.zeros(1 << 21, np.uint8)] * 5).batches(None)]
    assert large == [2, 2, 1]


def test_a_function_that_fails_before_it_returns_a_source_is_named() -> None:
    def load() -> list[int]:
        raise FileNotFoundError("no train.csv")

    with pytest.raises(SourceError, match=r"train\.csv") as caught:
        as_source(load)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
