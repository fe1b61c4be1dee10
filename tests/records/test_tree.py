"""Nested structures."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples
from strategies import specs, trees

from cachelayer import ArraySpec
from cachelayer.errors import CacheLayerError, ElementError
from cachelayer.records import tree


class Step(NamedTuple):
    observation: Any
    reward: Any


def lookup(value: Any, path: str) -> Any:
    """What Python itself finds at a path."""
    return eval(f"value{path}", {"value": value})


@settings(max_examples=examples(100), deadline=None)
@given(trees(st.integers()))
def test_paths_are_python_that_leads_to_the_leaf(value: Any) -> None:
    for path, leaf in tree.leaf_values(value):
        assert lookup(value, path) == leaf


@settings(max_examples=examples(100), deadline=None)
@given(specs())
def test_packing_undoes_flattening(spec: Any) -> None:
    count = len(tree.leaves(spec))
    packed = tree.packer(spec)(iter(range(count)))
    assert tree.flatten_like(spec, packed) == list(range(count))
    rows = tree.row_packer(spec)([[leaf, leaf + 100] for leaf in range(count)], 2)
    assert [tree.flatten_like(spec, row) for row in rows] == [list(range(count)), list(range(100, 100 + count))]
    assert rows[0] == packed


@settings(max_examples=examples(50), deadline=None)
@given(specs())
def test_packed_elements_share_no_structure(spec: Any) -> None:
    rows = tree.row_packer(spec)([[0, 0]] * len(tree.leaves(spec)), 2)
    if isinstance(rows[0], (dict, list)):
        assert rows[0] is not rows[1]
        rows[0].clear()
        assert len(rows[1]) == len(spec)


def test_namedtuples_come_back_picklable_with_their_name_and_fields() -> None:
    mapped = tree.map_structure(Step(1, namedtuple("Inner", ["x"])(2)), lambda _, leaf: leaf + 1)
    assert type(mapped).__name__ == "Step"
    assert mapped._fields == Step._fields
    assert (mapped.observation, mapped.reward.x) == (2, 3)
    again = pickle.loads(pickle.dumps(mapped))
    assert again == mapped
    assert type(again) is type(mapped)
    assert type(again.reward) is type(mapped.reward)


def test_mappings_of_any_class_are_dicts_in_their_own_order() -> None:
    mapped = tree.map_structure(OrderedDict(b=1, a=2), lambda _, leaf: leaf)
    assert type(mapped) is dict
    assert list(mapped) == ["b", "a"]


def test_keys_in_another_order_are_the_same_structure() -> None:
    spec = {"b": ArraySpec("int64"), "a": ArraySpec("int64")}
    assert tree.flatten_like(spec, {"a": 1, "b": 2}) == [2, 1]


@pytest.mark.parametrize("key", [1, None, (1,), b"a"])
def test_keys_that_are_no_str_are_refused(key: Any) -> None:
    with pytest.raises(ElementError, match="str keys") as caught:
        tree.map_structure({"a": [{key: 1}]}, lambda _, leaf: leaf)
    assert caught.value.path == "['a'][0]"
    assert repr(key) in caught.value.got


def test_a_namedtuple_that_cannot_be_named_again_is_refused() -> None:
    renamed = namedtuple("Row", ["class"], rename=True)
    with pytest.raises(CacheLayerError, match="Row"):
        tree.map_structure(renamed(1), lambda _, leaf: leaf)


def outcome(call: Any) -> Any:
    try:
        return call()
    except ElementError as error:
        return error.record, error.path, error.expected, error.got


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
@pytest.mark.slow
def test_rows_are_flattened_at_once_as_one_by_one(data: st.DataObject) -> None:
    spec = data.draw(specs())
    like = tree.packer(spec)(iter(range(len(tree.leaves(spec)))))
    others = st.sampled_from([like, list(like) if isinstance(like, tuple) else like, {}, (), None, 3, {"a": 1}])
    rows = data.draw(st.lists(st.one_of(st.just(like), others), max_size=4))

    def one_by_one() -> list[list[Any]]:
        flat = []
        for number, row in enumerate(rows):
            try:
                flat.append(tree.flatten_like(spec, row))
            except ElementError as error:
                raise error.at(record=number) from None
        return [[row[index] for row in flat] for index in range(len(tree.leaves(spec)))]

    assert outcome(lambda: tree.flatten_rows(spec, rows)) == outcome(one_by_one)
