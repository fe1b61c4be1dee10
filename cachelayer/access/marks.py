"""Sets of rows, a bit a row, whose members are found by their rank in constant time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Bits = NDArray[np.uint8]

_WORDS = 8
_BLOCK_ROWS = 64 * _WORDS

# For each byte, the place of its first set bit, of its second one, and so on.
_PLACES = np.argsort(~np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), kind="stable")


class Marks:
    """A set of rows.

    Beside the bits there is one count for each block of 512 rows, so a row costs 1.125 bits. Source: Jacobson:
    Space-efficient static trees and graphs, 1989.

    Args:
        bits: bit i, counted from the lowest bit of the first byte, is set if row i is in the set; whole blocks, as
            :func:`no_bits` makes them.
    """

    def __init__(self, bits: Bits) -> None:
        self._bits = bits
        self._words: NDArray[np.uint64] = bits.view("<u8").reshape(-1, _WORDS)
        counts = np.bitwise_count(self._words).sum(axis=1, dtype=np.int64)
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Marks:
        """Return the rows at which a mask is True."""
        bits = no_bits(len(mask))
        packed = np.packbits(mask, bitorder="little")
        bits[: len(packed)] = packed
        return cls(bits)

    @classmethod
    def of_rows(cls, size: int, pieces: Iterable[Numbers]) -> Marks:
        """Return the rows, below ``size``, that are in one of the pieces."""
        bits = no_bits(size)
        for rows in pieces:
            np.bitwise_or.at(bits, rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))
        return cls(bits)

    def __reduce__(self) -> tuple[Any, ...]:
        return Marks, (self._bits,)

    def __len__(self) -> int:
        return int(self._before[-1])

    def take(self, ranks: Numbers) -> Numbers:
        """Return the rows of these ranks, each in [0, len)."""
        if len(ranks) > 1 and int(ranks[-1]) - int(ranks[0]) == len(ranks) - 1 and (np.diff(ranks) == 1).all():
            return self._span(int(ranks[0]), int(ranks[-1]) + 1)
        block = self._before.searchsorted(ranks, side="right") - 1
        word, left = _within(np.bitwise_count(self._words[block]), ranks - self._before[block])
        octets = self._words[block, word].view(np.uint8).reshape(-1, 8)
        octet, left = _within(np.bitwise_count(octets), left)
        bit = _PLACES[octets[np.arange(len(ranks)), octet], left]
        rows: Numbers = block * _BLOCK_ROWS + word * 64 + octet * 8 + bit
        return rows

    def row(self, rank: int) -> int:
        """Return the row of one rank, in [0, len)."""
        block = int(self._before.searchsorted(rank, side="right")) - 1
        left = rank - int(self._before[block])
        place = block * _BLOCK_ROWS
        words = iter(self._words[block].tolist())
        word = next(words)
        while word.bit_count() <= left:
            left -= word.bit_count()
            place += 64
            word = next(words)
        for _ in range(left):
            word &= word - 1
        lowest: int = (word & -word).bit_length() - 1
        return place + lowest

    def _span(self, start: int, stop: int) -> Numbers:
        """Return the rows of ranks that follow one another: their blocks are unpacked once."""
        first, last = (int(self._before.searchsorted(rank, side="right")) - 1 for rank in (start, stop - 1))
        octets = self._bits[first * _WORDS * 8 : (last + 1) * _WORDS * 8]
        rows = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
        begin = start - int(self._before[first])
        return rows[begin : begin + stop - start] + first * _BLOCK_ROWS


def no_bits(size: int) -> Bits:
    """Return the bits of an empty set of rows below ``size``, in whole blocks."""
    return np.zeros(-(-size // _BLOCK_ROWS) * _WORDS * 8, np.uint8)


def _within(counts: NDArray[np.uint8], ranks: Numbers) -> tuple[Numbers, Numbers]:
    """Return in which of the counted parts each rank lies, and its rank there; counts are ``[len(ranks), parts]``."""
    ends = counts.cumsum(axis=1, dtype=np.int64)
    part = (ends <= ranks[:, None]).sum(axis=1)
    row = np.arange(len(ranks))
    return part, ranks - ends[row, part] + counts[row, part]
