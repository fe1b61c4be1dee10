"""Selections: which records of its base a view has, by arithmetic alone."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.user_indices import numbers_or_mask, record_number, record_numbers, sliced

Numbers = NDArray[np.int64]
Bits = NDArray[np.uint8]

# How many numbers are computed at a time when all are needed.
_PIECE = 1 << 16
# A number takes as many bits as this, and a row of a bitmap two.
_NUMBER = 64

_U = [np.uint64(number) for number in range(9)]
_FIVES, _THREES, _NIBBLES, _ONES, _HIGHS = (
    np.uint64(byte * 0x0101010101010101) for byte in (0x55, 0x33, 0x0F, 1, 0x80)
)
_BYTE = np.uint64(0xFF)
# For each byte, the places of its set bits, in order.
_PLACES = np.argsort(~np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), kind="stable")


class Bitmap:
    """A set of rows, found by their ranks: a bit for each row, and a count for each word of 64.

    Args:
        bits: bit i, counted from the lowest bit of the first byte, is set if row i is in the set. They fill whole
            words; see :func:`no_bits`.
    """

    def __init__(self, bits: Bits) -> None:
        self._bits = bits
        self._words: NDArray[np.uint64] = bits.view("<u8")
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bitwise_count(self._words), dtype=np.int64)])

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Bitmap:
        """Return the set of the rows for which a mask is True."""
        bits = no_bits(len(mask))
        packed = np.packbits(mask, bitorder="little")
        bits[: len(packed)] = packed
        return cls(bits)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bitmap, (self._bits,)

    def __len__(self) -> int:
        return int(self._before[-1])

    def row(self, rank: int) -> int:
        """Return the row of one rank, in [0, len)."""
        place = int(self._before.searchsorted(rank, side="right")) - 1
        word = int(self._words[place])
        for _ in range(rank - int(self._before[place])):
            word &= word - 1
        return place * 64 + (word & -word).bit_length() - 1

    def take(self, ranks: Numbers) -> Numbers:
        """Return the rows of these ranks, each in [0, len)."""
        if len(ranks) > 1 and int(ranks[-1]) - int(ranks[0]) == len(ranks) - 1 and (np.diff(ranks) == 1).all():
            return self._rows_between(int(ranks[0]), int(ranks[-1]) + 1)
        place = self._before.searchsorted(ranks, side="right") - 1
        wanted = (ranks - self._before[place]).view(np.uint64)
        octets = self._words[place]
        # Each byte of ``counts`` holds the number of bits set up to the same byte of the word. Source: Vigna: Broadword
        # implementation of rank/select queries, 2008.
        counts = octets - (octets >> _U[1] & _FIVES)
        counts = (counts & _THREES) + (counts >> _U[2] & _THREES)
        counts = (counts + (counts >> _U[4]) & _NIBBLES) * _ONES
        octet = np.bitwise_count(((wanted * _ONES | _HIGHS) - counts) & _HIGHS).astype(np.uint64) << _U[3]
        wanted = wanted - ((counts << _U[8]) >> octet & _BYTE)
        rows: Numbers = (place << 6) + octet.view(np.int64) + _PLACES[octets >> octet & _BYTE, wanted]
        return rows

    def _rows_between(self, start: int, stop: int) -> Numbers:
        """Return the rows of consecutive ranks, whose words are unpacked at once."""
        first, last = (int(self._before.searchsorted(rank, side="right")) - 1 for rank in (start, stop - 1))
        rows = np.flatnonzero(np.unpackbits(self._bits[first * 8 : last * 8 + 8], bitorder="little"))
        begin = start - int(self._before[first])
        return rows[begin : begin + stop - start] + first * 64


def no_bits(size: int) -> Bits:
    """Return the bits of an empty set of rows below ``size``, in whole words."""
    return np.zeros(-(-size // 64) * 8, np.uint8)


@dataclass(frozen=True, eq=False)
class Marked(Sequence[int]):
    """The numbers in a bitmap, all or some of them, ascending or descending.

    Args:
        bitmap: the numbers.
        places: the ranks of those that are meant, in order.
    """

    bitmap: Bitmap
    places: range

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Marked: ...
    def __getitem__(self, index: int | slice) -> int | Marked:
        if isinstance(index, slice):
            return replace(self, places=self.places[index])
        return self.bitmap.row(self.places[index])

    def take(self, places: Numbers) -> Numbers:
        """Return the numbers at these places, each in [0, len)."""
        return self.bitmap.take(_of_range(self.places, places))


@dataclass(frozen=True, eq=False)
class Selection:
    """Records of a base, in order; a record may be in it more than once.

    Args:
        numbers: the record numbers of the base.
    """

    numbers: range | Numbers | Marked

    @classmethod
    def all(cls, records: int) -> Selection:
        """Return the selection of every record of a base."""
        return cls(range(records))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def _is_whole(self) -> bool:
        """True if indices are the base's own numbers."""
        numbers = self.numbers
        return isinstance(numbers, range) and numbers.start == 0 and numbers.step == 1

    def slice(self, rows: slice) -> Selection:
        return Selection(sliced(self.numbers, rows))

    def select(self, indices: Any) -> Selection:
        """Return the records of these indices, in their order; or those of a mask or a slice."""
        if isinstance(indices, slice):
            return self.slice(indices)
        wanted = numbers_or_mask(indices, len(self))
        if wanted.dtype == np.bool_:
            return self._of_mask(wanted)
        # A copy, so that later changes to the caller's array do not change the selection.
        numbers = wanted.copy() if self._is_whole else _taken(self.numbers, wanted)
        numbers.setflags(write=False)
        return Selection(numbers)

    def exclude(self, indices: Any) -> Selection:
        """Return the records without those of these indices."""
        mask = np.ones(len(self), np.bool_)
        mask[record_numbers(indices, len(self))] = False
        return self._of_mask(mask)

    def _of_mask(self, mask: NDArray[np.bool_]) -> Selection:
        numbers = self.numbers
        first, count = int(mask.argmax()) if len(mask) else 0, int(np.count_nonzero(mask))
        if mask[first : first + count].all():
            return Selection(numbers[first : first + count])
        greatest = max(numbers[0], numbers[-1]) + 1
        if isinstance(numbers, np.ndarray) or count * _NUMBER < greatest:
            return Selection(_taken(numbers, np.flatnonzero(mask)))
        # They only grow or only fall, so the bitmap of the base says which they are.
        of_base = np.zeros(greatest, np.bool_)
        of_base[_taken(numbers, np.flatnonzero(mask))] = True
        places = range(count) if numbers[0] < numbers[-1] else range(count - 1, -1, -1)
        return Selection(Marked(Bitmap.of_mask(of_base), places))

    @property
    def has_repeats(self) -> bool:
        """True if a record is in it more than once."""
        numbers = self.numbers
        if not isinstance(numbers, np.ndarray) or (np.diff(numbers) > 0).all():
            return False
        return len(np.unique(numbers)) < len(numbers)

    def segments(self, sizes: Sequence[int]) -> list[range | Numbers]:
        """Return the rows that lie in each segment of the base.

        Args:
            sizes: the number of records of each segment; together they are the whole base.
        """
        if len(sizes) == 1:
            return [range(len(self))]
        ends = np.cumsum(np.asarray(sizes, np.int64)).tolist()
        if not isinstance(self.numbers, np.ndarray):
            return self._runs(ends)
        segment_of = np.searchsorted(ends, self.numbers, side="right")
        return [np.flatnonzero(segment_of == segment) for segment in range(len(sizes))]

    def segment_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return how many rows lie in each segment of the base; their sum alone if the rows mix the segments."""
        rows = self.segments(sizes)
        filled = [segment for segment in rows if len(segment)]
        in_order = all(before[-1] < after[0] for before, after in pairwise(filled))
        return tuple(map(len, rows)) if in_order else (len(self),)

    def _runs(self, ends: Sequence[int]) -> list[range | Numbers]:
        """Return the rows that lie in each segment, for numbers that only grow or only fall.

        Args:
            ends: the number after the last record of each segment.
        """
        records = len(self)
        falls = records > 1 and self.numbers[0] > self.numbers[-1]
        growing: Any = self.numbers[::-1] if falls else self.numbers
        splits = [0, *(bisect_left(growing, end) for end in ends)]
        runs = pairwise(splits)
        return [range(records - stop, records - start) if falls else range(start, stop) for start, stop in runs]

    def take(self, indices: Any) -> Numbers:
        """Return the base's record numbers of these indices, or of a mask or a slice."""
        wanted = record_numbers(indices, len(self))
        return wanted if self._is_whole or len(wanted) == 0 else _taken(self.numbers, wanted)

    def numbers_of(self, rows: Numbers) -> Numbers:
        """Return the base's record numbers of these rows, each in [0, len)."""
        return rows if self._is_whole else _taken(self.numbers, rows)

    def rows_of(self, numbers: Numbers) -> Numbers:
        """Return the rows of which the base's record number is one of these, ascending."""
        if len(numbers) == 0:
            return np.empty(0, np.int64)
        own = self.numbers
        if isinstance(own, range):
            return np.sort(np.array([own.index(number) for number in numbers.tolist() if number in own], np.int64))
        found = [np.flatnonzero(np.isin(piece, numbers)) + place * _PIECE for place, piece in enumerate(self.pieces())]
        return np.concatenate(found)

    def number(self, index: Any) -> int:
        """Return the base's record number of one index."""
        numbers = self.numbers
        # A shortcut for the most common case.
        if type(index) is int and type(numbers) is range and 0 <= index < len(numbers):
            return numbers[index]
        return int(numbers[record_number(index, len(self))])

    def pieces(self) -> Iterator[Numbers]:
        """Yield the base's record numbers, some at a time; at least one piece, which may be empty."""
        for start in range(0, max(1, len(self)), _PIECE):
            yield _taken(self.numbers, np.arange(start, min(start + _PIECE, len(self))))

    def digest(self, base_digest: str, base_records: int) -> str:
        """Return the digest of the view, which is that of the base if the view is the whole base in order.

        Otherwise it is SHA-256 over the base's digest (32 bytes) and the selection: ``range``, start, step and count if
        the numbers form an arithmetic progression, else ``list`` and the numbers; numbers as little-endian int64.
        """
        progression = self.progression()
        if progression == (0, 1, base_records) or (base_records == len(self) == 0):
            return base_digest
        state = hashlib.sha256(bytes.fromhex(base_digest))
        if progression is not None:
            state.update(b"range" + np.array(progression, "<i8").tobytes())
        else:
            state.update(b"list")
            for piece in self.pieces():
                state.update(piece.astype("<i8", copy=False).data)
        return state.hexdigest()

    def progression(self) -> tuple[int, int, int] | None:
        """Return first number, step and count if the numbers form an arithmetic progression, else None."""
        count = len(self)
        if count == 0:
            return 0, 0, 0
        first = int(self.numbers[0])
        step = int(self.numbers[1]) - first if count > 1 else 1
        if isinstance(self.numbers, range):
            return first, step, count
        expected = first
        for piece in self.pieces():
            if int(piece[0]) != expected or not (np.diff(piece) == step).all():
                return None
            expected = int(piece[-1]) + step
        return first, step, count


def _taken(numbers: range | Numbers | Marked, places: Numbers) -> Numbers:
    if isinstance(numbers, range):
        return _of_range(numbers, places)
    return numbers.take(places)


def _of_range(numbers: range, places: Numbers) -> Numbers:
    if numbers.start == 0 and numbers.step == 1:
        return places
    return np.asarray(numbers.start + places * numbers.step, np.int64)
