"""Records of shards in memory as they are stored, until they are read: each is then compared with its checksum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.blocks import HEADER, PAYLOAD
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, splits_of
from cachelayer.records.record_buffers import RecordBuffer


@dataclass(frozen=True, eq=False)
class HeldRecords:
    """Records that were fetched from shards and are not decoded yet.

    Args:
        buffer: what was fetched, with the block headers of the shards.
        starts: where each record begins in the buffer.
        lengths: the stored bytes of each, without block headers.
        rooms: the bytes of the buffer from the begin of each record to the next block header.
        checksums: the CRC32C of each, decompressed.
        compressed: whether each is compressed.
        name: returns what errors call a record, by its row.
    """

    buffer: Bytes
    starts: Ints
    lengths: Ints
    rooms: Ints
    checksums: NDArray[np.uint32]
    compressed: NDArray[np.bool_]
    name: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """The bytes that they take in memory."""
        kept = (self.buffer, self.starts, self.lengths, self.rooms, self.checksums, self.compressed)
        return sum(each.nbytes for each in kept)

    def stored(self, row: int) -> Bytes:
        """Return a record as it is stored."""
        start, length, room = self.starts.item(row), self.lengths.item(row), self.rooms.item(row)
        if length <= room:
            return self.buffer[start : start + length]
        pieces = [self.buffer[start : start + room]]
        while room < length:
            start, length = start + room + HEADER, length - room
            room = PAYLOAD
            pieces.append(self.buffer[start : start + min(room, length)])
        record = np.concatenate(pieces)
        # Its checksum is computed of read-only memory.
        record.setflags(write=False)
        return record

    def all(self) -> RecordBuffer:
        """Return all records, decompressed.

        Raises:
            CorruptionError: if a record is not what was written.
        """
        return taken([self], np.zeros(len(self), np.int64), np.arange(len(self)))


def taken(held: Sequence[HeldRecords], owner: Ints, rows: Ints) -> RecordBuffer:
    """Return copies of some records, decompressed.

    Args:
        held: where they are.
        owner: for each record, which of ``held`` it is in.
        rows: the row of each in there.

    Raises:
        CorruptionError: if a record is not what was written.
    """

    def name(row: int) -> str:
        return held[int(owner[row])].name(int(rows[row]))

    places = [(held[source], row) for source, row in zip(owner.tolist(), rows.tolist(), strict=True)]
    compressed = np.array([source.compressed.item(row) for source, row in places], np.bool_)
    if compressed.any():
        stored = [source.stored(row).tobytes() for source, row in places]
        return _decompressed(stored, compressed, [source.checksums.item(row) for source, row in places], name)
    lengths = np.array([source.lengths.item(row) for source, row in places], np.int64)
    splits = splits_of(lengths)
    out = np.empty(int(splits[-1]), np.uint8)
    # One after another: a record that was just checked is still near the processor when it is copied.
    for place, ((source, row), start) in enumerate(zip(places, splits[:-1].tolist(), strict=True)):
        record = source.stored(row)
        if google_crc32c.value(record) != source.checksums.item(row):
            raise _damaged(name(place))
        out[start : start + len(record)] = record
    uniform = int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else None
    return RecordBuffer(out, splits[:-1], lengths, uniform)


def _decompressed(
    stored: list[bytes], compressed: NDArray[np.bool_], checksums: Sequence[int], name: Callable[[int], str]
) -> RecordBuffer:
    """Return decompressed records; some shards of a version may be compressed and others not."""
    rows = np.flatnonzero(compressed)
    packed = RecordBuffer.of([stored[row] for row in rows.tolist()])
    records = decompressed([(np.arange(len(rows)), packed)], lambda row: name(int(rows[row])))
    if len(rows) < len(stored):
        mixed = stored.copy()
        for row, record in zip(rows.tolist(), records.to_list(), strict=True):
            mixed[row] = record
        records = RecordBuffer.of(mixed)
    for row, (record, checksum) in enumerate(zip(records.to_list(), checksums, strict=True)):
        if google_crc32c.value(record) != checksum:
            raise _damaged(name(row))
    return records


def _damaged(name: str) -> CorruptionError:
    return CorruptionError(f"{name} does not match its checksum")
