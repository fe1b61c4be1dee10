"""Selections: which records of a base a view shows, and under what digest."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelayer import RecordIndexError
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


@given(CHAINS, st.data())
def test_slices_and_indices_are_those_of_lists(chain: tuple[int, list[slice]], data: st.DataObject) -> None:
    selection, expected = chained(*chain)
    length = len(expected)
    assert len(selection) == length
    assert selection.take(range(length)).tolist() == expected
    assert [selection.number(index) for index in range(-length, length)] == expected * 2
    indices = data.draw(st.lists(st.integers(-length, length - 1))) if length else []
    for each in (selection, listed(expected)):
        for form in (indices, np.array(indices, np.int16), iter(indices)):
            taken = each.take(form)
            assert taken.dtype == np.int64
            assert taken.tolist() == [expected[index] for index in indices]


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


@given(CHAINS)
def test_a_digest_says_what_is_shown_and_not_how_it_was_chosen(chain: tuple[int, list[slice]]) -> None:
    selection, expected = chained(*chain)
    records = chain[0]
    digest = selection.digest(BASE, records)
    assert digest == listed(expected).digest(BASE, records)
    assert (digest == BASE) == (expected == list(range(records)))


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
