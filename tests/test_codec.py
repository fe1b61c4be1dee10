"""Elements to records and back, by elements and by batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import ML_DTYPES, NUMPY_DTYPES, bits, random_leaf, same, same_array, same_leaf, specs, versions

from cachelayer import ArraySpec, Nullable, Ragged, RaggedSpec, Sparse, SparseSpec
from cachelayer.codec import Codec, RawCodec, RecordBuffer, TypedCodec, codec_for, codec_named
from cachelayer.elements import tree
from cachelayer.elements.infer import from_element, from_elements
from cachelayer.elements.spec import LeafSpec
from cachelayer.errors import CorruptionError, ElementError, FormatError


def stored(codec: Codec, elements: list[Any]) -> RecordBuffer:
    return RecordBuffer.of(codec.encode(codec.columns(elements), len(elements)).to_list())


def round_trip(spec: Any, elements: list[Any]) -> list[Any]:
    codec = codec_for(spec)
    return codec.elements(codec.decode(stored(codec, elements)), len(elements))


def leaf_columns(spec: Any, elements: list[Any]) -> list[list[Any]]:
    rows = [tree.flatten_like(spec, element) for element in elements]
    return [[row[index] for row in rows] for index in range(len(tree.leaves(spec)))]


def splits(lengths: list[int]) -> np.ndarray[Any, Any]:
    return np.cumsum([0, *lengths])


def check_stack(spec: LeafSpec, rows: list[Any], batch: Any) -> None:
    """Whether a batch is the stack of these rows, by the plainest reckoning there is."""
    if isinstance(spec, SparseSpec):
        assert batch.dense_shape.tolist() == [len(rows), *(max((r.dense_shape[i] for r in rows), default=0) for i in range(len(spec.shape)))]
        placed = [[number, *place] for number, row in enumerate(rows) for place in row.indices.tolist()]
        assert batch.indices.tolist() == placed
        assert batch.indices.shape == (len(placed), len(spec.shape) + 1)
        flats = [row.values for row in rows]
        got = batch.values
    elif isinstance(spec, RaggedSpec):
        inner = spec.shape[spec.ragged_rank + 1 :]
        if None in inner:
            assert batch.dtype == object
            assert all(map(same_leaf, rows, batch))
            return
        levels = [[len(row) for row in rows]]
        for level in range(spec.ragged_rank):
            levels.append([int(n) for row in rows for n in np.diff(row.nested_row_splits[level])])
        assert [s.tolist() for s in batch.nested_row_splits] == [splits(level).tolist() for level in levels]
        flats, got = [row.flat_values for row in rows], batch.flat_values
        assert got.shape[1:] == inner
    elif None in spec.shape:
        known = len(spec.shape) - 1 - spec.shape[::-1].index(None)
        levels = [[row.shape[0] for row in rows]]
        for axis in range(1, known + 1):
            levels.append([row.shape[axis] for row in rows for _ in range(int(np.prod(row.shape[:axis])))])
        assert [s.tolist() for s in batch.nested_row_splits] == [splits(level).tolist() for level in levels]
        flats, got = [row for row in rows], batch.flat_values
        assert got.shape == (sum(int(np.prod(row.shape[: known + 1])) for row in rows), *spec.shape[known + 1 :])
    else:
        flats, got = [np.asarray(row, object if isinstance(row, (bytes, str)) else None) for row in rows], batch
        assert got.shape == (len(rows), *spec.shape)
    assert got.dtype == (object if spec.dtype in (bytes, str) else spec.dtype)
    assert bits(got) == (b"" if got.dtype != object else []) + sum((list(bits(f)) for f in flats), []) if got.dtype == object else bits(got) == b"".join(bits(f) for f in flats)


@settings(max_examples=250, deadline=None)
@given(versions())
def test_elements_come_back_exactly(version: tuple[Any, list[Any]]) -> None:
    spec, elements = version
    assert all(map(same, elements, round_trip(spec, elements)))
    assert len(round_trip(spec, elements)) == len(elements)


@settings(max_examples=250, deadline=None)
@given(versions())
def test_a_batch_is_the_stack_of_its_elements(version: tuple[Any, list[Any]]) -> None:
    spec, elements = version
    codec = codec_for(spec)
    batch = codec.batch(codec.decode(stored(codec, elements)))
    found = tree.flatten_like(spec, batch)
    for (_, leaf), rows, got in zip(tree.leaves(spec), leaf_columns(spec, elements), found, strict=True):
        if leaf.nullable:
            assert isinstance(got, Nullable)
            assert got.valid.tolist() == [row is not None for row in rows]
            if all(got.valid):
                check_stack(leaf, rows, got.values)
        else:
            check_stack(leaf, rows, got)
