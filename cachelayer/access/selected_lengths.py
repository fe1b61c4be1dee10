"""The lengths of the records of a view."""

from __future__ import annotations

import numpy as np

from cachelayer.arrayrecord.length_column import LengthColumn, StoredColumn
from cachelayer.arrayrecord.length_pages import BufferPages, LengthsFile
from cachelayer.arrayrecord.lengths import LENGTH, Layout, encode, header_checksum
from cachelayer.records.memory import Ints
from cachelayer.records.selection import Selection


def selected(column: LengthColumn, selection: Selection) -> LengthColumn:
    """Return the lengths of the selected records.

    Those of consecutive records follow by arithmetic. Those of any others are read once, into memory.
    """
    numbers = selection.numbers
    if isinstance(numbers, range) and (numbers.step == 1 or len(numbers) < 2):
        return column.slice(numbers.start, numbers.start + len(numbers)) if len(numbers) else column.slice(0, 0)
    lengths = [column.take(piece).astype(LENGTH) for piece in selection.pieces()]
    return in_memory(np.concatenate(lengths))


def in_memory(lengths: Ints) -> LengthColumn:
    """Return the column of these lengths."""
    total = int(lengths.sum(dtype=np.int64))
    raw = encode(lengths.reshape(-1, 1))
    file = LengthsFile("lengths", Layout(len(lengths), 1), header_checksum(raw), (total,))
    pages = BufferPages(lambda _: file, lambda _: np.frombuffer(raw, np.uint8), 0, checked=False)
    return StoredColumn(np.array([len(lengths)]), np.array([total]), pages)
