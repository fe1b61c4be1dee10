"""A version without records is published only by those who say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage
from cachelayer.errors import InvalidArgumentError, SourceError


def _nothing(_number: int, _count: int) -> list[int]:
    return []


EMPTY: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a list": (list, {}),
    "an iterator": (lambda: iter(()), {}),
    "an array": (lambda: np.empty((0, 3)), {}),
    "arrays": (lambda: {"a": np.empty(0)}, {}),
    "a function": (lambda: list, {}),
    "batches without rows": (lambda: [{"x": np.empty(0)}], {"unbatch": True}),
    "no records wanted": (lambda: [1, 2], {"max_records": 0}),
    "parts": (lambda: cachelayer.sharded(_nothing, 3), {}),
}


@pytest.mark.parametrize(("make", "options"), EMPTY.values(), ids=EMPTY)
def test_an_empty_version_is_made_only_if_it_may_be(storage: Storage, make: Any, options: dict[str, Any]) -> None:
    for build in (storage.cache, storage.submit):
        with pytest.raises(SourceError, match=r"d@v1: .*allow_empty=True"):
            build(make(), "d", "v1", progress=False, **options)
        assert storage.datasets() == []
    ref = storage.cache(make(), "d@v1", allow_empty=True, **options)
    assert (len(ref), list(ref), list(ref.stream(4)), len(ref.stream(4, shuffle=True, seed=1))) == (0, [], [], 0)
    assert storage.verify("d@v1")
    with pytest.raises(IndexError):
        ref[0]


def test_leaving_out_all_elements_names_the_first(storage: Storage) -> None:
    with pytest.raises(SourceError, match="record 0"):
        storage.cache([1, 2], "d@v1", element_spec=str, on_error="skip")
    with pytest.warns(cachelayer.CacheLayerWarning, match="2 of 2 records were left out"):
        assert len(storage.cache([1, 2], "d@v1", element_spec=str, on_error="skip", allow_empty=True)) == 0


@pytest.mark.parametrize("keep", [[], [False, False]])
def test_deriving_nothing_is_refused_unless_it_is_allowed(storage: Storage, keep: Any) -> None:
    storage.submit([1, 2], "d@v1")
    with pytest.raises(InvalidArgumentError, match="d@v2"):
        storage.derive("d@v1", "v2", keep=keep)
    assert len(storage.derive("d@v1", "v2", keep=keep, allow_empty=True)) == 0
