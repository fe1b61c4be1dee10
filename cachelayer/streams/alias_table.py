"""Alias tables: draw record i with the probability of its weight, in constant time. Integer arithmetic only.

Weights become integers that sum to exactly 2**62. The table has 2**b columns, at least one for each record, and each
column has room for ``2**(62 - b)`` units. A record that has no more units than that lies in the column of its number;
the rest of that column holds units of one other record, its alias. So one word of 62 random bits chooses a column and a
unit in it, and the probability of each record is its units divided by 2**62: nothing is rounded when it is drawn.

Walker: An efficient method for generating discrete random variables with general distributions, 1977. Vose: A linear
algorithm for generating random numbers with a given distribution, 1991. That the columns follow from prefix sums:
Hübschle-Schneider, Sanders: Parallel weighted random sampling, 2019.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNITS_BITS = 62
# Sums of 31 bits of each stay within int64.
MOST_WEIGHTS = 1 << 31
# Weights are scaled so that their sum is below 2**60. With at most one unit more for each record it stays below 2**61.
_SCALED_BITS = 60
_HALF = UNITS_BITS // 2
_PIECE = 1 << 16


def column_bits(records: int) -> int:
    """Return b: a table of so many records has 2**b columns."""
    return (records - 1).bit_length()


def units_of(weights: Floats) -> Ints:
    """Return integers that sum to exactly 2**62, in proportion to weights.

    A positive weight becomes at least 1 unit, and 0 becomes 0. With ``p`` the exact share of a weight in the sum of all
    ``n``, its units are less than ``(1 + n * p) * 2**-58`` of all units off, the same on every machine.

    Args:
        weights: finite, not negative, and not all 0; at most :data:`MOST_WEIGHTS`.
    """
    scaled = _scaled(weights)
    total = int(scaled.sum())
    units = np.concatenate([_divided(scaled[first : first + _PIECE], total) for first in range(0, len(scaled), _PIECE)])
    missing = (1 << UNITS_BITS) - int(units.sum())
    # Fewer are missing than there are positive weights.
    units[np.flatnonzero(scaled)[:missing]] += 1
    return units


def _scaled(weights: Floats) -> Ints:
    """Return weights, times a power of two that brings their sum to about [2**59, 2**60), rounded down; at least 1."""
    # The largest is in [2**61, 2**62) then.
    scaled = np.ldexp(weights, UNITS_BITS - math.frexp(float(weights.max()))[1]).astype(np.int64)
    total = (int((scaled >> _HALF).sum()) << _HALF) + int((scaled & (1 << _HALF) - 1).sum())
    scaled >>= total.bit_length() - _SCALED_BITS
    return np.maximum(scaled, weights > 0, out=scaled)


def _divided(scaled: Ints, total: int) -> Ints:
    """Return ``floor(2**62 * scaled / total)``, exactly: 31 bits of the quotients at a time.

    Floating point estimates these bits, wrong by 1 at most. Then the remainder lies within 2 * total of 0, so it is
    known although its 93 bits are not all computed, and it corrects the estimate.
    """
    left, quotients = scaled, np.zeros(len(scaled), np.int64)
    for _ in range(2):
        digits = (left * (2.0**_HALF / total)).astype(np.int64)
        left = (left << _HALF) - digits * total
        wrong = (left >= total).astype(np.int64) - (left < 0)
        left -= wrong * total
        quotients = (quotients << _HALF) + digits + wrong
    return quotients


def alias_table(units: Ints) -> Ints:
    """Return the table of records with these units.

    Column i is ``threshold << b | alias``: its first ``threshold`` units are those of record i, the others are those of
    record ``alias``. If all units of a column are those of one record, the threshold is 0, and that record the alias.

    Args:
        units: not negative; their sum is 2**62.

    Returns:
        int64 of shape ``[2**b]``.
    """
    bits = column_bits(len(units))
    room = 1 << UNITS_BITS - bits
    table = np.empty(1 << bits, np.int64)
    large = np.flatnonzero(units > room)
    # Columns with room left are filled in their order: from the first large record until it has no more units than
    # fit into its own column, then from the second, which fills the column of the first up too, and so on.
    gives = np.cumsum(units[large] - room)
    filled = ended = 0
    for first in range(0, len(table), _PIECE):
        own = units[first : first + _PIECE]
        own = np.append(own, np.zeros(min(_PIECE, len(table) - first) - len(own), np.int64))
        small = np.flatnonzero(own <= room)
        if len(small) == 0:
            continue
        lacks = room - own[small]
        after = filled + np.cumsum(lacks)
        table[first + small] = first + small
        end = int(gives.searchsorted(after[-1], side="right"))
        ending, ends = large[ended:end], gives[ended:end]
        open_, before = small[lacks > 0], (after - lacks)[lacks > 0]
        table[first + open_] = own[open_] << bits | large[ended + ends.searchsorted(before, side="right")]
        owes = after[after.searchsorted(ends)] - ends
        table[ending] = ending
        owing = np.flatnonzero(owes)
        table[ending[owing]] = room - owes[owing] << bits | large[ended + owing + 1]
        filled, ended = int(after[-1]), end
    return table


def drawn(table: Ints, records: int, words: NDArray[np.uint64]) -> Ints:
    """Return the record that each word of 64 random bits draws, of which the lowest two are not used.

    Args:
        table: the table.
        records: the number of its records.
        words: the words.
    """
    bits = column_bits(records)
    shift = UNITS_BITS - bits
    chosen = (words >> np.uint64(64 - UNITS_BITS)).view(np.int64)
    columns = chosen >> shift
    found = table[columns]
    chosen &= (1 << shift) - 1
    return np.where(chosen < found >> bits, columns, found & (1 << bits) - 1)
