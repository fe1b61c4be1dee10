"""The index of a shard: the place and the checksum of each record, in a file that can be mapped and needs no parsing.

It is a row of 16 bytes for each record, little-endian; the manifest has its CRC32C::

    u64 position, u32 length, u32 CRC32C of the record

Position and length give the stored bytes of a record: the record itself, or a varint with its length and then its
zstd frame. The length in a row does not count block headers. If all records have n bytes and are not compressed, record
i lies at logical offset ``logical(first) + i * (42 + varint_nbytes(n) + n)``; the manifest has n and the position of
the first one.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import varints
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints
from cachelayer.records.record_buffers import Records

ROW = np.dtype([("position", "<u8"), ("length", "<u4"), ("crc32c", "<u4")])
COMPRESSIONS = ("none", "zstd")
_CHUNK_OVERHEAD = 42


def chunk_nbytes(record_nbytes: int) -> int:
    """Return the logical bytes of an uncompressed chunk of one record."""
    return _CHUNK_OVERHEAD + int(varints.nbytes_of(np.array([record_nbytes]))[0]) + record_nbytes


def check(raw: Bytes | bytes, checksum: int, name: str) -> None:
    """Raise unless these are all bytes of an index that was published."""
    if google_crc32c.value(raw) != checksum:
        raise CorruptionError(f"{name}: not the index that was published: it does not match its checksum")


def record_checksums(raw: bytes) -> NDArray[np.uint32]:
    """Return the CRC32C of each record from the bytes of an index."""
    return np.frombuffer(raw, ROW)["crc32c"]


def mapped_rows(memory: Bytes, begin: Ints | int, numbers: Ints) -> NDArray[np.void]:
    """Return a copy of rows of indices that are in memory.

    Args:
        memory: the memory.
        begin: where the index of each row begins in it: multiples of the bytes of a row.
        numbers: the number of each row in its index, which must have such a row.
    """
    # numpy copies items that are aligned several times as fast as others.
    rows: NDArray[np.void] = memory.view(ROW)[begin // ROW.itemsize + numbers]
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
    return row * ROW.itemsize, (row + 1) * ROW.itemsize
