"""Selections: which records of a base a view shows, and under what digest."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelayer
from cachelayer import InvalidTypeError, RecordIndexError
from cachelayer.records.selection import Bitmap, Selection

BASE = "ab" * 32
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


@given(CHAINS)
def test_slices_are_those_of_lists(chain: tuple[int, list[slice]]) -> None:
    selection, expected = chained(*chain)
    assert len(selection) == len(expected)
    assert selection.take(range(len(expected))).tolist() == expected
    assert [selection.number(index) for index in range(-len(expected), len(expected))] == expected * 2


@given(CHAINS, st.data())
def test_any_indices_are_those_of_lists(chain: tuple[int, list[slice]], data: st.DataObject) -> None:
    selection, expected = chained(*chain)
    length = len(expected)
    indices = data.draw(st.lists(st.integers(-length, length - 1))) if length else []
    wanted = [expected[index] for index in indices]
    as_listed = listed(expected)
    forms: list[Any] = [
        indices,
        tuple(indices),
        np.array(indices, np.int64),
        np.array(indices, np.int16),
        iter(indices),
    ]
    for form in forms:
        taken = selection.take(form)
        assert taken.dtype == np.int64
        assert taken.tolist() == wanted
    assert as_listed.take(indices).tolist() == wanted


@given(CHAINS, st.integers(0, 5))
def test_indices_outside_are_refused(chain: tuple[int, list[slice]], beyond: int) -> None:
    selection, expected = chained(*chain)
    for each in (selection, listed(expected)):
        for index in (len(expected) + beyond, -len(expected) - 1 - beyond):
            message = f"record {index} of {len(expected)}"
            with pytest.raises(RecordIndexError, match=message):
                each.take([index])
            with pytest.raises(RecordIndexError, match=message):
                each.number(index)


@pytest.mark.parametrize("index", [2**63, 2**64 - 1, 2**64 - 5, -(2**63), 2**70, -(2**70)])
@pytest.mark.parametrize("selection", [Selection.all(10), listed([3, 1, 2])])
def test_indices_that_no_word_holds_are_refused(selection: Selection, index: int) -> None:
    with pytest.raises(IndexError):
        selection.number(index)
    with pytest.raises((IndexError, TypeError)):
        selection.take([index])
    if 0 < index < 2**64:
        with pytest.raises(IndexError):
            selection.take(np.array([index], np.uint64))


@pytest.mark.parametrize("index", ["1", 1.0, None, [1], (1, 2)])
def test_what_is_no_index_is_refused(index: Any) -> None:
    with pytest.raises(InvalidTypeError, match="index"):
        cachelayer.wrap([1, 2, 3], identity="three")[index]


@given(CHAINS)
def test_a_digest_says_what_is_shown_and_not_how_it_was_chosen(chain: tuple[int, list[slice]]) -> None:
    selection, expected = chained(*chain)
    records = chain[0]
    digest = selection.digest(BASE, records)
    assert digest == listed(expected).digest(BASE, records)
    assert (digest == BASE) == (expected == list(range(records)))


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.integers(0, 9), max_size=6))
def test_selections_share_a_digest_only_where_they_show_the_same(one: list[int], other: list[int]) -> None:
    same = listed(one).digest(BASE, 10) == listed(other).digest(BASE, 10)
    assert same == (one == other)


def test_digests_differ_with_the_base() -> None:
    assert Selection(range(3)).digest(BASE, 10) != Selection(range(3)).digest("cd" * 32, 10)


def test_digests_never_change() -> None:
    progression = hashlib.sha256(bytes.fromhex(BASE) + b"range" + np.array([2, 3, 4], "<i8").tobytes())
    assert Selection(range(2, 14, 3)).digest(BASE, 20) == progression.hexdigest()
    numbers = hashlib.sha256(bytes.fromhex(BASE) + b"list" + np.array([2, 5, 7], "<i8").tobytes())
    assert listed([2, 5, 7]).digest(BASE, 20) == numbers.hexdigest()


@settings(deadline=None)
@given(st.integers(0, 2000), st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.95, 1.0]), st.integers(0, 2**32))
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
        assert bitmap.take(np.arange(first, len(rows))).tolist() == rows[first:].tolist()


@pytest.mark.parametrize("share", [0.01, 0.9])
def test_rows_far_away_are_found(share: float) -> None:
    mask = np.random.default_rng(0).random(3_000_000) < share
    rows = np.flatnonzero(mask)
    ranks = np.random.default_rng(1).integers(0, len(rows), 10_000)
    assert (Bitmap.of_mask(mask).take(ranks) == rows[ranks]).all()
