"""Records in files that are mapped as they are on disk: block headers lie before, between and within them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cachelayer.arrayrecord.blocks import HEADER, PAYLOAD, pieces
from cachelayer.records.memory import Bytes, Ints, gather_ranges, gather_rows
from cachelayer.records.record_buffers import Records, renamed

_LONG = 1 << 14


@dataclass(frozen=True, eq=False)
class MappedRecords(Records):
    """Records in files. All must lie in their files: reading elsewhere ends the process.

    Args:
        buffer: uint8, the files, each at a multiple of 64 KiB.
        logical: where each record begins in the buffer, without the block headers before it.
        lengths, uniform_nbytes, name: see :class:`Records`.
    """

    buffer: Bytes
    logical: Ints
    lengths: Ints
    uniform_nbytes: int | None
    name: Callable[[int], str]

    def __getitem__(self, rows: Ints | slice) -> MappedRecords:
        name = renamed(self, rows)
        return MappedRecords(self.buffer, self.logical[rows], self.lengths[rows], self.uniform_nbytes, name)

    def row(self, row: int) -> MappedRecords:
        return self[row : row + 1]

    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        _, _, begins, counts = pieces(self.logical + starts, lengths)
        return gather_ranges(self.buffer, begins, counts)

    def _slab(self, offset: int, nbytes: int) -> Bytes:
        logical = self.logical + offset
        if nbytes >= _LONG:
            # To copy long rows piece by piece takes no longer than to gather them, and lets other threads run.
            out = np.empty((len(self), nbytes), np.uint8)
            owner, inside, begins, counts = pieces(logical, np.full(len(self), nbytes))
            bounds = (bound.tolist() for bound in (owner, inside, inside + counts, begins, begins + counts))
            for row, to, to_end, start, end in zip(*bounds, strict=True):
                out[row, to:to_end] = self.buffer[start:end]
            return out
        # Gather the rows as if no block header cut them. Then repair the few that a header does cut.
        blocks = logical // PAYLOAD
        places, starts = logical - blocks * PAYLOAD, logical + HEADER * (blocks + 1)
        out = gather_rows(self.buffer, starts, nbytes)
        (cut,) = (places > PAYLOAD - nbytes).nonzero()
        after = PAYLOAD - places[cut]
        ends = starts[cut] + after + HEADER
        for row, done, start in zip(cut.tolist(), after.tolist(), ends.tolist(), strict=True):
            out[row, done:] = self.buffer[start : start + nbytes - done]
        return out
