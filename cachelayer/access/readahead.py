"""Telling the kernel what is read next, where it is not in memory yet."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.records.memory import Ints

# Fewer records than these are read as they are: there is little to do at once.
_FEW = 4
_SAMPLES = 8
# What was in memory is taken to be there for so long, so that looking costs next to nothing.
_TRUSTED_NS = 10_000_000


class ReadAhead:
    """Announces records that are about to be read, so that the disk fetches them together, not one page fault after
    another: those would read much around each record besides. Whether it is needed is seen from a sample of them.

    Args:
        splits: the number of the first record of each shard, and of all records.
        reader: the reader of a shard.
    """

    def __init__(self, splits: Ints, reader: Callable[[int], ShardReader]) -> None:
        self._splits = splits
        self._reader = reader
        self._trusted_until = 0

    def announce(self, numbers: Ints) -> None:
        """Have these records fetched, if they are not in memory; returns before they are."""
        if len(numbers) < _FEW or time.monotonic_ns() < self._trusted_until:
            return
        sample = numbers[:: -(-len(numbers) // _SAMPLES)]
        if all(reader.are_resident(within) for reader, within in self._by_shard(sample)):
            self._trusted_until = time.monotonic_ns() + _TRUSTED_NS
            return
        for reader, within in self._by_shard(numbers):
            reader.will_need(within)

    def _by_shard(self, numbers: Ints) -> list[tuple[ShardReader, Ints]]:
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        return [
            (self._reader(shard), numbers[shard_of == shard] - self._splits[shard])
            for shard in np.unique(shard_of).tolist()
        ]
