"""Weighted samples as an order: frequencies that are those of the weights, however the draws are asked for."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from samples import examples

from cachelayer.streams.order.weighted import WeightedOrder, sums_of


def order_of(weights: Any, seed: int) -> WeightedOrder:
    return WeightedOrder(sums=sums_of(np.array(weights, np.float64)), weights=repr(weights), seed=seed)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 40_000), min_size=2, max_size=2), st.integers(0, 2**50))
@settings(max_examples=examples(30))
def test_draws_are_the_same_however_they_are_asked_for(seed: int, bounds: list[int], first: int) -> None:
    order = order_of(range(1, 100), seed)
    start, stop = sorted(bounds)
    whole = order.at(0, first + np.arange(40_000))
    for same in (order, pickle.loads(pickle.dumps(order))):
        assert same.at(0, range(first + start, first + stop)).tolist() == whole[start:stop].tolist()


def chi_square(found: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Chi-square, less its mean, in standard deviations."""
    freedom = len(expected) - 1
    return float(((found - expected) ** 2 / expected).sum() - freedom) / float(np.sqrt(2 * freedom))


@pytest.mark.parametrize(("records", "seed"), [(2, 0), (5, 2**63), (64, 1), (1000, 2**64 - 1)])
def test_frequencies_are_those_of_the_weights_and_draws_are_independent(records: int, seed: int) -> None:
    weights = np.random.default_rng(records).random(records) + 0.05
    draws, others = (order_of(weights, each).at(0, np.arange(400_000)) for each in (seed, seed ^ 1))
    expected = weights / weights.sum() * len(draws)
    assert abs(chi_square(np.bincount(draws, minlength=records), expected)) < 5
    # Neighbouring draws, and those of neighbouring seeds.
    few = min(records, 8)
    single = np.bincount(draws % few, minlength=few) / len(draws)
    for one, other in ((draws[:-1], draws[1:]), (draws, others)):
        pairs = np.bincount(one % few * few + other % few, minlength=few * few)
        assert abs(chi_square(pairs, np.outer(single, single).ravel() * len(one))) < 5


def test_records_without_weight_never_come_and_no_sum_is_infinite() -> None:
    weights = np.where(np.arange(5000) % 3, 0, 1.0)
    assert (order_of(weights, 3).at(0, np.arange(300_000)) % 3 == 0).all()
    assert set(order_of([0, 0, 1e-300, 0], 1).at(0, np.arange(1000)).tolist()) == {2}
    assert set(order_of(np.full(3, 1.7e308), 1).at(0, np.arange(100)).tolist()) == {0, 1, 2}
    assert sums_of(np.array([5e-324, 0, 5e-324])).tolist() == [0.5, 0.5, 1.0]
