"""Selections: which records of its base a view has, by arithmetic alone."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.bit_sets import AllBut, Marks
from cachelayer.records.memory import distinct
from cachelayer.records.user_indices import numbers_or_mask, record_number, record_numbers, sliced

Numbers = NDArray[np.int64]

# How many numbers are computed at a time when all are needed.
_PIECE = 1 << 16
# An excluded row takes 64 bits in a list, and every row 1.25 bits in a set of marks.
_FEW = 52


class Rows(Protocol):
    """A set of rows of a selection, in ascending order. Picklable."""

    def __len__(self) -> int: ...

    def row(self, rank: int, /) -> int:
        """Return the row of one rank, in [0, len)."""

    def take(self, ranks: Numbers, /) -> Numbers:
        """Return the rows of these ranks, each in [0, len)."""


@dataclass(frozen=True, eq=False)
class Picked(Sequence[int]):
    """Numbers that are computed when they are asked for, so that a view of them takes almost no memory.

    Args:
        numbers: the numbers to pick from.
        rows: which of them are picked.
        places: which of the picked rows, in order.
    """

    numbers: range | Numbers | Picked
    rows: Rows
    places: range

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Picked: ...
    def __getitem__(self, index: int | slice) -> int | Picked:
        if isinstance(index, slice):
            return replace(self, places=self.places[index])
        return int(self.numbers[self.rows.row(self.places[index])])

    @property
    def all_but(self) -> AllBut | None:
        """The rows, if they are all in order but a few; else None."""
        return self.rows if isinstance(self.rows, AllBut) and self.places == range(len(self.rows)) else None

    def take(self, places: Numbers) -> Numbers:
        """Return the numbers at these places, each in [0, len)."""
        return _taken(self.numbers, self.rows.take(_of_range(self.places, places)))


@dataclass(frozen=True, eq=False)
class Selection:
    """Records of a base, in order; a record may be in it more than once.

    Args:
        numbers: the record numbers of the base: a range, int64, or computed when they are asked for.
    """

    numbers: range | Numbers | Picked

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
        """Return a slice of the selection.

        Raises:
            InvalidArgumentError, InvalidTypeError: if Python refuses such a slice.
        """
        return Selection(sliced(self.numbers, rows))

    def select(self, indices: Any) -> Selection:
        """Return the records of these indices, in their order; or those of a mask or a slice.

        Raises:
            RecordIndexError, InvalidArgumentError, InvalidTypeError: see :func:`record_numbers`.
        """
        if isinstance(indices, slice):
            return self.slice(indices)
        wanted = numbers_or_mask(indices, len(self))
        if wanted.dtype == np.bool_:
            return self.picked(Marks.of_mask(wanted))
        # A copy, so that later changes to the caller's array do not change the selection.
        numbers = wanted.copy() if self._is_whole else _taken(self.numbers, wanted)
        numbers.setflags(write=False)
        return Selection(numbers)

    def exclude(self, indices: Any) -> Selection:
        """Return the records without those of these indices.

        Raises:
            RecordIndexError, InvalidArgumentError, InvalidTypeError: see :func:`record_numbers`.
        """
        return self._without(record_numbers(indices, len(self)))

    def _without(self, rows: Numbers) -> Selection:
        if len(rows) * _FEW >= len(self):
            return self._without_many(rows)
        numbers = self.numbers
        if isinstance(numbers, Picked) and (others := numbers.all_but) is not None:
            # Several exclusions in a row are one.
            return Selection(numbers.numbers)._without(np.concatenate([others.excluded, others.take(rows)]))
        excluded = distinct(rows)
        left = len(self) - len(excluded)
        before = excluded - np.arange(len(excluded))
        if ((before == 0) | (before == left)).all():
            first = int(np.count_nonzero(before == 0))
            return Selection(numbers[first : first + left])
        return self.picked(AllBut(excluded, len(self)))

    def _without_many(self, rows: Numbers) -> Selection:
        mask = np.ones(len(self), np.bool_)
        mask[rows] = False
        first, left = int(mask.argmax()) if len(mask) else 0, int(np.count_nonzero(mask))
        if mask[first : first + left].all():
            return Selection(self.numbers[first : first + left])
        return self.picked(Marks.of_mask(mask))

    def picked(self, rows: Rows) -> Selection:
        """Return the records at these rows."""
        return Selection(Picked(self.numbers, rows, range(len(rows))))

    @property
    def has_repeats(self) -> bool:
        """True if a record is in it more than once."""
        numbers = self.numbers
        while isinstance(numbers, Picked):
            numbers = numbers.numbers
        if isinstance(numbers, range) or (np.diff(numbers) > 0).all():
            return False
        own = numbers if numbers is self.numbers else np.concatenate(list(self.pieces()))
        return len(np.unique(own)) < len(own)

    def segments(self, sizes: Sequence[int]) -> list[range | Numbers]:
        """Return the rows that lie in each segment of the base.

        Args:
            sizes: the number of records of each segment; together they are the whole base.
        """
        if len(sizes) == 1:
            return [range(len(self))]
        ends = np.cumsum(np.asarray(sizes, np.int64)).tolist()
        if _is_monotone(self.numbers):
            return self._runs(ends)
        segment_of = np.searchsorted(ends, np.concatenate(list(self.pieces())), side="right")
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
        """Return the base's record numbers of these indices, or of a mask or a slice.

        Raises:
            RecordIndexError, InvalidArgumentError, InvalidTypeError: see :func:`record_numbers`.
        """
        wanted = record_numbers(indices, len(self))
        return wanted if self._is_whole or len(wanted) == 0 else _taken(self.numbers, wanted)

    def numbers_of(self, rows: Numbers) -> Numbers:
        """Return the base's record numbers of these rows, each in [0, len)."""
        return rows if self._is_whole else _taken(self.numbers, rows)

    def number(self, index: Any) -> int:
        """Return the base's record number of one index.

        Raises:
            RecordIndexError, InvalidTypeError: see :func:`record_number`.
        """
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


def _taken(numbers: range | Numbers | Picked, places: Numbers) -> Numbers:
    if isinstance(numbers, range):
        return _of_range(numbers, places)
    return numbers.take(places) if isinstance(numbers, Picked) else np.asarray(numbers[places], np.int64)


def _of_range(numbers: range, places: Numbers) -> Numbers:
    if numbers.start == 0 and numbers.step == 1:
        return places
    return np.asarray(numbers.start + places * numbers.step, np.int64)


def _is_monotone(numbers: range | Numbers | Picked) -> bool:
    """Return whether numbers are known, without computing them, to only grow or only fall."""
    while isinstance(numbers, Picked):
        numbers = numbers.numbers
    return isinstance(numbers, range)
