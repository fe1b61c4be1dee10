"""Records that were fetched from an object store, as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.blocks import outside
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, gather_rows
from cachelayer.records.record_buffers import RecordBuffer

# Of a table of starts and lengths.
_ROW_NBYTES = 16


@dataclass(frozen=True, eq=False)
class FetchedRecords:
    """Records that were fetched and are not decoded yet. Those that are not compressed are checked when this is made.

    The thread that fetches them does that, while the one that will read them may be at work on others.

    Args:
        buffer: what was fetched; no block header lies in a record.
        starts: where each record begins in the buffer.
        lengths: the stored bytes of each.
        checksums: the CRC32C of each, decompressed; None if they were checked already.
        compressed: whether each is compressed.
        name: returns what errors call a record, by its row.

    Attributes:
        damaged: the rows of records that are not compressed and do not match their checksums.
        table: the starts and the lengths, side by side.
        at: whether no record is compressed or damaged, the number of records, and the addresses of the buffer and of
            the table, as int64.
    """

    buffer: Bytes
    starts: Ints
    lengths: Ints
    checksums: NDArray[np.uint32] | None
    compressed: NDArray[np.bool_]
    name: Callable[[int], str]
    damaged: frozenset[int] = field(init=False)
    table: Ints = field(init=False)
    at: bytes = field(init=False)

    def __post_init__(self) -> None:
        # They are read by their addresses.
        wrong = outside(self.starts, self.lengths, len(self.buffer))
        if wrong.any():
            raise CorruptionError(f"{self.name(int(wrong.argmax()))} does not lie in what was fetched")
        # google_crc32c takes read-only memory alone.
        self.buffer.setflags(write=False)
        plain = np.flatnonzero(~self.compressed)
        damaged = frozenset[int]()
        if self.checksums is not None:
            spans = zip(self.starts[plain].tolist(), (self.starts + self.lengths)[plain].tolist(), strict=True)
            found = (google_crc32c.value(self.buffer[start:end]) for start, end in spans)
            wrong = np.fromiter(found, np.uint32, len(plain)) != self.checksums[plain]
            damaged = frozenset(plain[wrong].tolist())
        table = np.stack([self.starts, self.lengths], 1)
        is_plain = len(plain) == len(table) and not damaged
        addresses = (each.__array_interface__["data"][0] for each in (self.buffer, table))
        object.__setattr__(self, "damaged", damaged)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "at", np.array([is_plain, len(table), *addresses], np.int64).tobytes())

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """The bytes that they take in memory."""
        kept = (self.buffer, self.starts, self.lengths, self.checksums, self.compressed, self.table)
        return sum(each.nbytes for each in kept if each is not None)

    def stored(self, row: int) -> bytes:
        if row in self.damaged:
            raise self.mismatch(row)
        start = self.starts.item(row)
        return self.buffer[start : start + self.lengths.item(row)].tobytes()

    def mismatch(self, row: int) -> CorruptionError:
        """Return the error of a damaged record."""
        return CorruptionError(f"{self.name(row)} does not match its checksum")


def read_fetched(parts: Sequence[FetchedRecords], owner: Ints, rows: Ints) -> RecordBuffer:
    """Return some records, decompressed, where they lie.

    A batch is made of records of hundreds of blocks that have left the cache of the processor. To look at each in
    Python would take longer than all else, so numpy reads their tables, and later the records, by their addresses.

    Args:
        parts: where they are.
        owner: for each record, which of ``parts`` it is in.
        rows: the row of each in there.
    """
    if len(rows) == 0:
        return RecordBuffer.of([])
    at = np.frombuffer(b"".join([part.at for part in parts]), np.int64).reshape(-1, 4).take(owner, axis=0)
    is_plain, counts, buffers, tables = at.T
    # No other row has a place in the table.
    wrong = (rows < 0) | (rows >= counts)
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptionError(f"a block of {counts[row]} records has no row {rows[row]}")
    if not is_plain.all():
        return _copied([(parts[part], row) for part, row in zip(owner.tolist(), rows.tolist(), strict=True)])
    memory, begins = _spanning(tables + rows * _ROW_NBYTES, _ROW_NBYTES, parts)
    starts, lengths = gather_rows(memory, begins, _ROW_NBYTES).view(np.int64).T
    memory, begins = _spanning(buffers + starts, lengths, parts)
    uniform = int(lengths[0]) if (lengths == lengths[0]).all() else None
    return RecordBuffer(memory, begins, lengths, uniform)


class _Memory:
    """Memory that holds some objects, as an array from one address to another. It keeps the objects."""

    def __init__(self, begin: int, end: int, kept: Sequence[object]) -> None:
        self.kept = kept
        self.__array_interface__ = {"shape": (end - begin,), "typestr": "|u1", "data": (begin, True), "version": 3}


def _spanning(addresses: Ints, nbytes: Ints | int, kept: Sequence[object]) -> tuple[Bytes, Ints]:
    """Return one array over all ranges of memory, of which nothing but the ranges may be read, and their begins."""
    begin, end = int(addresses.min()), int((addresses + nbytes).max())
    return np.asarray(_Memory(begin, end, kept)), addresses - begin


def _copied(places: Sequence[tuple[FetchedRecords, int]]) -> RecordBuffer:
    """Return copies of records of which some are compressed or damaged.

    Some shards of a version may be compressed and others not.
    """

    def name(number: int) -> str:
        part, row = places[packed[number]]
        return part.name(row)

    records = [part.stored(row) for part, row in places]
    packed = [number for number, (part, row) in enumerate(places) if part.compressed.item(row)]
    found = decompressed(RecordBuffer.of([records[number] for number in packed]), name).to_list()
    for number, record in zip(packed, found, strict=True):
        part, row = places[number]
        if part.checksums is not None and google_crc32c.value(record) != part.checksums.item(row):
            raise part.mismatch(row)
        records[number] = record
    return RecordBuffer.of(records)
