"""Proposals of element specs: Python text that makes a spec which fits what did not fit."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, ElementError, ImageSpec
from cachelayer.records.infer import from_element
from cachelayer.records.wider_spec import as_code, wider

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("first", "later", "code"),
    [
        ({"t": [1, 2, 3]}, {"t": [1]}, "{'t': ArraySpec('int64', (None,))}"),
        ({"t": [1.0, 2.0]}, {"t": []}, "{'t': ArraySpec('float64', (None,))}"),
        (np.zeros((2, 3), np.uint8), np.zeros((4, 3), np.uint8), "ArraySpec('uint8', (None, 3))"),
        ({"a": {"b": np.zeros(2)}}, {"a": {"b": np.zeros(3)}}, "{'a': {'b': ArraySpec('float64', (None,))}}"),
        ({"p": np.zeros(1), "q": (b"x",)}, {"p": np.zeros(2), "q": (b"y",)},
         "{'p': ArraySpec('float64', (None,)), 'q': (ArraySpec(bytes),)}"),
    ],
)  # fmt: skip
def test_the_error_for_a_later_element_proposes_a_spec_that_builds(
    tmp_path: Any, first: Any, later: Any, code: str
) -> None:
    storage = cachelayer.Storage(tmp_path)
    with pytest.raises(ElementError) as caught:
        storage.cache(iter([first, later]), "rows", "v1")
    assert f"element_spec={code}." in str(caught.value)
    assert len(storage.cache([first, later], "rows", "v1", element_spec=eval(code))) == 2


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (np.float32(1), np.float64(1)),
        (np.zeros(2), np.zeros((2, 2))),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, [1]),
        ({"a": [1, "x"]}, {"a": [1]}),
        ("text", b"bytes"),
        ({"a": 1}, {"a": 1, "b": 2}),
    ],
)
def test_nothing_is_proposed_if_no_wider_spec_is_likely(tmp_path: Any, first: Any, later: Any) -> None:
    with pytest.raises(ElementError) as caught:
        cachelayer.Storage(tmp_path).cache(iter([first, later]), "rows", "v1")
    assert "pass element_spec=" not in str(caught.value)


def test_keys_that_a_declared_spec_of_parts_lacks_are_proposed(tmp_path: Any) -> None:
    storage = cachelayer.Storage(tmp_path)
    rows = [{"t": [1, 2, 3], "label": "a"}, {"t": [], "label": "b"}]
    code = "{'t': ArraySpec('int32', (None,)), 'label': ArraySpec(str)}"
    parts = cachelayer.sharded(lambda _part, _parts: rows, 1)
    with pytest.raises(ElementError) as caught:
        storage.cache(parts, "rows", "v1", element_spec={"t": ArraySpec("int32", (None,))})
    assert f"element_spec={code}." in str(caught.value)
    assert storage.cache(rows, "rows", "v1", element_spec=eval(code))[1]["label"] == "b"


def test_code_shows_every_structure_and_is_left_out_if_it_is_long() -> None:
    assert as_code(Point(ArraySpec(str), [ImageSpec()])) == "Point(x=ArraySpec(str), y=[ImageSpec(mode='RGB')])"
    assert as_code(ArraySpec("bfloat16", (2,), nullable=True)) == "ArraySpec('bfloat16', (2,), nullable=True)"
    assert as_code({str(number): ArraySpec(str) for number in range(100)}) == ""


def test_a_spec_that_fits_is_not_proposed_again() -> None:
    element = {"a": np.zeros((2, 3)), "b": "text"}
    assert wider(from_element(element), element) is None
