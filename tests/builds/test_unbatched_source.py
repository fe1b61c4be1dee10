"""Batches that are taken apart: encoded at once if their leaves are arrays and Ragged, with the bytes of elements."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import versions

from cachelayer import ArraySpec, Ragged, RaggedSpec, Storage
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import ElementBatch, RowBatch
from cachelayer.builds.encode import Encoder
from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, SourceError
from cachelayer.records.codec import codec_for
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema

TOKENS = {"tokens": ArraySpec("int32", (None,)), "id": ArraySpec("int64")}


def encoded(spec: Any, batch: Any) -> list[bytes]:
    return Encoder(codec_for(spec)).encode(batch).to_list()


def are_arrays(batch: Any) -> bool:
    leaves = [leaf.flat_values if isinstance(leaf, Ragged) else leaf for _, leaf in tree.leaf_values(batch)]
    return all(type(leaf) is np.ndarray for leaf in leaves)


def swapped(_path: str, leaf: Any) -> Any:
    """The same values in the other byte order, every second of an array that is twice as long."""
    if isinstance(leaf, Ragged):
        return Ragged(swapped("", leaf.values), leaf.row_splits.astype(leaf.row_splits.dtype.newbyteorder()))
    other = np.empty((2 * len(leaf), *leaf.shape[1:]), leaf.dtype.newbyteorder())
    other[::2] = leaf
    return other[::2]


def with_splits_of(spec: Any, batch: Any) -> Any:
    """The batch with inner row splits of the dtype that the spec names: our own batches have int64 everywhere."""

    def cast(leaf: Any, values: Any) -> Any:
        if not isinstance(leaf, RaggedSpec) or not isinstance(values, Ragged):
            return values
        outer, *inner = values.nested_row_splits
        return Ragged.from_nested(values.flat_values, (outer, *(each.astype(leaf.splits_dtype) for each in inner)))

    leaves = [leaf for _, leaf in tree.leaves(spec)]
    schema = Schema.of(spec)
    return schema.pack(list(map(cast, leaves, schema.flatten(batch))))


@given(versions(max_rows=6), st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_rows_together_have_the_bytes_of_elements(version: Any, start: int, stop: int, swap: bool) -> None:
    spec, elements = version
    # A Ragged does not say how wide arrays without rows are, so such batches are refused.
    assume(not any(0 in leaf.shape and None in leaf.shape for _, leaf in tree.leaves(spec)))
    codec = codec_for(spec)
    batch = with_splits_of(spec, codec.batch(codec.columns(elements)))
    start, stop = min(start, stop, len(elements)), min(max(start, stop), len(elements))
    if start == stop or not tree.leaves(spec) or not are_arrays(batch):
        return
    if swap:
        # The shapes of images are in no Ragged that is made anew.
        assume(not any(leaf.shape.count(None) > 1 for _, leaf in tree.leaves(spec) if isinstance(leaf, ArraySpec)))
        batch = tree.map_structure(batch, swapped)
    some = RowBatch(batch, len(elements))[start:stop]
    assert encoded(spec, some) == encoded(spec, ElementBatch(elements[start:stop]))


def documents(lengths: list[int], **other: Any) -> dict[str, Any]:
    splits = np.cumsum([0, *lengths])
    tokens = np.arange(splits[-1], dtype=np.int32)
    return {"tokens": Ragged(tokens, splits), "id": np.arange(len(lengths)), **other}


@pytest.mark.parametrize(
    ("splits", "row"), [([0, 4, 2, 6], 1), ([0, 2, 4, 9], 2), ([-2, 2, 4, 6], 0)], ids=["backwards", "after", "before"]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_rows_that_do_not_lie_in_the_values_are_refused_with_their_record(
    splits: list[int], row: int, depth: int
) -> None:
    good, bad = (Ragged(np.arange(6, dtype=np.int32), np.array(each)) for each in ([0, 2, 4, 6], splits))
    if depth == 2:
        good, bad = (Ragged(each, np.array([0, 1, 2, 3])) for each in (good, bad))
    source = as_source([{"tokens": good}, {"tokens": bad}], unbatch=True)
    with pytest.raises(ElementError, match=f"record {3 + row}, leaf .'tokens'.*within the values"):
        list(source.batches())


CHANGES: dict[str, dict[str, Any]] = {
    "another dtype": {"tokens": Ragged(np.arange(40), np.arange(0, 41, 2))},
    "another rank": {"tokens": Ragged(np.zeros((40, 2), np.int32), np.arange(0, 41, 2))},
    "None among them": {"id": np.array([*range(19), None], object)},
    "no Ragged": {"tokens": np.zeros((20, 3), np.int32)},
    "Python numbers": {"id": np.arange(20).astype(object)},
    "masked": {"id": np.ma.masked_array(np.arange(20), np.arange(20) % 2)},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_does_not_fit_at_once_is_what_it_is_one_by_one(change: dict[str, Any]) -> None:
    batch = documents([2] * 20) | change
    rows = [{name: leaf[row] for name, leaf in batch.items()} for row in range(20)]

    def outcome(batches: Iterator[Any]) -> Any:
        encoder = Encoder(codec_for(TOKENS))
        try:
            return [raw for each in batches for raw in encoder.encode(each).to_list()], encoder.result.nullable
        except CacheLayerError as error:
            return str(error)

    apart = as_source([documents([2] * 20), batch], unbatch=True).batches()
    first = [{"tokens": np.arange(2 * row, 2 * row + 2, dtype=np.int32), "id": row} for row in range(20)]
    assert outcome(apart) == outcome(as_source([*first, *rows]).batches())


def test_elements_that_do_not_fit_are_left_out_of_a_batch(tmp_path: Path) -> None:
    ids = np.array([*range(19), "x"], object)
    batches = [documents([2] * 20), documents([2] * 20, id=ids)]
    with pytest.warns(match="1 of 40 records were left out"):
        ref = Storage(tmp_path).cache(batches, "d@v1", element_spec=TOKENS, unbatch=True, on_error="skip")
    assert [row["id"] for row in ref] == [*range(20), *range(19)]


def test_no_batch_is_drawn_after_the_last_record() -> None:
    def batches() -> Iterator[Any]:
        yield documents([1] * 20)
        yield documents([1] * 20)
        raise OSError("the disk is gone")

    assert sum(map(len, as_source(batches(), unbatch=True).batches(stop=40))) == 40
    with pytest.raises(SourceError, match="record 40: OSError"):
        list(as_source(batches(), unbatch=True).batches(stop=41))


def test_a_dict_of_arrays_is_refused_because_its_rows_are_elements_already() -> None:
    columns = {"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}
    with pytest.raises(InvalidArgumentError, match="unbatch=True"):
        as_source(columns, unbatch=True)
    assert sum(map(len, as_source([columns], unbatch=True).batches())) == 3
