"""The facts about a shard that its manifest records, and by which readers know it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.lengths import LengthsFile


@dataclass(frozen=True)
class ShardStats:
    """The facts about a shard that a manifest records."""

    records: int
    """The number of records."""
    nbytes: int
    """The bytes of the file."""
    crc32c: int
    """The checksum of the file."""
    sha256: str
    """The hex digest of the records, each after its length as a little-endian uint64."""
    compression: str
    """``none`` or ``zstd``."""
    index_crc32c: int
    """The checksum of the index."""
    record_nbytes: int | None = None
    """The bytes of every record, if all have one size and are not compressed, so that arithmetic tells their places."""
    first_position: int | None = None
    """The position of record 0; None if ``record_nbytes`` is None."""
    lengths_crc32c: int | None = None
    """The checksum of the file of lengths; None if there is none."""
    length_crc32cs: tuple[int, ...] = ()
    """The checksum of the running sums of each leaf of varying length."""
    length_totals: tuple[int, ...] = ()
    """The sum of the lengths of each leaf of varying length."""
    plain_nbytes: int | None = field(default=None, compare=False)
    """The bytes that the file would have without compression; None if it has none. A manifest has only the sum."""

    @property
    def index_nbytes(self) -> int:
        return int(index.nbytes_of(self.records))

    @property
    def lengths_file(self) -> LengthsFile | None:
        return LengthsFile(self.records, self.length_crc32cs, self.length_totals) if self.length_totals else None
