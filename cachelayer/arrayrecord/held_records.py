"""Records of shards in memory as they are stored. Each was compared with its checksum, unless it is compressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.blocks import outside
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, gather_rows, splits_of
from cachelayer.records.record_buffers import RecordBuffer, Records

# Of a table of starts and lengths.
_ROW_NBYTES = 16


# With slots, because a batch looks at hundreds of these that are no longer in the cache of the processor.
@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class HeldRecords:
    """Records that were fetched from shards and are not decoded yet.

    Args:
        buffer: what was fetched; no block header lies in a record.
        starts: where each record begins in the buffer.
        lengths: the stored bytes of each.
        checksums: the CRC32C of each, decompressed.
        compressed: whether each is compressed.
        damaged: the rows of records that are not compressed and do not match their checksums.
        name: returns what errors call a record, by its row.
    """

    buffer: Bytes
    starts: Ints
    lengths: Ints
    checksums: NDArray[np.uint32]
    compressed: NDArray[np.bool_]
    damaged: frozenset[int]
    name: Callable[[int], str]

    @classmethod
    def checked(
        cls,
        buffer: Bytes,
        starts: Ints,
        lengths: Ints,
        checksums: NDArray[np.uint32],
        compressed: NDArray[np.bool_],
        name: Callable[[int], str],
    ) -> HeldRecords:
        """Return records that were just fetched, after comparing them with their checksums unless they are compressed.

        The thread that fetches them does that, while the one that will read them may be at work on others.
        """
        buffer.setflags(write=False)
        columns = (compressed.tolist(), starts.tolist(), (starts + lengths).tolist(), checksums.tolist())
        damaged = [
            row
            for row, (is_compressed, start, end, checksum) in enumerate(zip(*columns, strict=True))
            if not is_compressed and google_crc32c.value(buffer[start:end]) != checksum
        ]
        return cls(buffer, starts, lengths, checksums, compressed, frozenset(damaged), name)

    is_plain: bool = field(init=False)
    """True if no record is compressed or damaged."""
    at: bytes = field(init=False)
    """As int64: :attr:`is_plain`, the number of records, and where the buffer and a table of them begin in memory.

    The table has the starts and the lengths.
    """

    def __post_init__(self) -> None:
        # They are read by their addresses.
        wrong = outside(self.starts, self.lengths, len(self.buffer))
        if wrong.any():
            raise CorruptionError(f"{self.name(int(wrong.argmax()))} does not lie in what was fetched")
        table = np.empty((len(self.starts), 2), np.int64)
        table[:, 0], table[:, 1] = self.starts, self.lengths
        object.__setattr__(self, "starts", table[:, 0])
        object.__setattr__(self, "lengths", table[:, 1])
        object.__setattr__(self, "is_plain", not self.damaged and not self.compressed.any())
        at = np.array([self.is_plain, len(table), _address(self.buffer), _address(table)], np.int64).tobytes()
        object.__setattr__(self, "at", at)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """The bytes that they take in memory."""
        kept = (self.buffer, self.starts, self.lengths, self.checksums, self.compressed)
        return sum(each.nbytes for each in kept)

    def stored(self, row: int) -> bytes:
        """Return a record as it is stored."""
        start = self.starts.item(row)
        return self.buffer[start : start + self.lengths.item(row)].tobytes()

    def all(self) -> RecordBuffer:
        """Return all records, decompressed.

        Raises:
            CorruptionError: if a record is not what was written.
        """
        found = taken([self], np.zeros(len(self), np.int64), np.arange(len(self)))
        if isinstance(found, RecordBuffer):
            return found
        values = found.ranges(np.zeros(len(found), np.int64), found.lengths)
        return RecordBuffer(values, splits_of(found.lengths)[:-1], found.lengths, found.uniform_nbytes)


def _address(values: NDArray[Any]) -> int:
    address: int = values.__array_interface__["data"][0]
    return address


class _Memory:
    """Memory that holds some objects, as an array from one address to another. It keeps the objects."""

    def __init__(self, begin: int, end: int, kept: Sequence[object]) -> None:
        self.kept = kept
        self.__array_interface__ = {"shape": (end - begin,), "typestr": "|u1", "data": (begin, True), "version": 3}


@dataclass(frozen=True, eq=False)
class ScatteredRecords:
    """Records that lie apart in memory: :class:`~cachelayer.records.record_buffers.Records`.

    Args:
        spread: the records in one array over all of the memory between them, of which only they may be read.
    """

    spread: RecordBuffer

    def __len__(self) -> int:
        return len(self.spread)

    @property
    def lengths(self) -> Ints:
        return self.spread.lengths

    @property
    def uniform_nbytes(self) -> int | None:
        return self.spread.uniform_nbytes

    def slab(self, offset: int, nbytes: int) -> Bytes:
        return self.spread.slab(offset, nbytes)

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        return self.spread.slabs(offset, nbytes, rows)

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        return self.spread.ranges(starts, lengths)


def taken(held: Sequence[HeldRecords], owner: Ints, rows: Ints) -> Records:
    """Return some records, decompressed, where they lie.

    Args:
        held: where they are.
        owner: for each record, which of ``held`` it is in.
        rows: the row of each in there.

    Raises:
        CorruptionError: if there is no such row, or a record is not what was written.
    """
    if len(rows) == 0:
        return RecordBuffer.of([])
    at = np.frombuffer(b"".join([source.at for source in held]), np.int64).reshape(-1, 4)
    # Not by indexing, in which numpy gives the GIL away.
    _, counts, buffers, tables = at.take(owner, axis=0).T
    # No other row has a place in the table, which is read by its address.
    wrong = (rows < 0) | (rows >= counts)
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptionError(f"a block of {counts[row]} records has no row {rows[row]}")
    if not at[:, 0].all():
        return _checked([(held[number], row) for number, row in zip(owner.tolist(), rows.tolist(), strict=True)])
    places = tables + rows * _ROW_NBYTES
    memory, begins = _spread(places, _ROW_NBYTES, held)
    starts, lengths = gather_rows(memory, begins, _ROW_NBYTES).view(np.int64).T
    memory, begins = _spread(buffers + starts, lengths, held)
    uniform = int(lengths[0]) if (lengths == lengths[0]).all() else None
    return ScatteredRecords(RecordBuffer(memory, begins, lengths, uniform))


def _spread(addresses: Ints, nbytes: Ints | int, kept: Sequence[object]) -> tuple[Bytes, Ints]:
    """Return one array over all ranges of memory, of which nothing but the ranges may be read, and their begins."""
    begin, end = int(addresses.min()), int((addresses + nbytes).max())
    return np.asarray(_Memory(begin, end, kept)), addresses - begin


def _checked(places: Sequence[tuple[HeldRecords, int]]) -> RecordBuffer:
    """Return copies of records of which some are compressed or damaged.

    Some shards of a version may be compressed and others not.
    """

    def name(number: int) -> str:
        source, row = places[number]
        return source.name(row)

    for number, (source, row) in enumerate(places):
        if row in source.damaged:
            raise _damaged(name(number))
    records = [source.stored(row) for source, row in places]
    packed = [number for number, (source, row) in enumerate(places) if source.compressed.item(row)]
    if packed:
        stored = RecordBuffer.of([records[number] for number in packed])
        found = decompressed([(np.arange(len(packed)), stored)], lambda row: name(packed[row]))
        for number, record in zip(packed, found.to_list(), strict=True):
            source, row = places[number]
            if google_crc32c.value(record) != source.checksums.item(row):
                raise _damaged(name(number))
            records[number] = record
    return RecordBuffer.of(records)


def _damaged(name: str) -> CorruptionError:
    return CorruptionError(f"{name} does not match its checksum")
