"""Selections of records, and views without some records."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError, RecordIndexError, Storage
from cachelayer.records.selection import Bitmap, Selection

BASE = "ab" * 32


def numbers(selection: Selection) -> list[int]:
    return np.concatenate(list(selection.pieces())).tolist()  # type: ignore[no-any-return]


@given(st.integers(1, 300), st.data())
def test_what_is_left_is_the_selection_of_the_others(records: int, data: st.DataObject) -> None:
    selection, model = Selection.all(records), list(range(records))
    for _ in range(data.draw(st.integers(1, 4))):
        step = data.draw(st.sampled_from(["exclude", "slice", "reverse", "select"]))
        if step == "slice":
            rows = slice(data.draw(st.integers(0, len(model))), data.draw(st.integers(0, len(model))))
            selection, model = selection.slice(rows), model[rows]
        elif step == "reverse":
            selection, model = selection.slice(slice(None, None, -1)), model[::-1]
        elif model and step == "select":
            rows = data.draw(st.lists(st.integers(0, len(model) - 1), max_size=30))
            selection, model = selection.select(rows), [model[row] for row in rows]
        elif model:
            rows = data.draw(st.lists(st.integers(-len(model), len(model) - 1), max_size=40))
            selection = selection.exclude(rows)
            out = {row % len(model) for row in rows}
            model = [number for row, number in enumerate(model) if row not in out]
    assert numbers(selection) == model
    assert [selection.number(row) for row in range(-len(model), len(model))] == model * 2
    digest = selection.digest(BASE, records)
    assert digest == Selection.all(records).select(model).digest(BASE, records)
    assert (digest == BASE) == (model == list(range(records)))
    assert numbers(pickle.loads(pickle.dumps(selection))) == model


def test_records_are_named_in_any_way() -> None:
    ref = cachelayer.wrap(list(range(10)), identity="ten")
    mask = np.zeros(10, bool)
    mask[[2, 9]] = True
    ways = ([2, 9], [9, 2, 2, -1], np.array([9, 2], np.uint8), range(2, 10, 7), slice(2, None, 7), mask, (-8, -1))
    for way in ways:
        assert list(ref.exclude(way)) == [0, 1, 3, 4, 5, 6, 7, 8]
    assert ref.exclude([]).digest == ref.digest
    assert ref.exclude(range(4)).digest == ref[4:].digest
    assert ref.exclude([0, 9, 8]).digest == ref[1:8].digest
    assert len(ref.exclude(range(10))) == 0
    assert list(ref.exclude([3]).exclude([3])) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert list(ref.select([1, 1, 2]).exclude([0])) == [1, 2]


def test_records_that_do_not_exist_are_refused_with_their_number() -> None:
    ref = cachelayer.wrap(list(range(10)), identity="ten")
    wrong: Any
    for wrong, error, message in (
        ([3, 10], RecordIndexError, "record 10 of 10"),
        (range(5, 12), RecordIndexError, "record 11 of 10"),
        ([1.5], InvalidTypeError, "1.5"),
        ({3}, InvalidTypeError, "indices"),
        (np.zeros(9, bool), InvalidArgumentError, "mask"),
    ):
        with pytest.raises(error, match=message):
            ref.exclude(wrong)


def test_a_version_without_some_records_is_derived(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    base = storage.cache([{"n": number} for number in range(50)], "d@v1", shard_bytes=200)
    shards = sorted(tmp_path.rglob("*.array_record"))
    left_out: list[Any] = [[-1, 3, 3], [], slice(None)]
    for number, records in enumerate(left_out):
        made = storage.derive("d@v1", f"without{number}", exclude=records, allow_empty=True)
        assert made.digest == base.exclude(records).digest
        assert list(made) == list(base.exclude(records))
    assert storage.derive("d@without0", new="v3", exclude=[0]).digest == base.exclude([0, 3, 49]).digest
    assert sorted(tmp_path.rglob("*.array_record")) == shards
    wrong: list[Any] = [{"exclude": slice(None)}, {"exclude": [50]}, {}, {"keep": [1], "exclude": [2]}]
    for options, message in zip(wrong, ("v1", "record 50 of 50", "keep=", "keep="), strict=True):
        with pytest.raises((InvalidArgumentError, RecordIndexError), match=message):
            storage.derive("d@v1", "v4", **options)


BOUNDS = st.one_of(st.none(), st.integers(-60, 60))
STEPS = st.one_of(st.none(), st.integers(-7, 7).filter(bool), st.sampled_from([2**62, -(2**63), 2**64, -(10**5000)]))
SLICES = st.builds(slice, BOUNDS, BOUNDS, STEPS)
CHAINS = st.tuples(st.integers(0, 50), st.lists(SLICES, max_size=3))


def chained(records: int, slices: list[slice]) -> tuple[Selection, list[int]]:
    """A selection, and what Python's lists make of the same slices."""
    selection, expected = Selection.all(records), list(range(records))
    for rows in slices:
        selection, expected = selection.slice(rows), expected[rows]
    return selection, expected


def listed(numbers: list[int]) -> Selection:
    return Selection(np.array(numbers, np.int64))


OUTSIDE = st.one_of(st.integers(0, 5), st.sampled_from([2**63, 2**64 - 1, 2**64 - 5, 2**70]))


@given(CHAINS, OUTSIDE)
def test_indices_outside_are_refused(chain: tuple[int, list[slice]], beyond: int) -> None:
    selection, expected = chained(*chain)
    for each in (selection, listed(expected)):
        for index in (len(expected) + beyond, -len(expected) - 1 - beyond):
            with pytest.raises(RecordIndexError, match=f"record {index} of {len(expected)}"):
                each.take([index])
            with pytest.raises(RecordIndexError, match=f"record {index} of {len(expected)}"):
                each.number(index)


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.integers(0, 9), max_size=6))
def test_selections_share_a_digest_only_where_they_show_the_same_of_one_base(one: list[int], other: list[int]) -> None:
    digests = [listed(numbers).digest(base, 10) for numbers in (one, other) for base in (BASE, "cd" * 32)]
    assert len(set(digests)) == (2 if one == other else 4)


@settings(deadline=None)
@given(
    st.one_of(st.integers(0, 2000), st.just(3_000_000)),
    st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.95, 1.0]),
    st.integers(0, 2**32),
)
def test_rows_of_a_bitmap_are_found_by_their_rank(size: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random(size) < share
    rows = np.flatnonzero(mask)
    ranks = rng.integers(0, max(1, len(rows)), 50)[: 50 * bool(len(rows))]
    first = int(ranks.min(initial=0))
    for bitmap in (Bitmap.of_mask(mask), pickle.loads(pickle.dumps(Bitmap.of_mask(mask)))):
        assert len(bitmap) == len(rows)
        assert bitmap.take(ranks).tolist() == rows[ranks].tolist()
        assert [bitmap[int(rank)] for rank in ranks] == rows[ranks].tolist()
        np.testing.assert_array_equal(bitmap.take(np.arange(first, len(rows))), rows[first:])
