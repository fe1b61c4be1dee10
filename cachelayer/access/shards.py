"""The shards of a version as one sequence of records."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.codec.frames import RecordBuffer, Records
from cachelayer.codec.memory import Bytes, Ints, move_ranges, splits_of


@dataclass(frozen=True, eq=False)
class JoinedRecords:
    """Records of several shards.

    Args:
        rows: number of records.
        groups: for each shard the rows that come from it, and its records.
    """

    rows: int
    groups: Sequence[tuple[Ints, Records]]

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

    Args:
        records: number of records of each shard.
        open_shard: opens a shard by its number.
    """

    def __init__(self, records: Sequence[int], open_shard: Callable[[int], ShardReader]) -> None:
        self._splits = splits_of(np.asarray(records, np.int64))
        self._starts: list[int] = self._splits[:-1].tolist()
        self._open_shard = open_shard
        self._readers: list[ShardReader | None] = [None] * len(records)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._splits[-1])

    def reader(self, number: int) -> ShardReader:
        """The reader of a shard."""
        reader = self._readers[number]
        if reader is None:
            with self._lock:
                reader = self._readers[number]
                if reader is None:
                    reader = self._readers[number] = self._open_shard(number)
        return reader

    def record(self, number: int) -> bytearray:
        """One record, the caller's own; ``number`` is below ``len(self)``."""
        shard = 0 if len(self._readers) == 1 else bisect_right(self._starts, number) - 1
        reader = self._readers[shard] or self.reader(shard)
        return reader.record(number - self._starts[shard])

    def records(self, numbers: Ints) -> Records:
        """The records of these numbers, each below ``len(self)``."""
        if len(numbers) == 0:
            return RecordBuffer.of([])
        if len(self._readers) == 1:
            return self.reader(0).records(numbers)
        shard_of = np.searchsorted(self._splits, numbers, side="right") - 1
        if (shard_of == shard_of[0]).all():
            return self._in_shard(int(shard_of[0]), numbers)
        order = np.argsort(shard_of, kind="stable")
        shards, firsts = np.unique(shard_of[order], return_index=True)
        groups = []
        for shard, rows in zip(shards.tolist(), np.split(order, firsts[1:]), strict=True):
            groups.append((rows, self._in_shard(shard, numbers[rows])))
        return JoinedRecords(len(numbers), groups)

    def _in_shard(self, shard: int, numbers: Ints) -> Records:
        return self.reader(shard).records(numbers - self._splits[shard])
