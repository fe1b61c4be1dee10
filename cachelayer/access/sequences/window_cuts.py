"""Windows: which values of the concatenation of all documents each has, by arithmetic and bisection alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cachelayer.arrayrecord.length_column import LengthColumn
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.pieces import Pieces

Remainder = Literal["drop", "pad"]


@dataclass(frozen=True)
class Windowing:
    """How the concatenation of all documents is cut into windows: window i begins at value ``i * stride``.

    Args:
        length: the number of values of a window.
        stride: how far a window begins after the one before it.
        extra: 1 if a separator stands after each document, else 0.
        remainder: "drop" leaves out windows that reach past the last value; "pad" has the first of them, if the windows
            before it do not hold all values.
    """

    length: int
    stride: int
    extra: int = 0
    remainder: Remainder = "drop"

    def count(self, total: int) -> int:
        """Return the number of windows over so many values, separators among them."""
        if self.remainder == "drop":
            return max(0, (total - self.length) // self.stride + 1)
        # The last window is the first that reaches the end, unless it would begin after it.
        last = max(0, -(-(total - self.length) // self.stride))
        return last + 1 if last * self.stride < total else last

    def pieces(self, column: LengthColumn, numbers: Ints) -> tuple[Pieces, Ints, Ints]:
        """Return what some windows hold.

        Args:
            column: the lengths of all documents.
            numbers: the windows, each less than ``count``.

        Returns:
            The pieces; the place of each separator, where the cells of all windows are numbered one after another; and
            the number of cells in each window that the values reach.
        """
        slots = column.plus(self.extra)
        begins = numbers * self.stride
        filled = np.minimum(slots.total - begins, self.length)
        # Both ends of a window follow each other, so that what the search for one reads is at hand for the other.
        found, places = slots.locate(np.stack([begins, begins + filled - 1], axis=1).reshape(-1))
        first, places = found[::2], places[::2]
        counts = found[1::2] - first + 1
        splits = splits_of(counts)
        row = np.repeat(np.arange(len(numbers)), counts)
        record = np.arange(splits[-1]) - (splits[:-1] - first)[row]
        lengths = column.take(record)
        # Where each document begins in its window: before the window, for the first.
        ends = splits_of(lengths + self.extra)
        at = ends[:-1] - (ends[splits[:-1]] + places)[row]
        begin = np.maximum(-at, 0)
        count = np.minimum(lengths, filled[row] - at) - begin
        pieces = Pieces(row, record, begin, count, np.maximum(at, 0), begin + count == lengths).not_empty()
        separators = np.empty(0, np.int64)
        if self.extra:
            place = at + lengths
            inside = np.flatnonzero((place >= 0) & (place < self.length))
            separators = row[inside] * self.length + place[inside]
        return pieces, separators, filled
