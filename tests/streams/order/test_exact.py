"""The order: permutations for any n, pinned for ever, and without structure that statistics can see."""

from __future__ import annotations

import math
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

from cachelayer.streams.order.exact import Order
from cachelayer.streams.order.permutation import _KEY_ROUNDS, GOLDEN_RATIO, mix, permuted, places_of, round_keys

DOCS = ROOT / "docs" / "order.md"
WORDS = st.integers(0, 2**64 - 1)
SIZES = st.one_of(st.integers(1, 70), st.integers(65_530, 65_545), st.integers(1, 1 << 18))
POWERS = [(1 << bits) + more for bits in (7, 12, 16, 17, 18) for more in (-1, 0, 1)]

# (n, seed, epoch, start): the records there.
GOLDEN = {
    (3, 0, 0, 0): [0, 1, 2],
    (10, 0, 0, 0): [3, 0, 8, 7, 5, 1, 6, 4, 2, 9],
    (10, 0, 1, 0): [8, 5, 3, 6, 2, 7, 1, 0, 9, 4],
    (10, 1, 0, 0): [4, 7, 6, 3, 5, 0, 9, 1, 8, 2],
    (1_000, 42, 7, 0): [235, 91, 443, 121, 890, 540, 488, 491],
    (65_536, 2**64 - 1, 3, 65_528): [50588, 14811, 43680, 42746, 50634, 44339, 16833, 56263],
    (65_537, 0, 0, 0): [59596, 60013, 48936, 54940, 46154, 102, 54322, 14062],
    (1_000_000, 42, 0, 0): [669517, 37876, 533306, 338230, 358711, 828133, 141445, 492807],
    (1_000_000, 42, 1, 999_992): [156519, 326695, 679670, 736515, 148981, 336272, 152743, 447456],
    (1_000_000_000, 1, 2, 999_999_992): [
        913653123,
        692881535,
        56911027,
        857405004,
        8459311,
        414432033,
        43669511,
        507023200,
    ],
    (2**39 + 1, 7, 0, 0): [
        97278677312,
        285899406386,
        493136915417,
        301031573527,
        342167021609,
        263954633631,
        11348792171,
        422195534644,
    ],
    (2**40, 0, 0, 1_099_511_627_768): [
        483257306482,
        779587499739,
        591847737196,
        784753489057,
        577432277887,
        79523981642,
        466290800943,
        876562664834,
    ],
    (10**12, 42, 5, 500_000_000_000): [
        702290279101,
        309937151608,
        366221172560,
        740122017110,
        765681527821,
        797690919205,
        393433359124,
        950314515544,
    ],
}
GOLDEN_KEYS = (
    0x18F9F27C7F0FBBB4,
    0x139BA96BA5EC9826,
    0xF27F1C455EDF6D66,
    0xDF08BD01A8BC3BF0,
    0x3F1D8F715E1C140B,
    0x377CD9D123931DD4,
    0xB590140C89C70C76,
    0x2609E7A8E56429EE,
)


@pytest.mark.parametrize(("n", "seed", "epoch", "start"), GOLDEN)
def test_the_order_never_changes(n: int, seed: int, epoch: int, start: int) -> None:
    expected = GOLDEN[n, seed, epoch, start]
    assert permuted(n, seed, epoch, start, start + len(expected)).tolist() == expected


def test_the_keys_never_change() -> None:
    assert round_keys(42, 7) == GOLDEN_KEYS


def test_the_documented_vectors_are_the_pinned_ones() -> None:
    rows = [line.strip("|").split("|") for line in DOCS.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    documented = {tuple(map(int, row[:4])): [int(record) for record in row[4].split(",")] for row in rows}
    assert documented == GOLDEN
    assert all(f"`{key:#x}`" in DOCS.read_text() for key in GOLDEN_KEYS[:2])


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """What the code on the page defines, after it has printed what stands below it."""
    return run_page("order.md", 6)


def test_the_documented_code_is_the_order(documented: dict[str, Any]) -> None:
    record_at = documented["record_at"]
    for (n, seed, epoch, start), records in GOLDEN.items():
        if n <= 1000 or n > 65536:
            assert [record_at(n, seed, epoch, start + offset) for offset in range(len(records))] == records


@given(n=st.one_of(st.integers(1, 300), st.integers(65_537, 1 << 45)), seed=WORDS, epoch=WORDS, data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_any_place_is_what_the_documented_code_says(
    documented: dict[str, Any], n: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, n - 1))
    assert permuted(n, seed, epoch, place, place + 1).tolist() == [documented["record_at"](n, seed, epoch, place)]


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


@settings(deadline=None)
@given(n=SIZES, seed=WORDS, epoch=WORDS, data=st.data())
def test_places_undo_the_order(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n))
    stop = min(n, start + 5000)
    assert np.array_equal(places_of(n, seed, epoch, permuted(n, seed, epoch, start, stop)), np.arange(start, stop))


@pytest.mark.parametrize("n", [2**32 + 1, 2**40 - 1, 2**53 + 11])
def test_places_undo_huge_orders(n: int) -> None:
    for start in (0, n // 2, n - 100):
        found = places_of(n, 5, 1, permuted(n, 5, 1, start, start + 100))
        assert np.array_equal(found, np.arange(start, start + 100))


def test_parts_are_the_callers_own() -> None:
    for n in (100, 100_000):
        part = permuted(n, 1, 0, 3, 9)
        kept = part.copy()
        part[:] = -1
        np.testing.assert_array_equal(permuted(n, 1, 0, 3, 9), kept)


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
    same, fresh = Order(100, shuffle=True, seed=3, reshuffle=False), Order(100, shuffle=True, seed=3)
    assert same(0, 0, 100).tolist() == same(5, 0, 100).tolist() == fresh(0, 0, 100).tolist()
    assert fresh(5, 0, 100).tolist() != fresh(0, 0, 100).tolist()


def test_without_shuffle_records_come_as_they_are() -> None:
    assert Order(10**12)(3, 10**12 - 3, 10**12).tolist() == [10**12 - 3, 10**12 - 2, 10**12 - 1]


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
