"""Nested structures."""

import pickle
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples
from strategies import trees

from cachelayer import ArraySpec
from cachelayer.errors import CacheLayerError, ElementError
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema


class Step(NamedTuple):
    observation: Any
    reward: Any


INT = ArraySpec("int64")


def lookup(value: Any, path: str) -> Any:
    """What Python itself finds at a path."""
    return eval(f"value{path}", {"value": value})


@settings(max_examples=examples(100), deadline=None)
@given(trees(st.integers()))
def test_paths_are_python_that_leads_to_the_leaf(value: Any) -> None:
    for path, leaf in tree.leaf_values(value):
        assert lookup(value, path) == leaf


def test_namedtuples_come_back_picklable_with_their_name_and_fields() -> None:
    mapped = tree.map_structure(Step(1, namedtuple("Inner", ["x"])(2)), lambda _, leaf: leaf + 1)
    assert type(mapped).__name__ == "Step"
    assert mapped._fields == Step._fields
    assert (mapped.observation, mapped.reward.x) == (2, 3)
    again = pickle.loads(pickle.dumps(mapped))
    assert again == mapped
    assert type(again) is type(mapped)
    assert type(again.reward) is type(mapped.reward)


def test_mappings_of_any_class_are_dicts_in_their_own_order_and_keys_come_in_any() -> None:
    mapped = tree.map_structure(OrderedDict(b=1, a=2), lambda _, leaf: leaf)
    assert type(mapped) is dict
    assert list(mapped) == ["b", "a"]
    assert Schema.of({"b": INT, "a": INT}).flatten({"a": 1, "b": 2}) == [2, 1]


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
