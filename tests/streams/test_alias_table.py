"""Alias tables: each record has exactly the units of its weight, whatever the weights are, and the same for ever."""

from __future__ import annotations

import hashlib
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cachelayer.streams import alias_table as module
from cachelayer.streams.alias_table import UNITS_BITS, alias_table, column_bits, drawn, units_of

ALL = 1 << UNITS_BITS
LARGEST = sys.float_info.max
WEIGHTS = st.one_of(
    st.lists(st.floats(0, LARGEST, allow_subnormal=True), min_size=1, max_size=70),
    st.lists(st.integers(0, 9).map(float), min_size=1, max_size=70),
    st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 0.1, 1.0, 1e300, LARGEST]), min_size=1, max_size=20),
).filter(any)


def units_in(table: NDArray[np.int64], records: int) -> list[int]:
    """The units of each record in all columns of a table."""
    bits = column_bits(records)
    room = ALL >> bits
    found = [0] * records
    for column, entry in enumerate(table.tolist()):
        threshold, alias = entry >> bits, entry & (1 << bits) - 1
        assert 0 <= threshold < room
        if threshold:
            found[column] += threshold
        found[alias] += room - threshold
    return found


@given(WEIGHTS)
@example([5e-324] * 3)
@example([LARGEST] * 64)
@example([LARGEST, 5e-324])
@example([1.0])
def test_units_sum_to_all_and_are_in_proportion_to_the_weights(weights: list[float]) -> None:
    units = units_of(np.array(weights)).tolist()
    assert sum(units) == ALL
    whole, records = sum(map(Fraction, weights)), len(weights)
    for weight, own in zip(weights, units, strict=True):
        assert (own > 0) == (weight > 0)
        share = Fraction(weight) / whole
        assert abs(Fraction(own, ALL) - share) < (1 + records * share) / (1 << 58)


@given(WEIGHTS, st.sampled_from([1, 2, 3, 7, 1 << 16]))
def test_the_columns_of_a_table_hold_exactly_the_units_of_each_record(weights: list[float], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Of pieces of any size the result is the same.
        whole = alias_table(units_of(np.array(weights)))
        patch.setattr(module, "_PIECE", piece)
        units = units_of(np.array(weights))
        table = alias_table(units)
    assert table.tolist() == whole.tolist()
    assert units_in(table, len(weights)) == units.tolist()


@given(st.lists(st.integers(1, ALL - 1), max_size=40, unique=True))
def test_any_units_make_a_table(splits: list[int]) -> None:
    units = np.diff(np.array([0, *sorted(splits), ALL]))
    assert units_in(alias_table(units), len(units)) == units.tolist()


@given(WEIGHTS)
def test_a_draw_is_the_unit_that_its_word_names(weights: list[float]) -> None:
    units, records = units_of(np.array(weights)), len(weights)
    table, bits = alias_table(units), column_bits(records)
    thresholds = (table >> bits).tolist()
    # The first and the last unit of each record in each column.
    for column, threshold in enumerate(thresholds):
        first = column << UNITS_BITS - bits
        at = [first, first + max(threshold - 1, 0), first + threshold, first + (ALL >> bits) - 1]
        alias = int(table[column]) & (1 << bits) - 1
        expected = [column if threshold else alias, column if threshold else alias, alias, alias]
        words = np.array([unit << 2 | 3 for unit in at], np.uint64)
        assert drawn(table, records, words).tolist() == expected


def test_equal_weights_fill_their_own_columns() -> None:
    assert alias_table(units_of(np.ones(8))).tolist() == list(range(8))
    assert units_of(np.ones(3)).tolist() == [-(-ALL // 3), ALL // 3, ALL // 3]


def test_long_division_is_exact_for_any_dividend() -> None:
    rng = np.random.default_rng(0)
    for total in ((1 << 60) - 1, 1 << 60, (1 << 61) - 1, 7, int(rng.integers(1 << 59, 1 << 60))):
        scaled = np.append(rng.integers(0, total, 200), [0, 1, total - 1, total // 2])
        assert module._divided(scaled, total).tolist() == [each * ALL // total for each in scaled.tolist()]


def test_the_table_never_changes() -> None:
    numbers = np.arange(100_000)
    weights = np.where(numbers % 7 == 0, 0, 1 / (1 + numbers)) * (1 + (numbers * numbers) % 1000)
    table = alias_table(units_of(weights))
    assert hashlib.sha256(table.astype("<i8").tobytes()).hexdigest() == GOLDEN


GOLDEN = "f211c37dd6b9befdf5c6de2eb12eb28b3649f668b4dcfbc6b6878f8e29496a35"
