"""Pieces of documents in rows of fixed length: what a batch of windows or packs is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset import Dataset
from cachelayer.protocols import Sources
from cachelayer.records.memory import Ints, splits_of


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of documents, ordered by their place: all but ``ends`` are int64 of shape ``[pieces]``.

    Args:
        row: the row that holds each.
        record: the record that each comes from.
        begin: its first value in the record.
        count: the number of its values.
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

    def sources(self, documents: Dataset) -> Sources:
        """Return where the pieces come from, given the dataset that has the records as elements."""
        found = documents.sources(self.record)
        piece = found.element
        end = self.begin + self.count
        return replace(found, element=self.row[piece], begin=self.begin[piece], end=end[piece], offset=self.offset)

    def placed(self, values: NDArray[Any], rows: int, length: int) -> NDArray[Any]:
        """Return rows that hold values, with zeros around them: an array of shape ``[rows, length]``.

        Args:
            values: those of all pieces, one after another; the result may share their memory.
            rows: the number of rows.
            length: the number of cells of each.
        """
        if len(values) == rows * length:
            return values.reshape(rows, length)
        out = np.zeros((rows, length), values.dtype)
        splits = splits_of(self.count)
        starts = self.row * length + self.offset
        # Pieces that follow one another in a row are copied at once.
        is_first = np.ones(len(starts), np.bool_)
        is_first[1:] = starts[1:] != starts[:-1] + self.count[:-1]
        first = np.flatnonzero(is_first)
        ends = np.append(first, len(starts))[1:]
        flat = out.reshape(-1)
        for to, start, stop in zip(starts[first].tolist(), splits[first].tolist(), splits[ends].tolist(), strict=True):
            flat[to : to + stop - start] = values[start:stop]
        return out


def segments_of(
    row: Ints, number: Ints, cells: Ints, rows: int, length: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the segment id of each cell and its position in its segment; 0 for padding.

    Args:
        row: the row of each segment; segments fill each row from its first cell on.
        number: the id of each segment.
        cells: the number of its cells.
        rows, length: the number of rows, and of cells in each.

    Returns:
        Two arrays of shape ``[rows, length]``.
    """
    filled = np.bincount(row, cells, rows).astype(np.int64)
    # The padding of a row is one more segment, after all others.
    ends = np.cumsum(np.bincount(row, minlength=rows))
    counts = np.insert(cells, ends, length - filled)
    segments = np.repeat(np.insert(number.astype(np.int32), ends, 0), counts).reshape(rows, length)
    flat = np.arange(rows * length, dtype=np.int32)
    flat -= np.repeat(splits_of(counts)[:-1].astype(np.int32), counts)
    positions = flat.reshape(rows, length)
    for place, end in enumerate(filled.tolist()):
        positions[place, end:] = 0
    return segments, positions
