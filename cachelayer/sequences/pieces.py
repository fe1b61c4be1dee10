"""Pieces of documents, and where they lie in rows of one length: arithmetic and copies.

::

    documents   0: a b c    1: d    2: e f        row of 5 cells, with separators:   b c . d .
    pieces      record   begin   count   offset   ends   cells
                0        1       2       0        True   3
                1        0       1       3        True   2
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.protocols import Dataset, Sources
from cachelayer.support.leases import empty
from cachelayer.support.memory import Ints, bytes_of, move_ranges, splits_of


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

    def cells_for(self, cells: int, dtype: np.dtype[Any], padding: Any = 0) -> NDArray[Any]:
        """Return an array for the values of so many cells, with padding where no piece has cells."""
        values: NDArray[Any] = empty((cells * dtype.itemsize,)).view(dtype)
        if int(self.cells.sum()) < cells:
            values[:] = padding
        return values

    def placed(self, values: NDArray[Any], rows: int, length: int) -> NDArray[Any]:
        """Return the values of the pieces in their rows, with zeros around them: ``[rows, length, *shape]``."""
        out = np.zeros((rows * length, *values.shape[1:]), values.dtype)
        if values.size:
            nbytes = values.nbytes // len(values)
            places = (self.row * length + self.offset) * nbytes
            starts = splits_of(self.count)[:-1] * nbytes
            move_ranges(bytes_of(out), places, bytes_of(values), starts, self.count * nbytes)
        return out.reshape(rows, length, *values.shape[1:])


def segments_of(pieces: Pieces, rows: int, length: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the segment id of each cell and its position in its segment, ``[rows, length]``; 0 for padding.

    The id of a segment is the number of its piece in the row, from 1.
    """
    filled = np.bincount(pieces.row, pieces.cells, rows).astype(np.int64)
    splits = splits_of(np.bincount(pieces.row, minlength=rows))
    ids = np.arange(1, len(pieces.row) + 1, dtype=np.int32) - splits[pieces.row].astype(np.int32)
    # The padding of a row counts as one more segment after all others.
    counts = np.insert(pieces.cells, splits[1:], length - filled)
    segments = np.repeat(np.insert(ids, splits[1:], 0), counts).reshape(rows, length)
    flat = np.arange(rows * length, dtype=np.int32)
    flat -= np.repeat(splits_of(counts)[:-1].astype(np.int32), counts)
    is_filled = np.arange(length) < filled[:, None]
    return segments, flat.reshape(rows, length) * is_filled
