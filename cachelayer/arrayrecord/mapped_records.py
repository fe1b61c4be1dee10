"""Records in files that are mapped as they are on disk: block headers lie before, between and within them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cachelayer.arrayrecord.blocks import HEADER, PAYLOAD, pieces, to_position
from cachelayer.records.memory import Bytes, Ints, gather_ranges, gather_rows, memory_of, window_of
from cachelayer.records.record_buffers import PackedRecords, Records, renamed

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

    def in_one_piece(self) -> list[tuple[Ints, PackedRecords]]:
        """Return groups of the records, with the rows of each: those in one piece where they lie, and copies of others.

        A block header lies within the others.
        """
        is_cut = self.logical % PAYLOAD > PAYLOAD - self.lengths
        whole, cut = np.flatnonzero(~is_cut), np.flatnonzero(is_cut)
        records = self[whole]
        in_place = PackedRecords(self.buffer, to_position(records.logical), records.lengths, name=records.name)
        return [(whole, in_place), (cut, self[cut].copied())]

    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        _, _, begins, counts = pieces(self.logical + starts, lengths)
        return gather_ranges(self.buffer, begins, counts)

    def _slab(self, offset: int, nbytes: int) -> Bytes:
        logical = self.logical + offset
        window = window_of(nbytes, len(self))
        if window < nbytes:
            begins = (logical[:, None] + np.arange(0, nbytes, window)).reshape(-1)
            return self._gathered(begins, window).reshape(len(self), nbytes)
        if nbytes < _LONG:
            return self._gathered(logical, nbytes)
        # Several block headers may cut a row.
        out = np.empty((len(self), nbytes), np.uint8)
        owner, inside, begins, counts = pieces(logical, np.full(len(self), nbytes))
        bounds = (bound.tolist() for bound in (owner, inside, inside + counts, begins, begins + counts))
        for row, to, to_end, start, end in zip(*bounds, strict=True):
            out[row, to:to_end] = self.buffer[start:end]
        return out

    def _gathered(self, logical: Ints, nbytes: int) -> Bytes:
        """Return a copy of ranges of one length, each of which at most one block header cuts, as rows."""
        # Gather the rows as if no block header cut them. Then repair the few that a header does cut.
        blocks = logical // PAYLOAD
        places, starts = logical - blocks * PAYLOAD, logical + HEADER * (blocks + 1)
        out = gather_rows(self.buffer, starts, nbytes)
        (cut,) = (places > PAYLOAD - nbytes).nonzero()
        if len(cut) == 0:
            return out
        before = PAYLOAD - places[cut]
        # Slices of memoryviews take half as long to make as those of arrays.
        into, out_of = memory_of(out.reshape(-1)), memory_of(self.buffer)
        for row, done, start in zip(cut.tolist(), before.tolist(), starts[cut].tolist(), strict=True):
            into[row * nbytes + done : (row + 1) * nbytes] = out_of[start + done + HEADER : start + nbytes + HEADER]
        return out
