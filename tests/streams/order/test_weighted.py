"""Weighted samples as an order: the draws that the page specifies, and frequencies that are those of the weights."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pages import run_page
from repository import ROOT
from samples import examples

from cachelayer.streams.order.weighted import SampledOrder, sums_of
from cachelayer.streams.steps import MOST_POSITIONS

DOCS = ROOT / "docs" / "order.md"
WORDS = st.integers(0, 2**64 - 1)

# (weights, seed, position): the records there.
GOLDEN: dict[tuple[str, int, int], list[int]] = {
    ("1, 1", 0, 0): [1, 1, 1, 0, 0, 0, 1, 0],
    ("3, 0, 1, 4, 0.5", 7, 1000): [3, 3, 3, 0, 3, 3, 0, 3],
    ("1e-300, 1, 1e300", 1, 0): [2, 2, 2, 2, 2, 2, 2, 2],
    ("`i`, n = 1000", 42, 10**15): [955, 973, 684, 140, 904, 589, 711, 642],
    ("`1 / (i + 1)`, n = 65537", 2**64 - 1, 2**62 - 8): [3, 43400, 4, 188, 8, 0, 664, 4],
    ("`(i * i) % 97`, n = 300000", 5, 123456789): [3136, 81902, 150006, 93904, 154547, 287790, 268810, 97260],
}


def weights_named(name: str) -> list[float]:
    """The weights that a row of the page names."""
    if "n =" not in name:
        return [float(weight) for weight in name.split(", ")]
    formula, count = re.fullmatch(r"`(.*)`, n = (\d+)", name).groups()  # type: ignore[union-attr]
    return list(map(eval(f"lambda i: {formula}"), range(int(count))))


def order_of(weights: Any, seed: int) -> SampledOrder:
    return SampledOrder(len(weights), seed=seed, weights=repr(weights), sums=sums_of(np.array(weights, np.float64)))


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    return run_page("order.md")


@pytest.mark.parametrize(("name", "seed", "position"), GOLDEN)
def test_the_draws_never_change(name: str, seed: int, position: int) -> None:
    expected = GOLDEN[name, seed, position]
    assert order_of(weights_named(name), seed)(0, position, position + len(expected)).tolist() == expected


def test_the_documented_vectors_are_the_pinned_ones(documented: dict[str, Any]) -> None:
    section = DOCS.read_text().partition("## Weighted samples")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| (\d+) \| (\d+) \| (.*) \|$", section, re.MULTILINE)
    found = {(name, int(seed), int(at)): list(map(int, drawn.split(","))) for name, seed, at, drawn in rows}
    assert found == GOLDEN
    for (name, seed, position), records in GOLDEN.items():
        sums = documented["sums_of"](weights_named(name))
        assert [documented["drawn"](sums, seed, position + k) for k in range(len(records))] == records


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=50).filter(any), WORDS, st.integers(0, MOST_POSITIONS - 9))
@settings(max_examples=examples(60))
def test_any_draw_is_what_the_documented_code_says(
    documented: dict[str, Any], weights: list[float], seed: int, position: int
) -> None:
    sums = documented["sums_of"](weights)
    expected = [documented["drawn"](sums, seed, position + k) for k in range(8)]
    assert order_of(weights, seed)(0, position, position + 8).tolist() == expected


@given(WORDS, st.lists(st.integers(0, 40_000), min_size=2, max_size=2), st.integers(0, 2**50))
@settings(max_examples=examples(30))
def test_draws_are_the_same_however_they_are_asked_for(seed: int, bounds: list[int], first: int) -> None:
    order = order_of(range(1, 100), seed)
    start, stop = sorted(bounds)
    whole = order.at(0, first + np.arange(40_000))
    assert order(0, first + start, first + stop).tolist() == whole[start:stop].tolist()
    copy = pickle.loads(pickle.dumps(order))
    assert copy(0, first + start, first + stop).tolist() == whole[start:stop].tolist()


def chi_square(found: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Chi-square, less its mean, in standard deviations."""
    freedom = len(expected) - 1
    return float(((found - expected) ** 2 / expected).sum() - freedom) / float(np.sqrt(2 * freedom))


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("records", [2, 5, 64, 1000])
def test_frequencies_are_those_of_the_weights(records: int, seed: int) -> None:
    weights = np.random.default_rng(records).random(records) + 0.05
    draws = order_of(weights, seed).at(0, np.arange(seed % 1000, seed % 1000 + 400_000))
    expected = weights / weights.sum() * len(draws)
    assert abs(chi_square(np.bincount(draws, minlength=records), expected)) < 5
    # Neighbouring draws, and those of other seeds, are independent.
    few = min(records, 8)
    pairs = (draws[:-1] % few) * few + draws[1:] % few
    single = np.bincount(draws % few, minlength=few) / len(draws)
    assert abs(chi_square(np.bincount(pairs, minlength=few * few), np.outer(single, single).ravel() * len(pairs))) < 5


def test_neighbouring_seeds_are_uncorrelated() -> None:
    draws = [order_of(np.ones(16), seed).at(0, np.arange(200_000)) for seed in (0, 1, 2)]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        pairs = np.bincount(draws[one] * 16 + draws[other], minlength=256)
        assert abs(chi_square(pairs, np.full(256, 200_000 / 256))) < 5


def test_records_without_weight_never_come() -> None:
    weights = np.where(np.arange(5000) % 3, 0, 1.0)
    assert (order_of(weights, 3).at(0, np.arange(300_000)) % 3 == 0).all()
    assert set(order_of([0, 0, 1e-300, 0], 1).at(0, np.arange(1000)).tolist()) == {2}


def test_a_positive_weight_counts_however_small_it_is() -> None:
    sums = sums_of(np.array([1e-300, 0, 1e300, 5e-324]))
    assert np.diff(sums, prepend=0).tolist() == [1, 0, sums[2] - 1, 1]
    assert sums[-1] < 2**62
    assert sums_of(np.full(3, 1.7e308))[-1] < 2**62
