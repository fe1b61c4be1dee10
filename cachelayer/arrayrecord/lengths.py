"""The file of lengths beside a shard: how many values each leaf of varying length has in each record.

All little-endian; *n* is the number of records, and a page is 256 of them::

    header, 64 bytes
        0   8s   magic
        8   u32  version of this layout
        12  u32  number of leaves
        16  u64  number of records
        24  32s  zeros
        56  u32  CRC32C of the directory
        60  u32  CRC32C of the first 60 bytes
    directory: for each leaf, u32 CRC32C of its table
    table of each leaf: for each page, u64 sum of all lengths before it; u64 sum of all lengths; for each page, u32
        CRC32C of its lengths
    lengths of each leaf: u32 for each record

Zeros fill the directory, each table and the lengths of each leaf up to a multiple of 8 bytes. A chain of checksums
leads from the header, whose checksum is in the manifest, through the directory and the tables to each page.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, FormatError
from cachelayer.records.memory import Bytes, Ints

PAGE = 256
"""The number of records in a page."""
HEADER_NBYTES = 64
LENGTH = np.dtype("<u4")
MOST = 2**32 - 1
"""The largest length: no record has more bytes, so no leaf has more values."""
_SUM = np.dtype("<u8")
_CHECKSUM = np.dtype("<u4")
_MAGIC = b"\x89CLLEN\r\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQ32sI")


def _padded(nbytes: int) -> int:
    return -(-nbytes // 8) * 8


@dataclass(frozen=True)
class Layout:
    """Where everything lies in a file of lengths.

    Args:
        records: the number of records.
        leaves: the number of leaves.
    """

    records: int
    leaves: int

    @property
    def pages(self) -> int:
        """The number of pages of each leaf."""
        return -(-self.records // PAGE)

    @property
    def head_nbytes(self) -> int:
        """The bytes of header and directory."""
        return HEADER_NBYTES + _padded(self.leaves * _CHECKSUM.itemsize)

    @property
    def table_nbytes(self) -> int:
        """The bytes of a table."""
        return _padded((self.pages + 1) * _SUM.itemsize + self.pages * _CHECKSUM.itemsize)

    def table(self, leaf: int) -> tuple[int, int]:
        """Return the begin and the end of a leaf's table."""
        begin = self.head_nbytes + leaf * self.table_nbytes
        return begin, begin + self.table_nbytes

    def lengths(self, leaf: int) -> tuple[int, int]:
        """Return the begin and the end of a leaf's lengths."""
        begin = self.table(self.leaves)[0] + leaf * _padded(self.records * LENGTH.itemsize)
        return begin, begin + self.records * LENGTH.itemsize

    def page_range(self, leaf: int, first: int, stop: int) -> tuple[int, int]:
        """Return the begin and the end of some pages of a leaf."""
        begin, end = self.lengths(leaf)
        nbytes = PAGE * LENGTH.itemsize
        return min(begin + first * nbytes, end), min(begin + stop * nbytes, end)

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""
        return self.lengths(self.leaves)[0]


@dataclass(frozen=True, eq=False)
class Table:
    """What is known of the pages of one leaf.

    Args:
        sums: int64 ``[pages + 1]``: the sum of all lengths before each page, and of all.
        checksums: uint32 ``[pages]``: the CRC32C of the lengths of each page.
    """

    sums: Ints
    checksums: NDArray[np.uint32]


def encode(lengths: NDArray[np.integer]) -> bytes:
    """Return the file of these lengths, of shape ``[records, leaves]`` and each at most ``MOST``."""
    records, leaves = lengths.shape
    layout = Layout(records, leaves)
    raw = bytearray(layout.nbytes)
    directory = []
    for leaf in range(leaves):
        column = np.ascontiguousarray(lengths[:, leaf], LENGTH).tobytes()
        begin, end = layout.lengths(leaf)
        raw[begin:end] = column
        table = _table(lengths[:, leaf], column, layout)
        begin, end = layout.table(leaf)
        raw[begin:end] = table
        directory.append(google_crc32c.value(table))
    begin, end = HEADER_NBYTES, layout.head_nbytes
    raw[begin:end] = np.array(directory, _CHECKSUM).tobytes().ljust(end - begin, b"\0")
    head = _HEADER.pack(_MAGIC, _VERSION, leaves, records, bytes(32), google_crc32c.value(bytes(raw[begin:end])))
    raw[:HEADER_NBYTES] = head + struct.pack("<I", google_crc32c.value(head))
    return bytes(raw)


def _table(lengths: NDArray[np.integer], raw: bytes, layout: Layout) -> bytes:
    sums = np.zeros(layout.pages + 1, _SUM)
    if layout.pages:
        starts = np.arange(layout.pages) * PAGE
        np.cumsum(np.add.reduceat(lengths.astype(np.uint64), starts), out=sums[1:])
    size = PAGE * LENGTH.itemsize
    checksums = [google_crc32c.value(raw[begin : begin + size]) for begin in range(0, len(raw), size)]
    table = sums.tobytes() + np.array(checksums, _CHECKSUM).tobytes()
    return table.ljust(layout.table_nbytes, b"\0")


def header_checksum(raw: bytes) -> int:
    """Return the CRC32C at the end of a header: by the directory and the tables it covers the whole file."""
    checksum: int = struct.unpack("<I", raw[HEADER_NBYTES - 4 : HEADER_NBYTES])[0]
    return checksum


def decode_head(raw: bytes, layout: Layout, checksum: int, name: str) -> list[int]:
    """Return the checksum of the table of each leaf, from header and directory.

    Args:
        raw: the bytes of header and directory.
        layout: what the manifest says of the file.
        checksum: what the manifest says is the checksum of the header.
        name: the file, for errors.

    Raises:
        FormatError: if it has another format.
        CorruptionError: if it is damaged, or is not the file that was published.
    """
    if len(raw) < layout.head_nbytes:
        raise CorruptionError(f"{name}: a file of lengths was cut short")
    # A damaged version or magic must not look like another format.
    if google_crc32c.value(raw[: _HEADER.size]) != checksum:
        if header_checksum(raw) == checksum:
            raise CorruptionError(f"{name}: the header does not match its checksum")
        raise CorruptionError(f"{name}: not the lengths that were published: the file was replaced or damaged")
    magic, version, leaves, records, _, of_directory = _HEADER.unpack(raw[: _HEADER.size])
    if magic != _MAGIC:
        raise FormatError(f"{name}: not a file of lengths of cachelayer")
    if version > _VERSION:
        raise FormatError(
            f"{name}: lengths of version {version}; this release reads up to {_VERSION}: update cachelayer"
        )
    if header_checksum(raw) != checksum or (records, leaves) != (layout.records, layout.leaves):
        raise CorruptionError(f"{name}: the header does not match the manifest")
    directory = raw[HEADER_NBYTES : layout.head_nbytes]
    if google_crc32c.value(directory) != of_directory:
        raise CorruptionError(f"{name}: the directory does not match its checksum")
    found: list[int] = np.frombuffer(directory, _CHECKSUM, layout.leaves).tolist()
    return found


def decode_table(raw: Bytes, layout: Layout, checksum: int, total: int, name: str) -> Table:
    """Return the table of a leaf; share the memory of its bytes.

    Args:
        raw: the bytes of the table.
        layout: what the manifest says of the file.
        checksum: the checksum of the table, from the directory.
        total: what the manifest says is the sum of all lengths.
        name: the file, for errors.

    Raises:
        CorruptionError: if it is damaged or contradicts itself or the manifest.
    """
    if len(raw) != layout.table_nbytes or google_crc32c.value(raw.tobytes()) != checksum:
        raise CorruptionError(f"{name}: the table of a leaf does not match its checksum")
    sums = np.frombuffer(raw, _SUM, layout.pages + 1).view("<i8")
    steps = np.diff(sums)
    if sums[0] != 0 or sums[-1] != total or (steps < 0).any() or (steps > PAGE * MOST).any():
        raise CorruptionError(f"{name}: the sums of the lengths are not those of {total} values in all")
    return Table(sums, np.frombuffer(raw, _CHECKSUM, layout.pages, sums.nbytes))


def check_pages(raw: bytes, checksums: Sequence[int], name: str, first: int = 0) -> None:
    """Raise unless each page matches its checksum.

    Args:
        raw: the lengths of the pages, one after another.
        checksums: the checksum of each.
        name: the file, for errors.
        first: the number of the first page.

    Raises:
        CorruptionError: if one does not.
    """
    size = PAGE * LENGTH.itemsize
    for page, checksum in enumerate(checksums):
        if google_crc32c.value(raw[page * size : (page + 1) * size]) != checksum:
            record = (first + page) * PAGE
            raise CorruptionError(f"{name}: the lengths from record {record} on do not match their checksum")


def check_sums(sums: Ints, table: Table, numbers: Ints, name: str) -> None:
    """Raise unless the lengths of each page add up to what the table says.

    Args:
        sums: the sum of the lengths of some pages.
        table: the table of the leaf.
        numbers: the number of each page.
        name: the file, for errors.

    Raises:
        CorruptionError: if one does not.
    """
    wrong = np.flatnonzero(sums != table.sums[numbers + 1] - table.sums[numbers])
    if len(wrong):
        record = int(numbers[wrong[0]]) * PAGE
        raise CorruptionError(f"{name}: the lengths from record {record} on do not add up to their sum")
