"""Proposals of element specs: Python text that makes a spec which fits what did not fit."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, ElementError  # noqa: F401

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
