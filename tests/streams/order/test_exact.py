"""The exact order: permutations for any n, and without structure that statistics can see."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from samples import examples

from cachelayer.streams.order.orders import ExactOrder
from cachelayer.streams.order.permutation import permuted

WORDS = st.integers(0, 2**64 - 1)
SIZES = st.one_of(st.integers(1, 70), st.integers(65_530, 65_545), st.integers(1, 1 << 18))


@given(SIZES, WORDS, WORDS, st.randoms(use_true_random=False))
@example(1, 0, 0, None)
@example(65_536, 2**64 - 1, 12, None)
@example(65_537, 0, 2**64 - 1, None)
@example(1_000_000, 0, 0, None)
@settings(max_examples=examples(60), deadline=None)
def test_an_epoch_holds_each_record_once_and_any_part_is_that_of_the_whole(
    n: int, seed: int, epoch: int, random: Any
) -> None:
    order, whole = ExactOrder(n, True, seed), permuted(n, seed, epoch, 0, n)
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(np.sort(whole), np.arange(n))
    start, stop, step = (0, n, 3) if random is None else [random.randint(1, max(1, n - 1)) for _ in range(3)]
    for places in (range(start, max(start, stop)), np.arange(start % n, n, step)[::-1]):
        found = order.at(epoch, places)
        np.testing.assert_array_equal(found, whole[np.asarray(places, np.int64)])
        # What is returned is the caller's own.
        found[:] = -1
        np.testing.assert_array_equal(order.at(epoch, places), whole[np.asarray(places, np.int64)])


# Statistics. Each sample is one ordered pair of records from one permutation, so that samples are independent and the
# expected counts exact: the first record is uniform over n, the second over the n - 1 others. Golden vectors pin the
# order, so its statistics cannot change under a version: large samples are in the soak suite.

SAMPLES = {2: 8000, 3: 8000, 10: 8000, 100: 8000, 1000: 8000, 30_000: 700, 65_536: 400, 10**6: 4000}
# In the order of 10**6 records, 1024 places are one in the upper half of a word, and 2**19 are its topmost bit.
DISTANCES = [(2, 1), (3, 1), (10, 1), (10, 5), (100, 50), (1000, 1), (1000, 512)]
LARGE = [(30_000, 1), (65_536, 1), (10**6, 1), (10**6, 1024), (10**6, 1 << 19)]
SOAK = pytest.mark.soak


def binned(values: NDArray[Any], size: int, bins: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bin of each of ``values`` in [0, size), and the probability of each bin."""
    bins = min(bins, size)
    probabilities = np.bincount(np.arange(size) * bins // size, minlength=bins) / size
    return np.asarray(values) * bins // size, probabilities


def chi_square(cells: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """How many standard deviations the chi-square of the counts lies off its expectation."""
    expected = len(cells) * probabilities
    assert expected.min() >= 5
    statistic = float(((np.bincount(cells, minlength=len(expected)) - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "apart"), [*DISTANCES, *(pytest.param(*case, marks=SOAK) for case in LARGE)])
def test_records_differences_and_pairs_are_uniform(n: int, apart: int) -> None:
    rows = []
    for seed in range(SAMPLES[n]):
        place = seed * 7919 % (n - apart)
        rows.append([permuted(n, seed, 0, at, at + 1)[0] for at in (place, place + apart)])
    first, second = np.array(rows).T
    assert abs(chi_square(*binned(first, n, 64))) < 4
    if n > 2:
        assert abs(chi_square(*binned((second - first) % n - 1, n - 1, 50))) < 4
        one, one_is = binned(first, n, 6)
        other, other_is = binned(second - (second > first), n - 1, 6)
        assert abs(chi_square(one * len(other_is) + other, np.outer(one_is, other_is).reshape(-1))) < 4


@pytest.mark.slow
def test_all_permutations_of_few_records_are_equally_likely() -> None:
    orders = np.array([permuted(4, seed, 0, 0, 4) for seed in range(8000)])
    numbers = np.unique(orders @ (4 ** np.arange(4)), return_inverse=True)[1].reshape(-1)
    assert abs(chi_square(numbers, np.full(24, 1 / 24))) < 4


@pytest.mark.parametrize("n", [1000, pytest.param(10**6, marks=SOAK)])
@pytest.mark.parametrize(("seed_step", "epoch_step"), [(0, 1), (1, 0), (1, 1), (1, -1)])
def test_epochs_and_neighbouring_seeds_are_uncorrelated(n: int, seed_step: int, epoch_step: int) -> None:
    width, rounds = 1000, 300
    zs, meetings = [], 0
    for seed in range(rounds):
        one = permuted(n, seed, 5, 0, width)
        other = permuted(n, seed + seed_step, 5 + epoch_step, 0, width)
        zs.append(np.corrcoef(one, other)[0, 1] * math.sqrt(width - 1))
        meetings += int((one == other).sum())
    assert abs(np.mean(zs) * math.sqrt(rounds)) < 4
    assert abs((np.square(zs).sum() - rounds) / math.sqrt(2 * rounds)) < 4
    expected = rounds * width / n
    assert abs(meetings - expected) / math.sqrt(expected) < 4
