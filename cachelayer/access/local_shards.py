"""The shards of a version on this host, as one sequence of records."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cachelayer.access.open_shards import OpenShards
from cachelayer.access.readahead import ReadAhead
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, distinct, keep_freed_memory, move_ranges, splits_of
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.tally import add_bytes, add_records

_MOST_RECORDS = 2**62


@dataclass(frozen=True, eq=False)
class GroupedRecords:
    """Records that were read in groups, for example from several shards.

    Args:
        rows: the number of records.
        groups: for each group, the rows that it has, and their records.
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

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        slab = self.slab(offset, nbytes)
        return [slab[row : row + rows].copy() for row in range(0, len(slab), rows)]

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        for rows, records in self.groups:
            group = records.ranges(starts[rows], lengths[rows])
            move_ranges(out, splits[rows], group, splits_of(lengths[rows])[:-1], lengths[rows])
        return out


class LocalShards:
    """Random access to the records of local shards. Thread-safe.

    A shard is opened when it is first read. An open shard holds no file descriptor. If not all shards can be mapped at
    a time, those that were read least recently are unmapped.

    Args:
        records: the number of records of each shard.
        open_shard: opens a shard, given its number and when the read began, in nanoseconds of the monotonic clock.
        are_copies: whether they are local copies of remote shards.

    Raises:
        CorruptionError: if a number of records is negative, or their sum is too large.
    """

    def __init__(
        self, records: Sequence[int], open_shard: Callable[[int, int], ShardReader], *, are_copies: bool = False
    ) -> None:
        keep_freed_memory()
        if min(records, default=0) < 0 or sum(records) > _MOST_RECORDS:
            raise CorruptionError(
                f"{len(records)} shards of {sum(records)} records in total, the smallest of {min(records)}"
            )
        self._splits = splits_of(np.asarray(records, np.int64))
        self._records = int(self._splits[-1])
        self._are_copies = are_copies
        self._starts: list[int] = self._splits[:-1].tolist()
        self._open = OpenShards(self._splits, open_shard)
        self._read_ahead = ReadAhead(self._splits, self.reader)

    def __len__(self) -> int:
        return self._records

    @property
    def opened(self) -> OpenShards:
        """The shards that are open."""
        return self._open

    def reader(self, number: int) -> ShardReader:
        """Return the reader of a shard."""
        return self._open.reader(number, time.monotonic_ns())

    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it.

        Raises:
            CorruptionError: if there is no such record, or it is damaged.
        """
        if not 0 <= number < self._records:
            raise self._no_record(number)
        shard = 0 if len(self._starts) == 1 else bisect_right(self._starts, number) - 1
        found = self._open.reader(shard, time.monotonic_ns()).record(number - self._starts[shard])
        add_bytes("copy" if self._are_copies else "memory_map", len(found))
        return found

    def records(self, numbers: Ints, *, in_part: bool = False) -> Records:
        """Return the records of these numbers.

        Args:
            numbers: the records.
            in_part: only some of their bytes are needed: do not read the others if that is possible.

        Raises:
            CorruptionError: if there is no such record, or one is damaged.
        """
        if len(numbers) == 0:
            return RecordBuffer.of([])
        self._check(numbers)
        is_cold = self._read_ahead.announce(numbers)
        records = self._found(numbers, in_part=in_part)
        add_records("copy" if self._are_copies else "disk" if is_cold else "memory_map", records)
        return records

    def _found(self, numbers: Ints, *, in_part: bool) -> Records:
        now = time.monotonic_ns()
        if len(self._starts) == 1:
            return _read(self._open.reader(0, now), numbers, in_part=in_part)
        shard_of = self._shards_of(numbers)
        gathered = self._open.gathered(shard_of, numbers, now, in_part=in_part)
        if gathered is not None:
            return gathered
        order = np.argsort(shard_of, kind="stable")
        shards, firsts = np.unique(shard_of[order], return_index=True)
        readers = self._open.readers(shards.tolist(), now)
        gathered = self._open.gathered(shard_of, numbers, now, in_part=in_part)
        if gathered is not None:
            return gathered
        within = numbers - self._splits[shard_of]
        rows_of = np.split(order, firsts[1:])
        groups = [
            (rows, _read(reader, within[rows], in_part=in_part)) for reader, rows in zip(readers, rows_of, strict=True)
        ]
        return GroupedRecords(len(numbers), groups)

    def are_in_memory(self, numbers: Ints) -> bool:
        """Return whether records are in memory, as far as a sample of them shows."""
        self._check(numbers)
        return self._read_ahead.are_in_memory(numbers)

    def announce(self, numbers: Ints) -> bool:
        """Start to load records if they are not in memory; return whether any was not."""
        self._check(numbers)
        return self._read_ahead.load(numbers)

    def stored_nbytes(self, numbers: Ints) -> Ints:
        """Return the bytes that these records take in their shards; reads the indices only."""
        self._check(numbers)
        shard_of = self._shards_of(numbers)
        out = np.empty(len(numbers), np.int64)
        for shard in distinct(shard_of).tolist():
            rows = np.flatnonzero(shard_of == shard)
            _, out[rows] = self.reader(shard).where(numbers[rows] - self._splits[shard])
        return out

    def _shards_of(self, numbers: Ints) -> Ints:
        """Return the shard of each record."""
        shard_of: Ints = self._splits[1:].searchsorted(numbers, side="right")
        return shard_of

    def _check(self, numbers: Ints) -> None:
        # As unsigned integers, negative numbers are larger than all others: one comparison checks both ends.
        if len(numbers) and int(numbers.view(np.uint64).max()) >= self._records:
            raise self._no_record(int(numbers[(numbers < 0) | (numbers >= len(self))][0]))

    def _no_record(self, number: int) -> CorruptionError:
        return CorruptionError(f"there is no record {number}: the shards hold {len(self)} records")


def _read(reader: ShardReader, numbers: Ints, *, in_part: bool) -> Records:
    return reader.parts(numbers) if in_part else reader.records(numbers)
