"""Any object with a length and items, as a ref."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, InvalidArgumentError, InvalidTypeError, RecordIndexError

ELEMENTS = [{"x": np.full((2,), i, np.float32), "name": f"n{i}"} for i in range(7)]


class Items:
    """What torch calls a map-style dataset, with batched access."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        raise AssertionError("asked one by one")

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [index * 2 for index in indices]


def test_items_are_handed_out_as_they_are_and_belong_to_the_caller() -> None:
    ref = cachelayer.wrap(ELEMENTS, identity="elements")
    assert len(ref) == 7
    for mine, theirs in ((ref[0], ELEMENTS[0]), (ref[-1], ELEMENTS[-1]), (ref[2:5][1], ELEMENTS[3])):
        assert mine["name"] == theirs["name"]
        assert mine["x"].tolist() == theirs["x"].tolist()
    taken = ref.__getitems__([4, -1])[0]
    taken["x"] += 1
    assert taken["x"].tolist() != ELEMENTS[4]["x"].tolist()
    assert [element["name"] for element in ref] == [f"n{i}" for i in range(7)]
    with pytest.raises(RecordIndexError):
        ref[7]


def test_batches_are_stacked_like_those_of_cached_records(tmp_path: Any) -> None:
    wrapped = cachelayer.wrap(ELEMENTS, identity="elements")
    cached = cachelayer.Storage(tmp_path).submit(ELEMENTS, "elements", "v1")
    assert wrapped.element_spec == cached.element_spec == {"x": ArraySpec(np.float32, (2,)), "name": ArraySpec(str)}
    for indices in ([], [3], [5, 0, -1]):
        for fields in (None, ("x",), ["name", "x"]):
            ours, theirs = wrapped.read(indices, fields), cached.read(indices, fields)
            assert list(ours) == list(theirs)
            for name in ours:
                assert ours[name].dtype == theirs[name].dtype
                np.testing.assert_array_equal(ours[name], theirs[name])
    for ours, theirs in zip(wrapped.stream(3), cached.stream(3), strict=True):
        np.testing.assert_array_equal(ours["x"], theirs["x"])


def test_writing_into_a_batch_leaves_the_object_alone() -> None:
    ref = cachelayer.wrap(ELEMENTS, identity="elements")
    for indices in ([0], [0, 1]):
        ref.read(indices)["x"][:] = 99
    assert ELEMENTS[0]["x"].tolist() == [0, 0]


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no field 'y'"):
        cachelayer.wrap(ELEMENTS, identity="elements").read([0], ("y",))


def test_items_are_asked_for_together_where_the_object_can() -> None:
    items = Items()
    ref = cachelayer.wrap(items, identity="items")
    assert ref.read([3, -1]).tolist() == [6, 38]
    assert items.asked == [[3, 19]]
    assert [batch.tolist() for batch in ref.stream(10, prefetch=0)] == [list(range(0, 20, 2)), list(range(20, 40, 2))]


def test_the_identity_and_the_length_decide_the_digest() -> None:
    def digest(records: int, identity: str) -> str:
        return cachelayer.wrap(range(records), identity=identity).digest

    assert digest(5, "a") == cachelayer.wrap([0] * 5, identity="a").digest
    assert digest(5, "a") == hashlib.sha256(b"wrap:5:a").hexdigest()
    assert len({digest(5, "a"), digest(6, "a"), digest(5, "b")}) == 3
    assert cachelayer.wrap(range(5), identity="a")[1:].digest != digest(4, "a")


def test_a_ref_says_what_it_is() -> None:
    ref = cachelayer.wrap(range(5), identity="five")
    assert repr(ref) == f"WrappedRef('five', records=5, digest='sha256:{ref.digest}')"
    assert repr(ref) == repr(cachelayer.wrap(range(5), identity="five"))


def test_a_ref_is_pickled_with_its_object() -> None:
    view = pickle.loads(pickle.dumps(cachelayer.wrap(list(range(10)), identity="ten")[::3]))
    assert list(view) == [0, 3, 6, 9]
    assert view.digest == cachelayer.wrap(list(range(10)), identity="ten")[::3].digest


def test_an_empty_object_is_an_empty_ref() -> None:
    ref: Any = cachelayer.wrap([], identity="nothing")
    assert len(ref) == 0
    assert list(ref) == []
    with pytest.raises(IndexError):
        ref[0]


@pytest.mark.parametrize("obj", [5, iter([1]), (i for i in range(3)), {1, 2}, None])
def test_what_has_no_length_or_items_is_refused(obj: Any) -> None:
    with pytest.raises(InvalidTypeError, match=f"a {type(obj).__name__} has no __len__ and __getitem__"):
        cachelayer.wrap(obj, identity="x")


@pytest.mark.parametrize("identity", ["", None, 5, b"x"])
def test_an_identity_is_a_text(identity: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"identity .* pass a text that names the contents"):
        cachelayer.wrap([1], identity=identity)


def test_a_declared_spec_holds_for_every_batch() -> None:
    rows = [{"v": np.arange(n % 3), "n": None if n == 1 else float(n)} for n in range(6)]
    spec = {"v": cachelayer.ArraySpec("int64", (None,)), "n": cachelayer.ArraySpec("float64", nullable=True)}
    ref = cachelayer.wrap(rows, identity="rows", element_spec=spec)
    for batch in ref.stream(1):
        assert isinstance(batch["v"], cachelayer.Ragged)
        assert isinstance(batch["n"], cachelayer.Nullable)
    assert ref.element_spec == spec
