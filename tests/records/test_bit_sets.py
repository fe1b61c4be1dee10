"""Sets of rows, a bit a row."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelayer.records.bit_sets import Marks


@settings(deadline=None)
@given(
    st.integers(0, 2000),
    st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.95, 1.0]),
    st.integers(0, 2**32),
)
def test_rows_are_found_by_their_rank(size: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random(size) < share
    rows = np.flatnonzero(mask)
    shuffled = rng.permutation(rows)
    for marks in (
        Marks.of_mask(mask),
        Marks.of_rows(size, [shuffled[::2], shuffled[1::2]]),
        pickle.loads(pickle.dumps(Marks.of_mask(mask))),
    ):
        assert len(marks) == len(rows)
        ranks = rng.integers(0, max(1, len(rows)), 50)[: 50 * bool(len(rows))]
        assert marks.take(ranks).tolist() == rows[ranks].tolist()
        assert [marks.row(int(rank)) for rank in ranks] == rows[ranks].tolist()
        first = int(ranks.min(initial=0))
        assert marks.take(np.arange(first, len(rows))).tolist() == rows[first:].tolist()


@pytest.mark.parametrize("share", [0.01, 0.9])
def test_rows_far_away_are_found(share: float) -> None:
    mask = np.random.default_rng(0).random(3_000_000) < share
    rows = np.flatnonzero(mask)
    ranks = np.random.default_rng(1).integers(0, len(rows), 10_000)
    assert (Marks.of_mask(mask).take(ranks) == rows[ranks]).all()
