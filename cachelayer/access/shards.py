"""The shards of a version as one sequence of records."""

from __future__ import annotations

import resource
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cachelayer.access.readahead import ReadAhead
from cachelayer.arrayrecord.mapping import Places, UniformRecords
from cachelayer.arrayrecord.reader import ShardReader, read_places
from cachelayer.codec.frames import RecordBuffer, Records
from cachelayer.codec.memory import Bytes, Ints, keep_freed_memory, move_ranges, splits_of
from cachelayer.locks import ProcessLock


@dataclass(frozen=True, eq=False)
class JoinedRecords:
    """Records of several shards.

    Args:
        rows: number of records.
        groups: for each shard the rows that come from it, and its records.
    """

    rows: int
    groups: Sequence[tuple[Ints, Records]]

    def __len__(self) -> int:
        return self.rows

    @property
    def lengths(self) -> Ints:
        out = np.empty(self.rows, np.int64)
        for rows, records in self.groups:
            out[rows] = records.lengths
        return out

    @property
    def uniform_nbytes(self) -> int | None:
        sizes = {records.uniform_nbytes for _, records in self.groups}
        return sizes.pop() if len(sizes) == 1 else None

    def slab(self, offset: int, nbytes: int) -> Bytes:
        out = np.empty((self.rows, nbytes), np.uint8)
        for rows, records in self.groups:
            out[rows] = records.slab(offset, nbytes)
        return out

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        for rows, records in self.groups:
            part = records.ranges(starts[rows], lengths[rows])
            move_ranges(out, splits[rows], part, splits_of(lengths[rows])[:-1], lengths[rows])
        return out


class ShardSet:
    """Random access over shards that are opened at first touch. Safe to use from threads.

    At most ``open_limit()`` shards are open at a time, so that no process runs out of file descriptors: the one that
    was opened first goes first.

    Args:
        records: number of records of each shard.
        open_shard: opens a shard by its number.
    """

    def __init__(self, records: Sequence[int], open_shard: Callable[[int], ShardReader]) -> None:
        keep_freed_memory()
        self._splits = splits_of(np.asarray(records, np.int64))
        self._starts: list[int] = self._splits[:-1].tolist()
        self._open_shard = open_shard
        self._readers: dict[int, ShardReader] = {}
        self._limit = open_limit()
        self._uniform = _UniformShards(self._splits if len(records) <= self._limit else self._splits[:0])
        self._lock = ProcessLock()
        self._read_ahead = ReadAhead(self._splits, self.reader)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def reader(self, number: int) -> ShardReader:
        """The reader of a shard."""
        reader = self._readers.get(number)
        if reader is None:
            with self._lock:
                reader = self._readers.get(number)
                if reader is None:
                    reader = self._open_shard(number)
                    while len(self._readers) >= self._limit:
                        del self._readers[next(iter(self._readers))]
                    self._readers[number] = reader
                    self._uniform.add(number, reader)
        return reader

    def record(self, number: int) -> bytearray:
        """One record, the caller's own; ``number`` is below ``len(self)``."""
        shard = 0 if len(self._starts) == 1 else bisect_right(self._starts, number) - 1
        reader = self._readers.get(shard) or self.reader(shard)
        return reader.record(number - self._starts[shard])

    def records(self, numbers: Ints) -> Records:
        """The records of these numbers, each below ``len(self)``."""
        if len(numbers) == 0:
            return RecordBuffer.of([])
        self._read_ahead.announce(numbers)
        if len(self._starts) == 1:
            return self.reader(0).records(numbers)
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        if self._uniform.all_open(shard_of):
            return self._uniform.records(self, shard_of, numbers)
        within = numbers - self._splits[shard_of]
        order = np.argsort(shard_of, kind="stable")
        shards, firsts = np.unique(shard_of[order], return_index=True)
        rows_of = np.split(order, firsts[1:])
        if len(shards) > self._limit:
            return self._copied(shards.tolist(), rows_of, within)
        readers = [self.reader(shard) for shard in shards.tolist()]
        if self._uniform.all_open(shard_of):
            return self._uniform.records(self, shard_of, numbers)
        compressions = {reader.header.compression for reader in readers}
        if len(compressions) == 1 and all(not reader.is_checked and reader.stride is None for reader in readers):
            return _gathered(readers, rows_of, within)
        groups = [(rows, reader.records(within[rows])) for reader, rows in zip(readers, rows_of, strict=True)]
        return JoinedRecords(len(numbers), groups)

    def stored_nbytes(self, numbers: Ints) -> Ints:
        """The bytes that these records take in their shards, from the indices alone."""
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        out = np.empty(len(numbers), np.int64)
        for shard in np.unique(shard_of).tolist():
            mine = np.flatnonzero(shard_of == shard)
            _, out[mine] = self.reader(shard).where(numbers[mine] - self._splits[shard])
        return out

    def _copied(self, shards: Sequence[int], rows_of: Sequence[Ints], within: Ints) -> Records:
        """Records of more shards than may be open at a time: whole, one shard after another."""
        groups: list[tuple[Ints, Records]] = []
        for shard, rows in zip(shards, rows_of, strict=True):
            records = self.reader(shard).records(within[rows])
            groups.append((rows, records.stored() if isinstance(records, UniformRecords) else records))
        return JoinedRecords(len(within), groups)


def open_limit() -> int:
    """How many shards may be open: each takes two file descriptors, and half of them are left to others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 16_384 if soft == resource.RLIM_INFINITY else max(4, min(16_384, soft // 4))


def _gathered(readers: Sequence[ShardReader], rows_of: Sequence[Ints], within: Ints) -> Records:
    """Records of different sizes from several shards in one go: numbers within the shards, and the rows of each."""
    base, size, logical, lengths = (np.empty(len(within), np.int64) for _ in range(4))
    for reader, rows in zip(readers, rows_of, strict=True):
        base[rows], size[rows] = reader.mapped.base, len(reader.mapped.buffer)
        logical[rows], lengths[rows] = reader.where(within[rows])
    places = Places(tuple(reader.mapped for reader in readers), base, size, logical)

    def name(row: int) -> str:
        shard = next(place for place, rows in enumerate(rows_of) if row in rows)
        return f"{readers[shard].mapped.path}: record {within[row]} of the shard"

    return read_places(places, lengths, readers[0].header.compression, name)


class _UniformShards:
    """Where records of one size lie, by shard: for shards that stay open once they are.

    Args:
        splits: the number of the first record of each shard, and of all records; empty where they do not all stay open.
    """

    def __init__(self, splits: Ints) -> None:
        self._splits = splits
        # Where each file begins in memory, and where record 0 of all shards would lie in it.
        self._base, self._origin = np.zeros(len(splits), np.int64), np.zeros(len(splits), np.int64)
        self._open = np.zeros(max(0, len(splits) - 1), np.bool_)
        self._all_open = False
        self._stride, self._nbytes = 0, 0

    def add(self, shard: int, reader: ShardReader) -> None:
        """Take note of a shard that was opened."""
        nbytes = reader.header.record_nbytes
        if len(self._open) == 0 or reader.stride is None or nbytes is None or reader.is_checked:
            return
        if self._open.any() and nbytes != self._nbytes:
            return
        first, self._stride = reader.stride
        self._nbytes = nbytes
        self._base[shard] = reader.mapped.base
        self._origin[shard] = first - self._splits[shard] * self._stride
        self._open[shard] = True
        self._all_open = bool(self._open.all())

    def all_open(self, shard_of: Ints) -> bool:
        """Whether all of these shards are known here."""
        return self._all_open or (len(self._open) > 0 and bool(self._open[shard_of].all()))

    def records(self, holder: object, shard_of: Ints, numbers: Ints) -> Records:
        """Records by their numbers among those of all shards, and the shards that they lie in."""
        logical = self._origin[shard_of] + numbers * self._stride
        return UniformRecords.at(holder, self._base[shard_of], logical, self._nbytes)
