"""Read parts of large records in an object store: the bytes that a caller uses, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cachelayer.arrayrecord.blocks import to_position, without_headers
from cachelayer.arrayrecord.ranged_rows import check_inside, extents
from cachelayer.locks import cached_property
from cachelayer.records.memory import Bytes, Ints, distinct, gather_ranges, splits_of

if TYPE_CHECKING:
    from cachelayer.arrayrecord.ranged import RangedShards, ReadPieces

LARGE_NBYTES = 1 << 17
"""A record of fewer bytes is read whole: that takes one request, and hardly longer than a part of it."""
_HEAD_NBYTES = 1 << 12


@dataclass(frozen=True, eq=False)
class LargeRecords:
    """Stored records of which each use fetches its own bytes. They are not compared with their checksums.

    The first bytes of all records are fetched once, because small leaves and the lengths of the others lie there.

    Args:
        read_pieces: reads ranges of objects.
        names: the object of each record.
        logical: where each record begins, in bytes of its object without block headers.
        lengths: the bytes of each record.
    """

    read_pieces: ReadPieces
    names: Sequence[str]
    logical: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def uniform_nbytes(self) -> None:
        """None: their lengths are compared with what their leaves take."""
        return None

    def slab(self, offset: int, nbytes: int) -> Bytes:
        """Return the range of each record: a new uint8 array of shape ``[rows, nbytes]``."""
        rows = len(self)
        return self.ranges(np.full(rows, offset), np.full(rows, nbytes)).reshape(rows, nbytes)

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        """Return the result of :meth:`slab` as arrays of ``rows`` rows each."""
        slab = self.slab(offset, nbytes)
        return [slab[row : row + rows].copy() for row in range(0, len(slab), rows)]

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        """Return a range of each record, all in one new uint8 array."""
        heads, head_lengths = self._heads
        if (starts + lengths <= head_lengths).all():
            return gather_ranges(heads, splits_of(head_lengths)[:-1] + starts, lengths)
        return self._fetched(starts, lengths)

    @cached_property
    def _heads(self) -> tuple[Bytes, Ints]:
        """The first bytes of all records, one after another, and their numbers."""
        lengths = np.minimum(self.lengths, _HEAD_NBYTES)
        return self._fetched(np.zeros(len(self), np.int64), lengths), lengths

    def _fetched(self, starts: Ints, lengths: Ints) -> Bytes:
        rows = np.flatnonzero(lengths)
        logical = self.logical[rows] + starts[rows]
        begins, ends = to_position(logical), to_position(logical + lengths[rows] - 1) + 1
        ranges = zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True)
        bodies = self.read_pieces([(self.names[row], begin, end) for row, begin, end in ranges])
        parts = [without_headers(pieces, begin) for pieces, begin in zip(bodies, begins.tolist(), strict=True)]
        return np.concatenate([*parts, np.empty(0, np.uint8)])


def large_records(ranged: RangedShards, shard_of: Ints, within: Ints) -> LargeRecords | None:
    """Return records of which only the bytes that are used are fetched; None if they are best read whole.

    Args:
        ranged: reads their indices.
        shard_of, within: the shard of each record, and its number there.

    Raises:
        CorruptionError: if a record does not lie where its index says.
        StorageError: if the store cannot be read.
    """
    shards = distinct(shard_of).tolist()
    if any(ranged.mean_nbytes(shard) < LARGE_NBYTES for shard in shards):
        return None
    rows = ranged.places(shard_of, within)
    if any(ranged.indices.is_compressed(shard) for shard in shards):
        return None

    def name(row: int) -> str:
        return f"{names[row]}: record {within[row]} of the shard"

    stored = [ranged.shards[shard] for shard in shard_of.tolist()]
    names = [each.name for each in stored]
    logical, lengths, begins, ends = extents(rows)
    check_inside(rows, begins, ends, np.array([each.stats.nbytes for each in stored], np.int64), name)
    return LargeRecords(ranged.read_pieces, names, logical, lengths)
