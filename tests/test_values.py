"""Ragged, sparse and nullable values."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_leaf, same_leaf

from cachelayer import Nullable, Ragged, RaggedSpec, Sparse


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(0, 2), max_size=2), st.integers(0, 2**32))
def test_rows_of_a_ragged_are_what_its_splits_say(rank: int, inner: list[int], seed: int) -> None:
    shape = (None, *[None] * rank, *inner)
    ragged = random_leaf(np.random.default_rng(seed), RaggedSpec("int64", shape, ragged_rank=rank))

    def nested(flat: list[object], levels: tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]) -> list[object]:
        for level in reversed(levels):
            flat = [flat[start:stop] for start, stop in pairwise(level)]
        return flat

    expected = nested(ragged.flat_values.tolist(), ragged.nested_row_splits)
    assert ragged.to_list() == expected
    assert len(ragged) == len(expected)
    for row in range(-len(ragged), len(ragged)):
        found = ragged[row]
        assert (found.to_list() if isinstance(found, Ragged) else found.tolist()) == expected[row]
    for outside in (len(ragged), -len(ragged) - 1):
        with pytest.raises(IndexError, match=str(outside)):
            ragged[outside]
    assert same_leaf(ragged, pickle.loads(pickle.dumps(ragged)))


def test_values_take_lists() -> None:
    ragged = Ragged([1, 2, 3], [0, 1, 3])  # type: ignore[arg-type]
    assert ragged.to_list() == [[1], [2, 3]]
    sparse = Sparse([[0, 1]], [5], [2, 3])  # type: ignore[arg-type]
    assert sparse.to_dense().tolist() == [[0, 5, 0], [0, 0, 0]]
    assert "rows=2" in repr(ragged)
    assert "dense_shape=[2, 3]" in repr(sparse)


def test_a_ragged_needs_row_splits() -> None:
    with pytest.raises(TypeError, match="row splits"):
        Ragged.from_nested(np.zeros(3), ())


def test_a_sparse_array_of_strings_has_empty_ones_elsewhere() -> None:
    for items, empty in ((["a"], ""), ([b"a"], b"")):
        sparse = Sparse(np.array([[1]]), np.array(items, object), np.array([2]))
        assert sparse.to_dense().tolist() == [empty, items[0]]


def test_a_nullable_has_the_length_of_its_column() -> None:
    assert len(Nullable(np.zeros((3, 2)), np.array([True, False, True]))) == 3
