"""Records of shards that lie elsewhere, each read by exactly the bytes that it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import HEADER, pieces, to_logical, to_position
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Bytes, Ints, move_ranges, splits_of
from cachelayer.records.record_buffers import RecordBuffer

Range = tuple[str, int, int]
ReadRanges = Callable[[Sequence[Range]], Sequence[bytes]]
"""Reads ranges of objects, each its name, begin and end, at once; every length is that asked for."""

# What is fetched from an index with one request is likely to take as many bytes, for neighbours are fetched with it.
_PAGE_NBYTES = 1 << 16
# Indices in memory; more would take more than the records that are read with them.
_KEPT_NBYTES = 1 << 28


@dataclass(frozen=True)
class ShardObject:
    """A shard in an object store.

    Args:
        name, index_name: the objects of the shard and of its index.
        stats: what the manifest says of them.
    """

    name: str
    index_name: str
    stats: ShardStats


def check_index(raw: Bytes, stats: ShardStats, name: str) -> index.IndexHeader:
    """The header of a whole index, all of which is compared with its checksums.

    Raises:
        CorruptionError: where it is not what was published.
    """
    head = raw[: index.HEADER_NBYTES].tobytes()
    header = _check_header(head, len(raw), stats, name)
    if google_crc32c.value(raw[index.HEADER_NBYTES :].tobytes()) != index.rows_checksum(head):
        raise CorruptionError(f"{name}: its rows do not match their checksum")
    return header


def _check_header(head: bytes, index_nbytes: int, stats: ShardStats, name: str) -> index.IndexHeader:
    header = index.decode_header(head, index_nbytes, name)
    if index.header_checksum(head) != stats.index_crc32c or header.records != stats.records:
        raise CorruptionError(f"{name}: not the index that was published: it was replaced")
    return header


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of the index of some records, of which some are yet to come.

    Args:
        rows: the rows.
        missing: by shard the records whose rows are not here.
        whole: the shards of which the whole index is to come.
        heads: those of which the header is.
        single: the shard and the record of each other row that is.
        ranges: what is to be read: indices, headers, rows.
    """

    rows: Any
    missing: Mapping[int, Ints]
    whole: Sequence[int]
    heads: Sequence[int]
    single: Sequence[tuple[int, int]]
    ranges: Sequence[Range]


class RangedShards:
    """Reads records by ranges: where each lies from the index, then the records, all of a batch at once.

    Of an index single rows are fetched at first, and the whole of it once that is cheaper: later records of the shard
    need one request each. Records of one size, whose places follow by arithmetic, do not wait for them. Every record is
    compared with its checksum. Safe to use from threads.

    Args:
        read_ranges: reads them.
        shards: the shards, by their numbers.
        kept_nbytes: bytes of indices that are kept in memory.
    """

    def __init__(
        self,
        read_ranges: ReadRanges,
        shards: Sequence[ShardObject] | Mapping[int, ShardObject],
        kept_nbytes: int = _KEPT_NBYTES,
    ) -> None:
        self._read_ranges = read_ranges
        self._shards = shards
        self._headers: dict[int, index.IndexHeader] = {}
        self._indices: dict[int, Bytes] = {}
        self._copies: dict[int, Callable[[], Bytes]] = {}
        self._pages_read: Counter[int] = Counter()
        self._room = kept_nbytes
        self._lock = ProcessLock()

    def has_index(self, shard: int) -> bool:
        """Whether no more of the index of a shard is fetched."""
        return shard in self._indices or shard in self._copies

    def whole_index(self, shard: int) -> Bytes:
        """The index of a shard, fetched where it is not here.

        Raises:
            CorruptionError: where it is not what was published.
        """
        raw = self._index(shard)
        if raw is None:
            where = self._shards[shard]
            (fetched,) = self._read_ranges([(where.index_name, 0, where.stats.index_nbytes)])
            raw = np.frombuffer(fetched, np.uint8)
            self._checked(shard, raw)
        return raw

    def use_index_copy(self, shard: int, open_copy: Callable[[], Bytes]) -> None:
        """Have an index be read from a copy on disk, and none of it fetched any more.

        Args:
            open_copy: maps it; called each time, so that not every index takes a file descriptor.

        Raises:
            CorruptionError: where it is not what was published.
        """
        header = self._checked(shard, open_copy())
        with self._lock:
            self._headers[shard] = header
            self._copies[shard] = open_copy
            self._room += len(self._indices.pop(shard, b""))

    def records(self, shard_of: Ints, within: Ints) -> RecordBuffer:
        """The records of these shards, by their numbers within them.

        Raises:
            CorruptionError: where a record is not what was written.
            StorageError: where the store cannot be read.
        """

        def name(row: int) -> str:
            return f"{self._shards[shard_of[row]].name}: record {within[row]} of the shard"

        wanted = self._rows(shard_of, within)
        rows, first = wanted.rows, wanted.ranges
        places = self._by_arithmetic(shard_of, within) if first else None
        if places is None:
            self._take(wanted, within, self._read_ranges(first) if first else [])
            first, places = [], rows
        bodies = self._read_ranges([*first, *self._ranges(shard_of, places, name)])
        if first:
            self._take(wanted, within, bodies[: len(first)])
            elsewhere = (rows["position"] != places["position"]) | (rows["length"] != places["length"])
            if elsewhere.any():
                raise CorruptionError(f"{name(int(elsewhere.argmax()))} does not lie where its index has it")
        found = _without_headers(places, bodies[len(first) :])
        compressed = np.array([self._headers[shard].compression != "none" for shard in shard_of.tolist()], np.bool_)
        if compressed.all():
            found = decompressed([(np.arange(len(found)), found)], name)
        elif compressed.any():
            # Shards of one version that were built in different ways.
            records = found.to_list()
            for row in np.flatnonzero(compressed).tolist():
                stored = [(np.zeros(1, np.int64), RecordBuffer.of([records[row]]))]
                one = decompressed(stored, lambda _, row=row: name(row))  # type: ignore[misc]
                records[row] = one.to_list()[0]
            found = RecordBuffer.of(records)
        _check(found, rows["crc32c"], name)
        return found

    def stored_nbytes(self, shard_of: Ints, within: Ints) -> Ints:
        """The bytes that records take, of these shards and by their numbers within them."""
        rows = self._by_arithmetic(shard_of, within)
        if rows is None:
            wanted = self._rows(shard_of, within)
            self._take(wanted, within, self._read_ranges(wanted.ranges) if wanted.ranges else [])
            rows = wanted.rows
        lengths: Ints = rows["length"].astype(np.int64)
        return lengths

    def _by_arithmetic(self, shard_of: Ints, within: Ints) -> Any:
        """Rows without checksums, where all records are of shards of records of one size; else None."""
        shards, place = np.unique(shard_of, return_inverse=True)
        stats = [self._shards[shard].stats for shard in shards.tolist()]
        firsts = [each.first_position for each in stats if each.first_position is not None]
        sizes = [each.record_nbytes for each in stats if each.record_nbytes is not None]
        if not len(firsts) == len(sizes) == len(stats):
            return None
        strides = {size: index.chunk_nbytes(size) for size in set(sizes)}
        first, stride = to_logical(np.array(firsts, np.int64)), np.array([strides[size] for size in sizes], np.int64)
        rows = np.zeros(len(within), index.ROW)
        rows["position"] = to_position(first[place] + within * stride[place])
        rows["length"] = np.array(sizes, np.int64)[place]
        return rows

    def _rows(self, shard_of: Ints, within: Ints) -> _Rows:
        """The rows of the index of these records, as far as they are here."""
        out = np.empty(len(within), index.ROW)
        missing: dict[int, Ints] = {}
        for shard in np.unique(shard_of).tolist():
            mine = np.flatnonzero(shard_of == shard)
            raw = self._index(shard)
            if raw is None:
                missing[shard] = mine
            else:
                out[mine] = _rows_of(raw)[within[mine]]
        whole = [shard for shard, mine in missing.items() if self._is_due(shard, within[mine])]
        heads = [shard for shard in missing if shard not in whole and shard not in self._headers]
        single = [(shard, row) for shard, mine in missing.items() if shard not in whole for row in mine.tolist()]
        places = [index.HEADER_NBYTES + index.ROW.itemsize * int(within[row]) for _, row in single]
        wanted = [
            *((shard, 0, self._shards[shard].stats.index_nbytes) for shard in whole),
            *((shard, 0, index.HEADER_NBYTES) for shard in heads),
            *((shard, place, place + index.ROW.itemsize) for (shard, _), place in zip(single, places, strict=True)),
        ]
        ranges = [(self._shards[shard].index_name, begin, end) for shard, begin, end in wanted]
        return _Rows(out, missing, whole, heads, single, ranges)

    def _index(self, shard: int) -> Bytes | None:
        """The index of a shard, where it is here."""
        raw = self._indices.get(shard)
        if raw is not None:
            return raw
        open_copy = self._copies.get(shard)
        if open_copy is None:
            return None
        try:
            return open_copy()
        except (CorruptionError, StorageError):
            # The copy was removed, or may not be read any more.
            self._copies.pop(shard, None)
            return None

    def _take(self, wanted: _Rows, within: Ints, bodies: Sequence[bytes]) -> None:
        """Fill in the rows that were not here."""
        fetched = iter(bodies)
        for shard in wanted.whole:
            raw = np.frombuffer(next(fetched), np.uint8)
            self._take_index(shard, raw)
            wanted.rows[wanted.missing[shard]] = _rows_of(raw)[within[wanted.missing[shard]]]
        for shard in wanted.heads:
            where = self._shards[shard]
            self._headers[shard] = _check_header(next(fetched), where.stats.index_nbytes, where.stats, where.index_name)
        wanted.rows[[row for _, row in wanted.single]] = np.frombuffer(b"".join(fetched), index.ROW)

    def _is_due(self, shard: int, within: Ints) -> bool:
        """Whether to fetch a whole index: as many of its pages were asked for as it has, and there is room for it."""
        nbytes = self._shards[shard].stats.index_nbytes
        self._pages_read[shard] += len(np.unique(within // (_PAGE_NBYTES // index.ROW.itemsize)))
        return nbytes <= self._room and nbytes <= self._pages_read[shard] * _PAGE_NBYTES

    def _take_index(self, shard: int, raw: Bytes) -> None:
        header = self._checked(shard, raw)
        with self._lock:
            self._headers[shard] = header
            if not self.has_index(shard) and len(raw) <= self._room:
                self._indices[shard] = raw
                self._room -= len(raw)

    def _checked(self, shard: int, raw: Bytes) -> index.IndexHeader:
        return check_index(raw, self._shards[shard].stats, self._shards[shard].index_name)

    def _ranges(self, shard_of: Ints, rows: Any, name: Callable[[int], str]) -> list[Range]:
        """The stored bytes of records, with the headers of blocks among them."""
        _, _, begins, ends = _extents(rows)
        sizes = np.array([self._shards[shard].stats.nbytes for shard in shard_of.tolist()], np.int64)
        # Where a row was lost it holds zeros, and a block header lies there.
        outside = np.flatnonzero((rows["position"] < HEADER) | (begins < 0) | (ends > sizes))
        if len(outside):
            raise CorruptionError(f"{name(int(outside[0]))} does not lie in the shard, as its index has it")
        return [
            (self._shards[shard].name, begin, end)
            for shard, begin, end in zip(shard_of.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]


def _extents(rows: Any) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each record the logical offset, the bytes, and the positions of its begin and end."""
    logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
    begins = to_position(logical)
    return logical, lengths, begins, np.where(lengths > 0, to_position(logical + lengths - 1) + 1, begins)


def _without_headers(rows: Any, bodies: Sequence[bytes]) -> RecordBuffer:
    """The stored bytes of records, without the headers of blocks."""
    logical, lengths, begins, ends = _extents(rows)
    fetched = np.frombuffer(b"".join(bodies), np.uint8)
    splits = splits_of(lengths)
    out = np.empty(int(splits[-1]), np.uint8)
    owner, inside, position, length = pieces(logical, lengths)
    starts = splits_of(ends - begins)[:-1] - begins
    move_ranges(out, splits[owner] + inside, fetched, starts[owner] + position, length)
    return RecordBuffer.packed(out, lengths)


def _rows_of(raw: Bytes) -> NDArray[np.void]:
    rows: NDArray[np.void] = raw[index.HEADER_NBYTES :].view(index.ROW)
    return rows


def _check(records: RecordBuffer, checksums: Any, name: Callable[[int], str]) -> None:
    for row, (record, checksum) in enumerate(zip(records.to_list(), checksums.tolist(), strict=True)):
        if google_crc32c.value(record) != checksum:
            raise CorruptionError(f"{name(row)} does not match its checksum")
