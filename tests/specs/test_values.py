"""Ragged, sparse and nullable values."""

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import examples
from strategies import random_leaf, same_leaf

from cachelayer import ArraySpec, InvalidArgumentError, InvalidTypeError, Nullable, Ragged, RaggedSpec, Sparse
from cachelayer.records.codec import codec_for


@settings(max_examples=examples(100), deadline=None)
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


def test_values_take_lists_and_a_sparse_array_of_strings_has_empty_ones_elsewhere() -> None:
    assert Ragged([1, 2, 3], [0, 1, 3]).to_list() == [[1], [2, 3]]  # type: ignore[arg-type]
    sparse = Sparse([[0, 1]], [5], [2, 3])  # type: ignore[arg-type]
    assert sparse.to_dense().tolist() == [[0, 5, 0], [0, 0, 0]]
    assert "dense_shape=[2, 3]" in repr(sparse)
    for items, empty in ((["a"], ""), ([b"a"], b"")):
        sparse = Sparse(np.array([[1]]), np.array(items, object), np.array([2]))
        assert sparse.to_dense().tolist() == [empty, items[0]]


def ragged_of(rows: list[list[Any]], dtype: Any = np.int32) -> Ragged:
    flat = [value for row in rows for value in row]
    return Ragged(np.array(flat, dtype), np.cumsum([0, *map(len, rows)]))


ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=6)


@settings(deadline=None)
@example([[1], [2, 3, 4]], 2, 0, False)
@given(ROWS, st.one_of(st.none(), st.integers(0, 7)), st.sampled_from([0, -100, 7]), st.booleans())
def test_rows_are_filled_up_behind_their_ends(rows: list[list[int]], length: int | None, value: int, cut: bool) -> None:
    width = max(map(len, rows), default=0) if length is None else length
    longer = [number for number, row in enumerate(rows) if len(row) > width]
    if longer and not cut:
        with pytest.raises(InvalidArgumentError, match=rf"more than {width}: pass a larger length, or truncate=True"):
            ragged_of(rows).to_dense(length, value)
        return
    dense = ragged_of(rows).to_dense(length, value, truncate=cut)
    assert (dense.shape, dense.dtype) == ((len(rows), width), np.int32)
    assert dense.tolist() == [(row + [value] * width)[:width] for row in rows]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5))
def test_every_level_is_filled_up_and_rows_that_are_arrays_keep_their_shapes(shapes: list[tuple[int, int]]) -> None:
    images = [np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3) for height, width in shapes]
    codec = codec_for(ArraySpec(np.uint8, (None, None, 3)))
    batch = codec.batch(codec.columns(images))
    for row, image in zip(pickle.loads(pickle.dumps(batch)), images, strict=True):
        np.testing.assert_array_equal(row, image)
    expected = np.full((len(images), 5, 6, 3), 9, np.uint8)
    for filled, image in zip(expected, images, strict=True):
        filled[: image.shape[0], : image.shape[1]] = image
    np.testing.assert_array_equal(batch.to_dense((5, 6), 9), expected)
    longest = max(height for height, _ in shapes)
    widest = max((width for height, width in shapes if height), default=0)
    assert batch.to_dense().shape == (len(images), longest, widest, 3)
    assert batch.to_dense((1, None), truncate=True).shape == (len(images), 1, widest, 3)


@pytest.mark.parametrize(
    ("values", "value", "expected"),
    [
        (np.array(["a", "b", "c"], object), 0, ""),
        (np.array([b"a", b"b", b"c"], object), 0, b""),
        (np.array([b"a", b"b", b"c"], object), b"x", b"x"),
        (np.array(["a", "b", "c"]), 0, ""),
        (np.array([1.0, 2, 3], np.float16), 0.1, np.float16(0.1)),
        (np.array([1.0, 2, 3]), float("-inf"), float("-inf")),
        (np.array([True, False, True]), True, True),
        (np.array([1, 2, 3], "M8[s]"), 0, np.datetime64(0, "s")),
    ],
)
def test_rows_of_any_dtype_are_filled_up(values: Any, value: Any, expected: Any) -> None:
    dense = Ragged(values, np.array([0, 1, 3])).to_dense(value=value)
    assert dense.dtype == values.dtype
    assert dense[0, 1] == expected


WRONG_FILLERS: list[tuple[Any, Any]] = [(np.zeros(3, np.int32), value) for value in (0.5, float("nan"), "x", None)]
WRONG_FILLERS += [(np.zeros(3, np.uint8), -100), (np.zeros(3), [1, 2]), (np.zeros(3, bool), 2)]
WRONG_FILLERS += [(np.array(["a", "b", "c"]), "long"), (np.array(["a", "b", "c"], object), b"x")]


@pytest.mark.parametrize(("values", "value"), WRONG_FILLERS)
def test_a_filler_that_the_dtype_does_not_hold_is_refused(values: Any, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit dtype"):
        Ragged(values, np.array([0, 1, 3])).to_dense(value=value)


LENGTHS = [
    (1.5, InvalidTypeError),
    (True, InvalidTypeError),
    (-1, InvalidArgumentError),
    ((3, 3), InvalidArgumentError),
]


@pytest.mark.parametrize(("length", "error"), LENGTHS)
def test_a_length_that_cannot_be_is_refused(length: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="length"):
        ragged_of([[1], [2, 3]]).to_dense(length)


@pytest.mark.parametrize("row", [slice(2), True, 1.0, None, "0"])
def test_a_row_is_taken_by_an_integer(row: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"row .*pass an integer"):
        ragged_of([[1], [2, 3]])[row]


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (ragged_of([[1], [2]]), r"a Ragged is not an array: call to_dense\(\)"),
        (Sparse(np.zeros((1, 1), np.int64), np.ones(1), np.array([2])), r"a Sparse is not an array: call to_dense\(\)"),
        (Nullable(np.zeros(2), np.ones(2, bool)), r"a Nullable is not an array: use filled\(value\)"),
    ],
)
def test_what_is_no_array_becomes_none_by_chance(value: Any, advice: str) -> None:
    for call in (np.asarray, np.mean, lambda value: np.zeros(2) + value, lambda value: np.stack([value, value])):
        with pytest.raises(InvalidTypeError, match=advice):
            call(value)


def test_a_nullable_column_becomes_an_array_with_a_value_in_its_null_rows() -> None:
    column = Nullable(np.array([1, 0, 3], np.int8), np.array([True, False, True]))
    assert column.filled(-1).tolist() == [1, -1, 3]
    assert column.mask.tolist() == (~column.valid).tolist() == [False, True, False]
    assert column.values.tolist() == [1, 0, 3]
    with pytest.raises(InvalidTypeError):
        column.filled("many")
