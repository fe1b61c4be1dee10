"""The file of a table of weights: which record each draw of a weighted sample gives. It can be mapped.

All little-endian::

    header, 128 bytes
        0    8s   magic
        8    u32  version of this layout
        12   u32  zero
        16   u64  number of records
        24   u64  number of columns: the least power of two that is not below the number of records
        32   32s  what the weights are: a digest
        64   32s  SHA-256 of all that follows the header
        96   u32  CRC32C of all that follows the header
        100  24s  zeros
        124  u32  CRC32C of the first 124 bytes
    i64 for each column
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.sealed_header import SealedHeader
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.records.memory import Bytes, Ints

_HEADER = SealedHeader(struct.Struct("<8sIIQQ32s32sI24s"), b"\x89CLDRAW\n", 1, "table", "weights")
HEADER_NBYTES = _HEADER.nbytes
_COLUMN = np.dtype("<i8")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class TableHeader:
    """The header of a table.

    Args:
        records: the number of records.
        source: what the weights are: a digest, in hexadecimal.
        digest: the SHA-256 of the columns, in hexadecimal.
        checksum: the CRC32C of the columns.
    """

    records: int
    source: str
    digest: str
    checksum: int

    @classmethod
    def of(cls, columns: Ints, records: int, source: str) -> TableHeader:
        """Return the header of a table."""
        digest, checksum = hashlib.sha256(), 0
        for chunk in _chunks(columns.astype(_COLUMN, copy=False).view(np.uint8)):
            digest.update(chunk.data)
            checksum = google_crc32c.extend(checksum, chunk.tobytes())
        return cls(records, source, digest.hexdigest(), checksum)

    def encode(self) -> bytes:
        """Return the bytes of the header."""
        digests = bytes.fromhex(self.source), bytes.fromhex(self.digest)
        counts = self.records, columns_of(self.records)
        return _HEADER.encode(0, *counts, *digests, self.checksum, bytes(24))

    @classmethod
    def decode(cls, raw: bytes, nbytes: int, name: str) -> TableHeader:
        """Return the header in the first bytes of a file of ``nbytes`` bytes.

        Raises:
            FormatError: if it has another format.
            CorruptionError: if it is damaged.
        """
        _, records, columns, source, digest, checksum, _ = _HEADER.decode(raw, name)
        if records == 0 or columns != columns_of(records) or nbytes != table_nbytes(records):
            raise CorruptionError(f"{name}: {nbytes} bytes with {columns} columns for {records} records")
        return cls(records, source.hex(), digest.hex(), checksum)


def columns_of(records: int) -> int:
    """Return the number of columns of a table of so many records."""
    return 1 << (records - 1).bit_length()


def table_nbytes(records: int) -> int:
    """Return the size of the file of a table of so many records."""
    return HEADER_NBYTES + columns_of(records) * _COLUMN.itemsize


def write_table(path: Path, header: TableHeader, columns: Ints) -> None:
    """Write a table to a file.

    Raises:
        StorageError: if that fails.
    """
    try:
        with path.open("wb") as file:
            file.write(header.encode())
            for chunk in _chunks(columns.astype(_COLUMN, copy=False).view(np.uint8)):
                file.write(chunk.data)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def read_table(path: Path) -> tuple[TableHeader, Ints]:
    """Return the header of a file and its columns, mapped; all of them match their checksum.

    Raises:
        FormatError, CorruptionError: if it is not such a table, or is missing.
        StorageError: if it cannot be read.
    """
    raw = MappedFile.open(path).buffer
    header = TableHeader.decode(raw[:HEADER_NBYTES].tobytes(), len(raw), str(path))
    checksum = 0
    for chunk in _chunks(raw[HEADER_NBYTES:]):
        checksum = google_crc32c.extend(checksum, chunk.tobytes())
    if checksum != header.checksum:
        raise CorruptionError(f"{path}: the table of weights does not match its checksum")
    return header, raw[HEADER_NBYTES:].view(_COLUMN)


def _chunks(raw: Bytes) -> Iterator[Bytes]:
    for first in range(0, len(raw), _CHUNK):
        yield raw[first : first + _CHUNK]
