"""Frames: encoded records as they are hashed, each after its length.

::

    records "ab" and "cde"    0200000000000000 6162 0300000000000000 636465
    starts                                     8                     18         of the records, after their lengths
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from cachelayer.records.spans import Records, Spans
from cachelayer.support.leases import empty
from cachelayer.support.memory import Bytes, Ints, memory_of, move_ranges, splits_of

PREFIX = 8
"""The bytes of the length before each record in :class:`Frames`."""
_MAX_ITEM_NBYTES = 2**31


@dataclass(frozen=True, eq=False)
class Frames:
    """Encoded records, each after its length as a little-endian uint64."""

    buffer: Bytes
    """All frames one after another."""
    starts: Ints
    """Where each record begins in the buffer, after its length."""
    lengths: Ints
    """The bytes of each record."""

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def allocate(cls, lengths: Ints, *, zeros: bool = True) -> Frames:
        """Return frames for records of these lengths, to be written into: they hold zeros until then, or anything."""
        splits = splits_of(lengths + PREFIX)
        buffer = empty((int(splits[-1]),))
        if zeros:
            buffer.fill(0)
        frames = cls(buffer, splits[:-1] + PREFIX, lengths)
        uniform = frames.uniform_nbytes
        prefixes = lengths.astype("<u8").view(np.uint8).reshape(-1, PREFIX)
        if uniform is not None:
            buffer.reshape(-1, PREFIX + uniform)[:, :PREFIX] = prefixes
        else:
            rows = np.arange(len(lengths)) * PREFIX
            move_ranges(buffer, splits[:-1], prefixes.reshape(-1), rows, np.full(len(lengths), PREFIX))
        return frames

    @classmethod
    def of(cls, records: Records) -> Frames:
        """Return frames with copies of stored records."""
        lengths = records.lengths
        frames = cls.allocate(lengths, zeros=False)
        records.move(np.zeros(len(lengths), np.int64), lengths, frames.buffer, frames.starts)
        return frames

    @classmethod
    def joined(cls, several: Sequence[Frames]) -> Frames:
        """Return frames with copies of the records of all parts."""
        lengths = np.concatenate([np.empty(0, np.int64), *(frames.lengths for frames in several)])
        buffer = np.concatenate([np.empty(0, np.uint8), *(frames.buffer for frames in several)])
        return cls(buffer, splits_of(lengths + PREFIX)[:-1] + PREFIX, lengths)

    @property
    def uniform_nbytes(self) -> int | None:
        """The bytes of every record if all records have one size, else None."""
        if len(self.lengths) and (self.lengths == self.lengths[0]).all():
            return int(self.lengths[0])
        return None

    def __getitem__(self, rows: slice) -> Frames:
        start, stop, step = rows.indices(len(self))
        if step != 1 or start >= stop:
            return Frames(self.buffer[:0], self.starts[:0], self.lengths[:0])
        first = int(self.starts[start]) - PREFIX
        last = int(self.starts[stop - 1] + self.lengths[stop - 1])
        return Frames(self.buffer[first:last], self.starts[start:stop] - first, self.lengths[start:stop])

    def records(self) -> Spans:
        """Return the records, without a copy."""
        return Spans.in_buffer(self.buffer, self.starts, self.lengths)

    def memory(self) -> memoryview:
        return memory_of(self.buffer)

    def to_list(self) -> list[bytes]:
        """Return the records, without their lengths."""
        return [record for records in self.lists(max(1, len(self))) for record in records]

    def lists(self, together: int) -> Iterator[list[bytes]]:
        """Yield the records, without their lengths, in lists of ``together`` records each; the last may be shorter."""
        uniform = self.uniform_nbytes
        if uniform and uniform < _MAX_ITEM_NBYTES:
            rows = self.buffer.reshape(-1, PREFIX + uniform)[:, PREFIX:].view(f"V{uniform}")[:, 0]
            for start in range(0, len(rows), together):
                yield rows[start : start + together].tolist()
            return
        memory = self.memory()
        bounds = zip(self.starts.tolist(), (self.starts + self.lengths).tolist(), strict=True)
        while records := [bytes(memory[start:end]) for start, end in islice(bounds, together)]:
            yield records
