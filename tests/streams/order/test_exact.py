"""The order: permutations for any n, pinned for ever, and without structure that statistics can see."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from samples import examples

from cachelayer.streams.order.orders import ExactOrder
from cachelayer.streams.order.permutation import _KEY_ROUNDS, GOLDEN_RATIO, mix, permuted, round_keys

WORDS = st.integers(0, 2**64 - 1)
SIZES = st.one_of(st.integers(1, 70), st.integers(65_530, 65_545), st.integers(1, 1 << 18))
POWERS = [(1 << bits) + more for bits in (7, 12, 16, 17, 18) for more in (-1, 0, 1)]


@pytest.mark.parametrize("n", [*range(71), *POWERS, 65_535, 65_537, 100_003, 1_000_000])
def test_an_epoch_holds_each_record_once(n: int) -> None:
    for seed, epoch in ((0, 0), (2**64 - 1, 12)):
        np.testing.assert_array_equal(np.sort(permuted(n, seed, epoch, 0, n)), np.arange(n))


@given(n=SIZES, seed=WORDS, epoch=WORDS)
@settings(max_examples=examples(40), deadline=None)
def test_any_key_gives_a_permutation(n: int, seed: int, epoch: int) -> None:
    order = permuted(n, seed, epoch, 0, n)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [2**39 + 1, 10**12, 2**40 - 1, 2**40, 2**40 + 1, 2**50 + 12345])
def test_huge_orders_repeat_nothing(n: int) -> None:
    width = 20_000
    starts = [0, 8192 - 5, n // 3, n // 2, n - width]
    records = np.concatenate([permuted(n, 11, 4, start, start + width) for start in starts])
    places = np.concatenate([np.arange(start, start + width) for start in starts])
    assert len(np.unique(records)) == len(np.unique(places))
    assert records.min() >= 0
    assert records.max() < n


@given(n=SIZES, seed=WORDS, epoch=st.integers(0, 9), data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_a_part_is_the_same_part_of_the_whole(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    np.testing.assert_array_equal(permuted(n, seed, epoch, start, stop), permuted(n, seed, epoch, 0, n)[start:stop])


def test_parts_are_the_callers_own() -> None:
    for n in (100, 100_000):
        for places in (range(3, 9), np.arange(3, 9)):
            part = ExactOrder(n, True, 1).at(0, places)
            kept = part.copy()
            part[:] = -1
            np.testing.assert_array_equal(ExactOrder(n, True, 1).at(0, places), kept)


@given(n=SIZES, seed=WORDS, step=st.integers(1, 100), data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_any_places_are_those_of_the_whole(n: int, seed: int, step: int, data: st.DataObject) -> None:
    order, whole = ExactOrder(n, True, seed), permuted(n, seed, 2, 0, n)
    places = data.draw(st.permutations(range(data.draw(st.integers(0, n - 1)), n, step)[:50]))
    np.testing.assert_array_equal(order.at(2, np.array(places, np.int64)), whole[places])


@given(seed=WORDS, epoch=WORDS)
def test_the_keys_determine_seed_and_epoch(seed: int, epoch: int) -> None:
    left, right = round_keys(seed, epoch)[:2]
    for number in reversed(range(1, _KEY_ROUNDS + 3)):
        left, right = right ^ mix((left + number * GOLDEN_RATIO) & (2**64 - 1)), left
    assert (left, right) == (seed, epoch)


@pytest.mark.parametrize("n", [50, 70_000])
def test_seeds_and_epochs_have_orders_of_their_own(n: int) -> None:
    pairs = [(seed, epoch) for seed in (*range(12), 2**63, 2**64 - 1) for epoch in range(12)]
    assert len({permuted(n, seed, epoch, 0, 50).tobytes() for seed, epoch in pairs}) == len(pairs)


def test_without_reshuffle_every_epoch_is_the_first() -> None:
    same, fresh = ExactOrder(100, shuffle=True, seed=3, reshuffle=False), ExactOrder(100, shuffle=True, seed=3)
    every = range(100)
    assert same.at(0, every).tolist() == same.at(5, every).tolist() == fresh.at(0, every).tolist()
    assert fresh.at(5, every).tolist() != fresh.at(0, every).tolist()


def test_without_shuffle_records_come_as_they_are() -> None:
    assert ExactOrder(10**12).at(3, range(10**12 - 2, 10**12)).tolist() == [10**12 - 2, 10**12 - 1]


# Statistics. Each sample is one ordered pair of records from one permutation, so that samples are independent and the
# expected counts exact: the first record is uniform over n, the second over the n - 1 others.

# Golden vectors pin the order, so its statistics cannot change under a version: large samples are in the soak suite.

SAMPLES = {2: 8000, 3: 8000, 10: 8000, 100: 8000, 1000: 8000, 30_000: 700, 65_536: 400, 10**6: 4000}


def soak_if_large(*numbers: int) -> list[Any]:
    """Numbers of records as parameters, large ones in the soak suite."""
    return [n if n <= 1000 else pytest.param(n, marks=pytest.mark.soak) for n in numbers]


def binned(values: NDArray[Any], size: int, bins: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bin of each of ``values`` in [0, size), and the probability of each bin."""
    bins = min(bins, size)
    probabilities = np.bincount(np.arange(size) * bins // size, minlength=bins) / size
    return np.asarray(values) * bins // size, probabilities


def chi_square(cells: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """How many standard deviations the chi-square of the counts lies off its expectation."""
    assert len(probabilities) > 1
    expected = len(cells) * probabilities
    assert expected.min() >= 5
    statistic = float(((np.bincount(cells, minlength=len(expected)) - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def pairs_of_records(n: int, apart: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two records of one permutation, ``apart`` places from each other, for many seeds."""
    rows = []
    for seed in range(SAMPLES[n]):
        place = seed * 7919 % (n - apart)
        rows.append([permuted(n, seed, 0, at, at + 1)[0] for at in (place, place + apart)])
    first, second = np.array(rows).T
    return first, second


@pytest.mark.slow
@pytest.mark.parametrize("n", soak_if_large(*SAMPLES))
def test_records_differences_and_pairs_are_uniform(n: int) -> None:
    first, second = pairs_of_records(n, apart=1)
    assert abs(chi_square(*binned(first, n, 64))) < 4
    if n > 2:
        assert abs(chi_square(*binned((second - first) % n - 1, n - 1, 50))) < 4
        one, one_is = binned(first, n, 6)
        other, other_is = binned(second - (second > first), n - 1, 6)
        assert abs(chi_square(one * len(other_is) + other, np.outer(one_is, other_is).reshape(-1))) < 4


# In the order of 10**6 records, 1024 places are one in the upper half of a word, and 2**19 are its topmost bit.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "apart"),
    [
        (10, 5),
        (100, 50),
        (1000, 512),
        pytest.param(10**6, 1024, marks=pytest.mark.soak),
        pytest.param(10**6, 1 << 19, marks=pytest.mark.soak),
    ],
)
def test_distant_pairs_are_uniform(n: int, apart: int) -> None:
    first, second = pairs_of_records(n, apart)
    one, one_is = binned(first, n, 8)
    other, other_is = binned(second - (second > first), n - 1, 8)
    assert abs(chi_square(one * len(other_is) + other, np.outer(one_is, other_is).reshape(-1))) < 4


@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.slow
def test_all_permutations_of_few_records_are_equally_likely(n: int) -> None:
    orders = np.array([permuted(n, seed, 0, 0, n) for seed in range(8000)])
    numbers = np.unique(orders @ (n ** np.arange(n)), return_inverse=True)[1].reshape(-1)
    assert abs(chi_square(numbers, np.full(math.factorial(n), 1 / math.factorial(n)))) < 4


@pytest.mark.parametrize("n", soak_if_large(1000, 10**6))
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
