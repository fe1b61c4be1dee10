"""Sets of rows, which find a member by its rank: with one bit for each row, or a list of the few that are left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Bits = NDArray[np.uint8]

_WORDS = 4
_BLOCK_ROWS = 64 * _WORDS

_U = [np.uint64(number) for number in range(9)]
_FIVES, _THREES, _NIBBLES, _ONES, _HIGHS = (
    np.uint64(byte * 0x0101010101010101) for byte in (0x55, 0x33, 0x0F, 1, 0x80)
)
_BYTE = np.uint64(0xFF)

# For each byte, the places of its set bits, in order.
_PLACES = np.argsort(~np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), kind="stable")


class Marks:
    """A set of rows.

    It keeps the bits and one count for each block of 256 rows, so a row takes 1.25 bits. Source: Jacobson:
    Space-efficient static trees and graphs, 1989.

    Args:
        bits: bit i, counted from the lowest bit of the first byte, is set if row i is in the set. They fill whole
            blocks; see :func:`no_bits`.
    """

    def __init__(self, bits: Bits) -> None:
        self._bits = bits
        self._words: NDArray[np.uint64] = bits.view("<u8")
        counts = np.bitwise_count(self._words.reshape(-1, _WORDS)).sum(axis=1, dtype=np.int64)
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Marks:
        """Return the set of the rows for which a mask is True."""
        bits = no_bits(len(mask))
        packed = np.packbits(mask, bitorder="little")
        bits[: len(packed)] = packed
        return cls(bits)

    @classmethod
    def of_rows(cls, size: int, pieces: Iterable[Numbers]) -> Marks:
        """Return the set of all rows in these pieces; each is below ``size``."""
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
        left = ranks - self._before[block]
        place = block * _WORDS
        # Go to the next word if the rank lies after this one.
        for _ in range(_WORDS - 1):
            count = np.bitwise_count(self._words[place]).astype(np.int64)
            behind = left >= count
            place += behind
            left -= count * behind
        octets = self._words[place]
        # Each byte of ``counts`` holds the number of bits set up to the same byte of the word. Source: Vigna: Broadword
        # implementation of rank/select queries, 2008.
        counts = octets - (octets >> _U[1] & _FIVES)
        counts = (counts & _THREES) + (counts >> _U[2] & _THREES)
        counts = (counts + (counts >> _U[4]) & _NIBBLES) * _ONES
        wanted = left.astype(np.uint64)
        octet = np.bitwise_count(((wanted * _ONES | _HIGHS) - counts) & _HIGHS).astype(np.uint64) << _U[3]
        wanted -= (counts << _U[8]) >> octet & _BYTE
        bit = _PLACES[octets >> octet & _BYTE, wanted]
        rows: Numbers = (place << 6) + octet.astype(np.int64) + bit
        return rows

    def row(self, rank: int) -> int:
        """Return the row of one rank, in [0, len)."""
        block = int(self._before.searchsorted(rank, side="right")) - 1
        left = rank - int(self._before[block])
        place = block * _BLOCK_ROWS
        words = iter(self._words[block * _WORDS : (block + 1) * _WORDS].tolist())
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
        """Return the rows of consecutive ranks, whose blocks are unpacked only once."""
        first, last = (int(self._before.searchsorted(rank, side="right")) - 1 for rank in (start, stop - 1))
        octets = self._bits[first * _WORDS * 8 : (last + 1) * _WORDS * 8]
        rows = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
        begin = start - int(self._before[first])
        return rows[begin : begin + stop - start] + first * _BLOCK_ROWS


class AllBut:
    """All rows below a size but a few: 8 bytes for each that is left out.

    Args:
        excluded: the rows that are left out, ascending.
        size: the number of all rows.
    """

    def __init__(self, excluded: Numbers, size: int) -> None:
        self._size = size
        # How many rows of the set come before each that is left out.
        self._before = excluded - np.arange(len(excluded))

    @property
    def excluded(self) -> Numbers:
        """The rows that are left out, ascending."""
        return self._before + np.arange(len(self._before))

    def __reduce__(self) -> tuple[Any, ...]:
        return AllBut, (self.excluded, self._size)

    def __len__(self) -> int:
        return self._size - len(self._before)

    def take(self, ranks: Numbers) -> Numbers:
        """Return the rows of these ranks, each in [0, len)."""
        return ranks + self._before.searchsorted(ranks, side="right")

    def row(self, rank: int) -> int:
        """Return the row of one rank, in [0, len)."""
        return rank + int(self._before.searchsorted(rank, side="right"))


def no_bits(size: int) -> Bits:
    """Return the bits of an empty set of rows below ``size``, in whole blocks."""
    return np.zeros(-(-size // _BLOCK_ROWS) * _WORDS * 8, np.uint8)
