"""The index of a shard: the place and the checksum of each record, in a file that can be mapped and needs no parsing.

It has a header of 64 bytes, then a row of 16 bytes for each record, all little-endian::

    0   8s   magic
    8   u32  version of this layout
    12  u32  compression: 0 none, 1 zstd
    16  u64  number of records
    24  u64  position of record 0 in the shard
    32  u64  bytes of every record if all have one size and their places follow by arithmetic, else 2**64 - 1
    40  u64  bytes of the shard
    48  u64  zero
    56  u32  CRC32C of the rows
    60  u32  CRC32C of the first 60 bytes

    row: u64 position, u32 length, u32 CRC32C of the record

Position and length give the stored bytes of a record: the record itself, or a varint with its length and then its
zstd frame. The length in a row does not count block headers. Record i of n-byte records lies at logical offset
``logical(first) + i * (42 + varint_nbytes(n) + n)``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import varints
from cachelayer.errors import CorruptionError, FormatError
from cachelayer.records.memory import Bytes, Ints
from cachelayer.records.record_buffers import Records

ROW = np.dtype([("position", "<u8"), ("length", "<u4"), ("crc32c", "<u4")])
HEADER_NBYTES = 64
COMPRESSIONS = ("none", "zstd")
_MAGIC = b"\x89CLIDX\r\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQQI")
_VARIES = 2**64 - 1
_CHUNK_OVERHEAD = 42


@dataclass(frozen=True)
class IndexHeader:
    """The header of an index.

    Args:
        compression: ``none`` or ``zstd``.
        records: the number of records.
        first_position: the position of record 0.
        record_nbytes: the bytes of every record if places follow by arithmetic, else None.
        shard_nbytes: the bytes of the shard.
    """

    compression: str
    records: int
    first_position: int
    record_nbytes: int | None
    shard_nbytes: int


def nbytes_of(records: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of an index, for each number of records."""
    return HEADER_NBYTES + records * ROW.itemsize


def chunk_nbytes(record_nbytes: int) -> int:
    """Return the logical bytes of an uncompressed chunk of one record."""
    return _CHUNK_OVERHEAD + int(varints.nbytes_of(np.array([record_nbytes]))[0]) + record_nbytes


def encode(header: IndexHeader, rows: NDArray[np.void]) -> bytes:
    raw = rows.tobytes()
    head = _HEADER.pack(
        _MAGIC,
        _VERSION,
        COMPRESSIONS.index(header.compression),
        header.records,
        header.first_position,
        _VARIES if header.record_nbytes is None else header.record_nbytes,
        header.shard_nbytes,
        0,
        google_crc32c.value(raw),
    )
    return head + struct.pack("<I", google_crc32c.value(head)) + raw


def decode_header(raw: bytes, index_nbytes: int, name: str) -> IndexHeader:
    if len(raw) < HEADER_NBYTES:
        raise CorruptionError(f"{name}: an index of {len(raw)} bytes was cut short")
    magic, version, compression, records, first, nbytes, shard_nbytes, _, _ = _HEADER.unpack(raw[: _HEADER.size])
    if magic != _MAGIC:
        raise FormatError(f"{name}: not an index of cachelayer")
    if version > _VERSION:
        raise FormatError(f"{name}: index version {version}; this release reads up to {_VERSION}: update cachelayer")
    if header_checksum(raw) != google_crc32c.value(raw[: _HEADER.size]):
        raise CorruptionError(f"{name}: the header of the index does not match its checksum")
    if compression >= len(COMPRESSIONS):
        raise FormatError(f"{name}: compression {compression} is unknown to this release: update cachelayer")
    if index_nbytes != HEADER_NBYTES + records * ROW.itemsize:
        raise CorruptionError(f"{name}: an index of {records} records has other than {index_nbytes} bytes")
    return IndexHeader(
        compression=COMPRESSIONS[compression],
        records=records,
        first_position=first,
        record_nbytes=None if nbytes == _VARIES else nbytes,
        shard_nbytes=shard_nbytes,
    )


def decode_published(raw: bytes, index_nbytes: int, checksum: int, records: int, name: str) -> IndexHeader:
    """Return the header of an index whose checksum and number of records were published."""
    # A damaged version or magic must not look like another format.
    if google_crc32c.value(raw[: _HEADER.size]) != checksum:
        if len(raw) < HEADER_NBYTES or header_checksum(raw) == checksum:
            raise CorruptionError(f"{name}: the header of the index does not match its checksum")
        raise CorruptionError(f"{name}: not the index that was published: it was replaced")
    header = decode_header(raw, index_nbytes, name)
    if header.records != records:
        raise CorruptionError(f"{name}: an index of {header.records} records, {records} were published")
    return header


def check(raw: bytes, checksum: int, records: int, name: str) -> IndexHeader:
    """Return the header of a whole index if all of its bytes are those that were published."""
    header = decode_published(raw[:HEADER_NBYTES], len(raw), checksum, records, name)
    if google_crc32c.value(raw[HEADER_NBYTES:]) != rows_checksum(raw):
        raise CorruptionError(f"{name}: its rows do not match their checksum")
    return header


def header_checksum(raw: bytes) -> int:
    """Return the CRC32C at the end of a header, which covers all that is before it, with the checksum of the rows."""
    checksum: int = struct.unpack("<I", raw[_HEADER.size : HEADER_NBYTES])[0]
    return checksum


def rows_checksum(raw_header: bytes) -> int:
    """Return the CRC32C of the rows, which a header holds."""
    checksum: int = _HEADER.unpack(raw_header[: _HEADER.size])[-1]
    return checksum


def record_checksums(raw: bytes) -> NDArray[np.uint32]:
    """Return the CRC32C of each record from the bytes of an index."""
    return np.frombuffer(raw, ROW, offset=HEADER_NBYTES)["crc32c"]


def mapped_rows(memory: Bytes, begin: Ints | int, numbers: Ints) -> NDArray[np.void]:
    """Return a copy of rows of indices that are in memory.

    Args:
        memory: the memory.
        begin: where the index of each row begins in it: multiples of the bytes of a row.
        numbers: the number of each row in its index, which must have such a row.
    """
    # numpy copies items that are aligned several times as fast as others.
    rows: NDArray[np.void] = memory.view(ROW)[(begin + HEADER_NBYTES) // ROW.itemsize + numbers]
    return rows


def mismatches(records: Records, checksums: NDArray[np.uint32]) -> Ints:
    """Return the rows of records without block headers that do not match their CRC32Cs."""
    # google_crc32c takes read-only memory alone.
    memory: Bytes = records.buffer.view()
    memory.setflags(write=False)
    nbytes, count = records.packed_nbytes, len(records)
    rows: Sequence[Bytes] | Bytes
    if nbytes is not None:
        begin = records.starts.item(0)
        rows = memory[begin : begin + count * nbytes].reshape(count, nbytes)
    else:
        ends = records.starts + records.lengths
        rows = [memory[start:end] for start, end in zip(records.starts.tolist(), ends.tolist(), strict=True)]
    return np.flatnonzero(np.fromiter(map(google_crc32c.value, rows), np.uint32, count) != checksums)


def row_range(row: int) -> tuple[int, int]:
    """Return the begin and the end of a record's row in an index."""
    start = HEADER_NBYTES + row * ROW.itemsize
    return start, start + ROW.itemsize
