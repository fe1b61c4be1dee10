"""The chunks of an ArrayRecord file, and the footer, which lists them. :mod:`cachelayer.arrayrecord.index` has blocks.

A file is: the signature, a chunk for each record (or for several), the footer chunk, padding up to a block, and in the
last block the postscript, which holds the position of the footer chunk. Source: the specification of the file format
Riegeli/records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from cachelayer.arrayrecord import varints
from cachelayer.arrayrecord.index import BLOCK, SIGNATURE, to_logical, to_position
from cachelayer.errors import CorruptionError, FormatError
from cachelayer.records.spans import Records
from cachelayer.support.memory import Bytes, Ints, splits_of

CHUNK_HEADER = 40
_MOST_RECORDS = 2**53
_OFFSET_TAG = 0x08
"""The tag of field 1 of a message of the footer, a varint."""
_RECORDS_TAG = 0x18
"""The tag of field 3, a varint."""
_OPTIONS_NBYTES = 95
"""The bytes of the message of the options without the numbers in it, if records are not compressed."""
_POSTSCRIPT_MAGIC = 0x71930E704FDAE05E


class ByteFile(Protocol):
    """A file that is read by logical ranges."""

    @property
    def path(self) -> Path | str:
        """The name of the file in error messages."""

    @property
    def nbytes(self) -> int:
        """The size of the file."""

    def records(self, logical: Ints, lengths: Ints) -> Records:
        """Return ranges as records, without a copy if the file is mapped; raise if one reaches past its end."""


@dataclass(frozen=True, eq=False)
class Footer:
    """The chunks of a file."""

    chunk_offsets: Ints
    """The position of each chunk."""
    chunk_records: Ints
    """The number of records in each chunk."""
    footer_offset: int
    """The position of the footer chunk, where the last chunk of records ends."""


def read_postscript(file: ByteFile) -> int:
    """Return the position of the footer chunk."""
    size = file.nbytes
    if size < 2 * BLOCK or size % BLOCK:
        raise CorruptionError(f"{file.path}: {size} bytes is not the size of a whole ArrayRecord file")
    try:
        values, _ = simple_chunk(file, int(to_logical(size - BLOCK)))
        fields = _fields(values)
    except CorruptionError as error:
        raise CorruptionError(f"{file.path}: no ArrayRecord postscript: {error}") from error
    if fields.get(2) != _POSTSCRIPT_MAGIC or not 0 < fields.get(1, 0) < size:
        raise CorruptionError(f"{file.path}: not an ArrayRecord file: its postscript has no magic number")
    return fields[1]


def read_footer(file: ByteFile) -> Footer:
    footer_offset = read_postscript(file)
    values, sizes = simple_chunk(file, int(to_logical(footer_offset)))
    if len(sizes) == 0:
        raise CorruptionError(f"{file.path}: its footer is empty")
    return parse_footer(values[int(sizes[0]) :], sizes[1:], footer_offset)


def parse_footer(values: Bytes, sizes: Ints, footer_offset: int) -> Footer:
    """Return the footer from its records: messages ``{1: chunk_offset, 2: decoded_size, 3: num_records}``.

    A message lacks the fields that are zero.
    """
    if (sizes < 0).any() or int(sizes.sum(dtype=np.float64)) != len(values):
        raise CorruptionError("the records of the footer do not make up its bytes")
    offsets, records = _first_and_third_fields(values, sizes)
    if (offsets < 0).any() or (offsets > footer_offset).any():
        raise CorruptionError("the footer has chunks outside of the file")
    if (records < 0).any() or records.sum(dtype=np.float64) > _MOST_RECORDS:
        raise CorruptionError("the footer has impossible numbers of records")
    return Footer(offsets, records, footer_offset)


def plain_nbytes(lengths: Ints) -> int:
    """Return the bytes of the file of records of these lengths if they are not compressed: arithmetic tells.

    The footer chunk has a byte, the size of the sizes, the sizes, then the message of the options and those of chunks.
    """
    nbytes_of = varints.nbytes_of
    chunks = SIGNATURE + splits_of(CHUNK_HEADER + 2 + nbytes_of(lengths) + lengths)
    options = _OPTIONS_NBYTES + 2 * nbytes_of(np.array([len(lengths)]))
    sizes = np.append(4 + nbytes_of(to_position(chunks[:-1])) + nbytes_of(lengths), options)
    of_sizes = nbytes_of(sizes).sum()
    last = int(to_position(chunks[-1] + CHUNK_HEADER + nbytes_of(of_sizes) + of_sizes + sizes.sum()))
    room = BLOCK - 1 - last % BLOCK
    # A chunk fills up the block, or the next one if there is no room for its header.
    blocks = last // BLOCK + 1 + (0 < room < CHUNK_HEADER)
    return (blocks + 1) * BLOCK


def _first_and_third_fields(values: Bytes, sizes: Ints) -> tuple[Ints, Ints]:
    """Return the first and the third field of each message, 0 for a field that it lacks."""
    numbers, starts = varints.decode_all(values)
    if len(numbers) % 2:
        raise CorruptionError("the footer does not consist of pairs of tag and value")
    tags, fields = numbers[0::2], numbers[1::2]
    record_of = np.searchsorted(splits_of(sizes), starts[0::2], side="right") - 1
    columns = []
    for tag in (_OFFSET_TAG, _RECORDS_TAG):
        column = np.zeros(len(sizes), np.int64)
        column[record_of[tags == tag]] = fields[tags == tag]
        columns.append(column)
    return columns[0], columns[1]


def simple_chunk(file: ByteFile, logical: int) -> tuple[Bytes, Ints]:
    """Return the values and record sizes of the simple chunk at a logical offset."""
    header = _range(file, logical, CHUNK_HEADER)
    data_nbytes = int(header[8:16].view("<u8")[0])
    is_simple = header[24] == ord("r") and data_nbytes <= file.nbytes
    data = _range(file, logical + CHUNK_HEADER, data_nbytes) if is_simple else header[:0]
    return parse_chunk(header, data, f"{file.path}: the chunk at logical offset {logical}")


def _range(file: ByteFile, logical: int, nbytes: int) -> Bytes:
    return file.records(np.array([logical]), np.array([nbytes])).packed_copy().buffer


def parse_chunk(header: Bytes, data: Bytes, name: str) -> tuple[Bytes, Ints]:
    """Return the values and record sizes of a simple chunk."""
    if header[24] == ord("t"):
        raise FormatError(f"{name} is transposed")
    if header[24] != ord("r") or len(data) == 0:
        raise CorruptionError(f"{name} is no simple chunk")
    size_of_sizes, offset = varints.decode_at(data, 1)
    sizes = data[offset : offset + size_of_sizes]
    values = data[offset + size_of_sizes :]
    if data[0] == ord("z"):
        sizes = _decompressed(sizes, name)
        values = _decompressed(values, name)
    elif data[0]:
        raise FormatError(f"{name} has compression {chr(int(data[0]))!r}")
    return values, varints.decode_all(sizes)[0]


def _decompressed(part: Bytes, name: str) -> Bytes:
    import zstandard

    nbytes, begin = varints.decode_at(part, 0)
    try:
        frame = part[begin:].tobytes()
        raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=nbytes) if nbytes else b""
    except (zstandard.ZstdError, MemoryError, OverflowError, ValueError) as error:
        raise CorruptionError(f"{name} does not decompress: {error}") from error
    return np.frombuffer(raw, np.uint8)


def _fields(values: Bytes) -> dict[int, int]:
    """Return the varint and fixed64 fields of a small protocol buffer message."""
    fields: dict[int, int] = {}
    offset = 0
    while offset < len(values):
        tag, offset = varints.decode_at(values, offset)
        if tag & 7 == 0:
            fields[tag >> 3], offset = varints.decode_at(values, offset)
        elif tag & 7 == 1 and offset + 8 <= len(values):
            fields[tag >> 3] = int(values[offset : offset + 8].view("<u8")[0])
            offset += 8
        else:
            raise CorruptionError(f"unexpected field {tag} in a message")
    return fields
