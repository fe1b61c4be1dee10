"""The index of a shard: the place and the checksum of each record. It is read in place, without parsing.

16 bytes identify the records. A row of 16 bytes follows for each record, little-endian. The manifest has the CRC32C of
the whole index::

    the first 16 bytes of the SHA-256 of the records of the shard
    u64 position, u32 length, u32 CRC32C of record 0
    u64 position, u32 length, u32 CRC32C of record 1
    ...

Position and length give the stored bytes of a record: the record itself, or if it is compressed a varint with its
length and then its zstd frame. The length does not count block headers. The checksum is of the record, decompressed.

If all records have n bytes and are not compressed, readers need no rows: record i lies at the logical offset
``to_logical(first) + i * (42 + varint_nbytes(n) + n)``. The manifest has n and the position of the first record.
"""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import varints
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints
from cachelayer.records.spans import Spans

ROW = np.dtype([("position", "<u8"), ("length", "<u4"), ("crc32c", "<u4")])
IDENTITY_NBYTES = ROW.itemsize
COMPRESSIONS = ("none", "zstd")
_CHUNK_OVERHEAD = 42


def chunk_nbytes(record_nbytes: int) -> int:
    """Return the logical bytes of an uncompressed chunk of one record."""
    return _CHUNK_OVERHEAD + int(varints.nbytes_of(np.array([record_nbytes]))[0]) + record_nbytes


def nbytes_of(records: Any) -> Any:
    """Return the bytes of the index of so many records, or of each of several indices."""
    return IDENTITY_NBYTES + records * ROW.itemsize


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
