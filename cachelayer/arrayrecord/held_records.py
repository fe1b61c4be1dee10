"""Records of shards in memory as they are stored. Each was compared with its checksum, or is when it is decompressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.blocks import BLOCK, HEADER
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints
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
        damaged: the rows of records that are not compressed and do not match their checksums.
        name: returns what errors call a record, by its row.
    """

    buffer: memoryview
    starts: Ints
    lengths: Ints
    rooms: Ints
    checksums: NDArray[np.uint32]
    compressed: NDArray[np.bool_]
    damaged: frozenset[int]
    name: Callable[[int], str]

    @classmethod
    def checked(
        cls,
        fetched: bytes,
        starts: Ints,
        lengths: Ints,
        rooms: Ints,
        checksums: NDArray[np.uint32],
        compressed: NDArray[np.bool_],
        name: Callable[[int], str],
    ) -> HeldRecords:
        """Return records that were just fetched, after comparing them with their checksums unless they are compressed.

        The thread that fetches them does that, while the one that will read them may be at work on others.
        """
        plain = np.flatnonzero(~compressed) if compressed.any() else np.arange(len(starts))
        damaged = _damaged_rows(np.frombuffer(fetched, np.uint8), starts, lengths, rooms, checksums, plain)
        return cls(memoryview(fetched), starts, lengths, rooms, checksums, compressed, damaged, name)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """The bytes that they take in memory."""
        kept = (self.buffer, self.starts, self.lengths, self.rooms, self.checksums, self.compressed)
        return sum(each.nbytes for each in kept)

    def pieces(self, row: int) -> list[memoryview]:
        """Return a record as it is stored, cut where block headers lie."""
        start, length, room = self.starts.item(row), self.lengths.item(row), self.rooms.item(row)
        return [self.buffer[begin:end] for begin, end in _pieces(start, length, room)]

    def all(self) -> RecordBuffer:
        """Return all records, decompressed.

        Raises:
            CorruptionError: if a record is not what was written.
        """
        return taken([self], np.zeros(len(self), np.int64), np.arange(len(self)))


def _pieces(start: int, length: int, room: int) -> list[tuple[int, int]]:
    """Return begins and ends of the pieces of a record in a buffer."""
    pieces = [(start, start + min(length, room))]
    while length > room:
        start, length = start + room + HEADER, length - room
        room = BLOCK - HEADER
        pieces.append((start, start + min(length, room)))
    return pieces


def _damaged_rows(
    fetched: Bytes, starts: Ints, lengths: Ints, rooms: Ints, checksums: NDArray[np.uint32], rows: Ints
) -> frozenset[int]:
    """Return which of some rows do not match their checksums."""
    columns = (rows, *(column[rows] for column in (starts, lengths, rooms, checksums)))
    damaged = []
    for row, start, length, room, checksum in zip(*(column.tolist() for column in columns), strict=True):
        if length <= room:
            found = google_crc32c.value(fetched[start : start + length])
        else:
            found = 0
            for begin, end in _pieces(start, length, room):
                found = google_crc32c.extend(found, fetched[begin:end])
        if found != checksum:
            damaged.append(row)
    return frozenset(damaged)


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

    sources = [held[number] for number in owner.tolist()]
    places = rows.tolist()
    if any(source.damaged for source in held):
        for number, (source, row) in enumerate(zip(sources, places, strict=True)):
            if row in source.damaged:
                raise _damaged(name(number))
    compressed = np.array([source.compressed.item(row) for source, row in zip(sources, places, strict=True)], np.bool_)
    if compressed.any():
        stored = [b"".join(source.pieces(row)) for source, row in zip(sources, places, strict=True)]
        checksums = [source.checksums.item(row) for source, row in zip(sources, places, strict=True)]
        return _decompressed(stored, compressed, checksums, name)
    pieces: list[memoryview] = []
    sizes: list[int] = []
    for source, row in zip(sources, places, strict=True):
        start, length = source.starts.item(row), source.lengths.item(row)
        sizes.append(length)
        if length <= source.rooms.item(row):
            pieces.append(source.buffer[start : start + length])
        else:
            pieces += source.pieces(row)
    lengths = np.array(sizes, np.int64)
    uniform = sizes[0] if sizes and (lengths == sizes[0]).all() else None
    records = RecordBuffer.packed(np.frombuffer(bytearray().join(pieces), np.uint8), lengths)
    return RecordBuffer(records.buffer, records.starts, lengths, uniform)


def _decompressed(
    stored: list[bytes], compressed: NDArray[np.bool_], checksums: Sequence[int], name: Callable[[int], str]
) -> RecordBuffer:
    """Return decompressed records; some shards of a version may be compressed and others not."""
    rows = np.flatnonzero(compressed)
    packed = RecordBuffer.of([stored[row] for row in rows.tolist()])
    records = decompressed([(np.arange(len(rows)), packed)], lambda row: name(int(rows[row])))
    for row, record in zip(rows.tolist(), records.to_list(), strict=True):
        if google_crc32c.value(record) != checksums[row]:
            raise _damaged(name(row))
        stored[row] = record
    return records if len(rows) == len(stored) else RecordBuffer.of(stored)


def _damaged(name: str) -> CorruptionError:
    return CorruptionError(f"{name} does not match its checksum")
