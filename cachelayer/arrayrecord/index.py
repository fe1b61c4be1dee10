"""Where the records of a shard lie: block headers, the index of a shard, and the facts about both in the manifest.

A block header of 24 bytes stands at every multiple of 64 KiB, even within a record. A *position* is an offset in the
file. A *logical* offset does not count block headers, so the bytes of a record have consecutive logical offsets::

    position          0      24                      65536     65560
                      | head | signature, records ... | head    | records go on ...
    logical offset    0      0                       65512     65512

The index of a shard has the place and the checksum of each record. It is read in place, without parsing. 16 bytes
identify the records. A row of 16 bytes follows for each record, little-endian. The manifest has the CRC32C of the whole
index::

    the first 16 bytes of the SHA-256 of the records of the shard
    u64 position, u32 length, u32 CRC32C of record 0
    u64 position, u32 length, u32 CRC32C of record 1
    ...

Position and length give the stored bytes of a record: the record itself, or if it is compressed a varint with its
length and then its zstd frame. The length does not count block headers. The checksum is of the record, decompressed.

If all records have n bytes and are not compressed, readers need no rows: record i lies at the logical offset
``to_logical(first) + i * (42 + bytes of n as a varint + n)``. The manifest has n and the position of the first record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError
from cachelayer.gather import Buffers
from cachelayer.records.spans import Spans, lie_outside
from cachelayer.support.memory import Bytes, Ints

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthsFile

BLOCK = 1 << 16
HEADER = 24
PAYLOAD = BLOCK - HEADER
SIGNATURE = 40
"""The logical bytes of the empty chunk that a file begins with, before any record."""
ROW = np.dtype([("position", "<u8"), ("length", "<u4"), ("crc32c", "<u4")])
IDENTITY_NBYTES = ROW.itemsize
MOST_LENGTH = 2**32 - 1
"""The largest length: no record has more bytes, so no leaf has more values."""
COMPRESSIONS = ("none", "zstd")
_CHUNK_OVERHEAD = 42


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
        return int(nbytes_of(self.records))

    @property
    def lengths_file(self) -> LengthsFile | None:
        if not self.length_totals:
            return None
        from cachelayer.arrayrecord.lengths import LengthsFile

        return LengthsFile(self.records, self.length_crc32cs, self.length_totals)


@overload
def to_logical(position: int) -> int: ...
@overload
def to_logical(position: Ints) -> Ints: ...
def to_logical(position: Any) -> Any:
    """Return the logical offset of a position. A header has the logical offset of the first byte after it."""
    # numpy divides by one number several times as fast as it finds the remainder.
    block = position // BLOCK
    return block * PAYLOAD + np.maximum(position - block * BLOCK - HEADER, 0)


@overload
def to_position(logical: int) -> int: ...
@overload
def to_position(logical: Ints) -> Ints: ...
def to_position(logical: Any) -> Any:
    """Return the position of the byte at a logical offset."""
    return logical + HEADER * (logical // PAYLOAD + 1)


def buffers_of_ranges(ranges: Sequence[Any], begins: Ints, first: int = 0) -> Buffers:
    """Return ranges of files as buffers, in which starts count from the block that the range begins in.

    ``begins`` are positions in the files; nothing is read before the logical offset ``first``.
    """
    within = begins % BLOCK
    arrays = [np.frombuffer(raw, np.uint8) for raw in ranges]
    table = np.ones((len(arrays), 4), np.int64)
    table[:, 0] = [array.__array_interface__["data"][0] for array in arrays]
    table[:, 0] -= within
    table[:, 1] = [len(array) for array in arrays]
    table[:, 1] += within
    table[:, 3] = np.maximum(to_logical(begins), first) - begins // BLOCK * PAYLOAD
    return Buffers(table, arrays)


def check_inside(logical: Ints, lengths: Ints, room: Ints | int, name: Callable[[int], str], first: int = 0) -> None:
    """Raise if a range does not lie in its file, from ``first`` on. All numbers are without block headers."""
    wrong = lie_outside(logical, lengths, room) | (logical < first)
    if wrong.any():
        raise CorruptionError(f"{name(int(wrong.argmax()))} does not lie in its file: the file or its index is damaged")


def chunk_nbytes(record_nbytes: int) -> int:
    """Return the logical bytes of an uncompressed chunk of one record."""
    varint_nbytes = max(1, -(-record_nbytes.bit_length() // 7))
    return _CHUNK_OVERHEAD + varint_nbytes + record_nbytes


def nbytes_of(counts: Any) -> Any:
    """Return the bytes of the index of so many records, or of each of several indices."""
    return IDENTITY_NBYTES + counts * ROW.itemsize


def encode(sha256: str, rows: NDArray[np.void]) -> bytes:
    """Return the bytes of an index, from the SHA-256 of the records in hexadecimal and the rows."""
    return identity_of(sha256) + rows.tobytes()


def identity_of(sha256: str) -> bytes:
    """Return the bytes at the beginning of the index of records with this SHA-256."""
    return bytes.fromhex(sha256)[:IDENTITY_NBYTES]


def check_identity(raw: bytes, sha256: str, name: str) -> None:
    """Raise unless an index begins with the bytes that identify the records of its shard."""
    if raw[:IDENTITY_NBYTES] != identity_of(sha256):
        raise CorruptionError(f"{name}: not the index that was published: it was damaged or replaced")


def rows_of(raw: Bytes | bytes) -> NDArray[np.void]:
    """Return the rows of a whole index."""
    return np.frombuffer(raw, ROW, offset=IDENTITY_NBYTES)


def check(raw: Bytes | bytes, checksum: int, name: str) -> None:
    """Raise unless these bytes are the index that was published, as its checksum says."""
    if google_crc32c.value(raw) != checksum:
        raise CorruptionError(f"{name}: not the index that was published: it does not match its checksum")


def mismatches(records: Spans, checksums: NDArray[np.uint32]) -> Ints:
    """Return the rows of packed records that do not match their CRC32Cs."""
    return np.flatnonzero(checksums_of(records) != checksums)


def checksums_of(records: Spans) -> NDArray[np.uint32]:
    """Return the CRC32Cs of packed records."""
    # google_crc32c takes read-only memory alone.
    memory: Bytes = records.buffer.view()
    memory.setflags(write=False)
    bounds = zip(records.starts.tolist(), (records.starts + records.lengths).tolist(), strict=True)
    rows = [memory[start:end] for start, end in bounds]
    return np.fromiter(map(google_crc32c.value, rows), np.uint32, len(rows))


def row_range(row: int) -> tuple[int, int]:
    """Return the begin and the end of a record's row in an index."""
    start = IDENTITY_NBYTES + row * ROW.itemsize
    return start, start + ROW.itemsize
