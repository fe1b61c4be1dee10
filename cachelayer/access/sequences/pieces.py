"""Pieces of documents, and where they lie in rows of one length: arithmetic and copies."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.protocols import Dataset, Sources
from cachelayer.records.memory import Ints, splits_of


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of documents, ordered by their place: all but ``ends`` are int64 of shape ``[pieces]``.

    Args:
        row: the row that holds each.
        record: the record that each comes from.
        begin: its first value in the record.
        count: the number of its values, which may be 0.
        offset: its place in the row.
        ends: bool, True if its document is known to end with it.
        segment: the number of its document in the row, from 1.
        cells: the number of cells that its values take, with the separator after them if the row holds that.
    """

    row: Ints
    record: Ints
    begin: Ints
    count: Ints
    offset: Ints
    ends: NDArray[np.bool_]
    segment: Ints
    cells: Ints

    def not_empty(self) -> Pieces:
        return self.chosen(self.count > 0)

    def chosen(self, mask: NDArray[np.bool_]) -> Pieces:
        """Return some of the pieces."""
        if mask.all():
            return self
        rows = np.flatnonzero(mask)
        return Pieces(*(getattr(self, field.name)[rows] for field in fields(self)))

    def separators(self, length: int) -> Ints:
        """Return the place of each separator, where the cells of all rows are numbered one after another."""
        ended = np.flatnonzero(self.cells > self.count)
        return self.row[ended] * length + self.offset[ended] + self.count[ended]

    def sources(self, documents: Dataset[Any]) -> Sources:
        """Return where the pieces come from, given the dataset that has the records as elements."""
        sources = documents.sources(self.record)
        piece, end = sources.element, self.begin + self.count
        row, begin, offset = self.row[piece], self.begin[piece], self.offset[piece]
        return replace(sources, element=row, begin=begin, end=end[piece], offset=offset)

    def placed(self, values: NDArray[Any], rows: int, length: int) -> NDArray[Any]:
        """Return rows that hold values, with zeros around them: an array of shape ``[rows, length, *shape]``.

        Args:
            values: those of all pieces, one after another, ``[values, *shape]``; the result may share their memory.
            rows: the number of rows.
            length: the number of cells of each.
        """
        if len(values) == rows * length:
            return values.reshape(rows, length, *values.shape[1:])
        out = np.zeros((rows * length, *values.shape[1:]), values.dtype)
        splits = splits_of(self.count)
        starts = self.row * length + self.offset
        # Pieces that follow one another in a row are copied at once.
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
    # The padding of a row is one more segment, after all others.
    ends = np.cumsum(np.bincount(pieces.row, minlength=rows))
    counts = np.insert(pieces.cells, ends, length - filled)
    segments = np.repeat(np.insert(pieces.segment.astype(np.int32), ends, 0), counts).reshape(rows, length)
    flat = np.arange(rows * length, dtype=np.int32)
    flat -= np.repeat(splits_of(counts)[:-1].astype(np.int32), counts)
    positions = flat.reshape(rows, length)
    for place, end in enumerate(filled.tolist()):
        positions[place, end:] = 0
    return segments, positions
