"""Pieces of documents, and where they lie in rows of one length: arithmetic and copies.

::

    documents   0: a b c    1: d    2: e f        row of 5 cells, with separators:   b c . d .
    pieces      record   begin   count   offset   ends   segment   cells
                0        1       2       0        True   1         3
                1        0       1       3        True   2         2
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.protocols import Dataset, Sources
from cachelayer.records.memory import Ints, splits_of


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of documents, in the order in which they lie in the rows. Each array has an item for each piece."""

    row: Ints
    """The row that the piece is in."""
    record: Ints
    """The record that the piece is of."""
    begin: Ints
    """The first value of the document that the piece has."""
    count: Ints
    """The number of values of the piece, which may be 0."""
    offset: Ints
    """The cell of the row at which the piece begins."""
    ends: NDArray[np.bool_]
    """True if the document is known to end with the piece."""
    segment: Ints
    """The number of the document in the row, from 1."""
    cells: Ints
    """The number of cells of the piece: of its values, and of the separator after them if the row has it."""

    def not_empty(self) -> Pieces:
        """Return the pieces that have values."""
        return self.chosen(self.count > 0)

    def chosen(self, mask: NDArray[np.bool_]) -> Pieces:
        """Return the pieces for which a mask has True."""
        if mask.all():
            return self
        rows = np.flatnonzero(mask)
        return Pieces(*(getattr(self, field.name)[rows] for field in fields(self)))

    def separators(self, length: int) -> Ints:
        """Return the cell of each separator, with the cells of all rows numbered one row after another."""
        ended = np.flatnonzero(self.cells > self.count)
        return self.row[ended] * length + self.offset[ended] + self.count[ended]

    def sources(self, documents: Dataset[Any]) -> Sources:
        """Return the sources of the rows, given the dataset whose elements have the documents."""
        sources = documents.sources(self.record)
        piece = sources.element
        begin = self.begin[piece]
        end = begin + self.count[piece]
        return replace(sources, element=self.row[piece], begin=begin, end=end, offset=self.offset[piece])

    def placed(self, values: NDArray[Any], rows: int, length: int) -> NDArray[Any]:
        """Return the values of the pieces in their rows, with zeros around them: ``[rows, length, *shape]``.

        Args:
            values: the values of all pieces, one after another, ``[values, *shape]``; the result may share
                their memory.
            rows: the number of rows.
            length: the number of cells of a row.
        """
        if len(values) == rows * length:
            # All cells have values, in the order of the pieces.
            return values.reshape(rows, length, *values.shape[1:])
        out = np.zeros((rows * length, *values.shape[1:]), values.dtype)
        splits = splits_of(self.count)
        starts = self.row * length + self.offset
        # Pieces that touch are one range. Few ranges are copied one by one; for many ranges, a mask of all cells is
        # made from the changes at their ends, and the values are written where it is True.
        first = np.flatnonzero(np.append(True, starts[1:] != starts[:-1] + self.count[:-1])[: len(starts)])
        if len(first) <= rows:
            ends = np.append(first, len(starts))[1:]
            ranges = zip(starts[first].tolist(), splits[first].tolist(), splits[ends].tolist(), strict=True)
            for to, start, stop in ranges:
                out[to : to + stop - start] = values[start:stop]
        else:
            change = np.zeros(len(out) + 1, np.int8)
            change[starts] = 1
            change[starts + self.count] -= 1
            out[np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)] = values
        return out.reshape(rows, length, *values.shape[1:])


def segments_of(pieces: Pieces, rows: int, length: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the segment id of each cell and its position in its segment, ``[rows, length]``; 0 for padding."""
    filled = np.bincount(pieces.row, pieces.cells, rows).astype(np.int64)
    # The padding of a row counts as one more segment after all others.
    ends = np.cumsum(np.bincount(pieces.row, minlength=rows))
    counts = np.insert(pieces.cells, ends, length - filled)
    segments = np.repeat(np.insert(pieces.segment.astype(np.int32), ends, 0), counts).reshape(rows, length)
    flat = np.arange(rows * length, dtype=np.int32)
    flat -= np.repeat(splits_of(counts)[:-1].astype(np.int32), counts)
    positions = flat.reshape(rows, length)
    for place, end in enumerate(filled.tolist()):
        positions[place, end:] = 0
    return segments, positions
