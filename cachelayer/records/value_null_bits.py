"""The bits that say which values within the rows of a leaf are null, as they lie at the end of records.

Only a row that has such nulls has bits: one for each of its values, lowest bit first, in whole bytes::

    rows    [7, None, 9]    [1, 2]          [None]
    bits    010 -> 02       (no byte)       1 -> 01
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.leaf_columns import FlatRows
from cachelayer.records.memory import Ints, splits_of


def rows_with_nulls(null_values: FlatRows) -> NDArray[np.bool_]:
    """Return which rows have values that are null."""
    totals = splits_of(null_values.values)
    return np.diff(totals[null_values.splits]) > 0


def packed_bits(null_values: FlatRows) -> FlatRows:
    """Return the bytes of bits of each row, from a bool for each value."""
    nbytes = np.where(rows_with_nulls(null_values), (null_values.lengths + 7) // 8, 0)
    splits = splits_of(nbytes)
    bits = np.zeros(8 * splits[-1], np.bool_)
    have_bits, places = _places_of_bits(null_values.splits, nbytes)
    bits[places] = null_values.values[have_bits]
    return FlatRows(np.packbits(bits, bitorder="little"), splits)


def unpacked_bits(raw: NDArray[np.uint8], splits: Ints, nbytes: Ints) -> FlatRows:
    """Return a bool for each value, from the bytes of bits of all rows.

    Args:
        raw: the bytes of all rows, one after another.
        splits: where the values of each row begin, and the end.
        nbytes: the bytes of each row; 0 for a row without nulls.
    """
    bits = np.unpackbits(raw, bitorder="little").view(np.bool_)
    null_values = np.zeros(splits[-1], np.bool_)
    have_bits, places = _places_of_bits(splits, nbytes)
    null_values[have_bits] = bits[places]
    return FlatRows(null_values, splits)


def _places_of_bits(splits: Ints, nbytes: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Return which values have bits, and the place of each such bit in the bytes of all rows."""
    counts = np.diff(splits)
    have_bits = np.repeat(nbytes > 0, counts)
    first_bits = splits_of(nbytes)[:-1] * 8
    places = np.arange(splits[-1]) + np.repeat(first_bits - splits[:-1], counts)
    return have_bits, places[have_bits]
