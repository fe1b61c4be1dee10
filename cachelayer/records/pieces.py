"""Pieces of documents in rows of fixed length: what a batch of windows or packs is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Ints, splits_of


class DocumentPiece(NamedTuple):
    """A piece of a document in a window or a pack.

    Args:
        record: the number of the document's record, in the dataset that the view was made of.
        begin, end: the first value of the document that is in the row, and the one after the last.
        offset: the place in the row where the piece begins.
    """

    record: int
    begin: int
    end: int
    offset: int


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of documents, ordered by their place: all but ``ends`` are int64 of shape ``[pieces]``.

    Args:
        row: the row that holds each.
        record: the record that each comes from.
        begin: its first value in the record.
        count: the number of its values, at least 1.
        offset: its place in the row.
        ends: bool, True if its document is known to end with it.
    """

    row: Ints
    record: Ints
    begin: Ints
    count: Ints
    offset: Ints
    ends: NDArray[np.bool_]

    def not_empty(self) -> Pieces:
        held = np.flatnonzero(self.count > 0)
        if len(held) == len(self.count):
            return self
        columns = (self.row, self.record, self.begin, self.count, self.offset)
        row, record, begin, count, offset = (column[held] for column in columns)
        return Pieces(row, record, begin, count, offset, self.ends[held])

    def listed(self) -> list[DocumentPiece]:
        columns = (self.record, self.begin, self.begin + self.count, self.offset)
        return [DocumentPiece(*piece) for piece in zip(*(column.tolist() for column in columns), strict=True)]

    def placed(self, values: NDArray[Any], rows: int, length: int, fill: Any) -> NDArray[Any]:
        """Return rows that hold values.

        Args:
            values: those of all pieces, one after another; the result may share their memory.
            rows: the number of rows.
            length: the number of cells of each.
            fill: what is in all other cells.

        Returns:
            An array of shape ``[rows, length]``.
        """
        if len(values) == rows * length:
            return values.reshape(rows, length)
        if (self.offset[1:] == self.offset[:-1] + self.count[:-1])[self.row[1:] == self.row[:-1]].all():
            out = np.empty((rows, length), values.dtype)
            counts = np.bincount(self.row, self.count, rows).astype(np.int64)
            ranges = zip(splits_of(counts).tolist(), self._first_offsets(rows), counts.tolist(), strict=False)
            for into, (start, begin, count) in zip(out, ranges, strict=True):
                end = begin + count
                if begin:
                    into[:begin] = fill
                if end < length:
                    into[end:] = fill
                into[begin:end] = values[start : start + count]
            return out
        out = np.full((rows, length), fill, values.dtype)
        out.reshape(-1)[self._is_covered(rows * length, length)] = values
        return out

    def _first_offsets(self, rows: int) -> list[int]:
        first = np.zeros(rows, np.int64)
        first[self.row[::-1]] = self.offset[::-1]
        return first.tolist()

    def _is_covered(self, cells: int, length: int) -> NDArray[np.bool_]:
        """Return which cells hold a value, of all rows one after another."""
        starts = self.row * length + self.offset
        change = np.zeros(cells + 1, np.int8)
        change[starts] = 1
        change[starts + self.count] -= 1
        covered: NDArray[np.bool_] = np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)
        return covered
