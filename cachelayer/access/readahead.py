"""Tell the kernel which records are read next, if they are not in memory yet."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.records.memory import Ints, distinct
from cachelayer.records.turns import leave_turn

# For fewer records than this, reading ahead gains little.
_FEW = 4
_SAMPLES = 8
# After records were in memory, do not check again for this long, and for twice as long each time up to the most, so
# that the checks cost almost nothing.
_TRUSTED_NS = 10_000_000
_MOST_TRUSTED_NS = 160_000_000


class ReadAhead:
    """Announces records that are about to be read, so that the disk reads all of them at once.

    Otherwise each record would cause a page fault of its own, which also reads much around the record. A sample of the
    records shows whether they are in memory already.

    Args:
        splits: the number of the first record of each shard, then the number of all records.
        reader: returns the reader of a shard.
    """

    def __init__(self, splits: Ints, reader: Callable[[int], ShardReader]) -> None:
        self._splits = splits
        self._reader = reader
        self._trust = _TRUSTED_NS
        self._trusted_until = 0
        # What the last sample has shown.
        self._trusted: bool | None = None

    def announce(self, numbers: Ints) -> bool:
        """Start to load these records if they are not in memory, and return at once whether any was not.

        Unless they are trusted to be in memory, the thread leaves its turn: the read may wait for a disk.
        """
        if len(numbers) >= _FEW and time.monotonic_ns() < self._trusted_until:
            return False
        leave_turn()
        if len(numbers) < _FEW or self._seen(numbers) is not False:
            return False
        self._will_need(numbers)
        return True

    def are_in_memory(self, numbers: Ints) -> bool:
        """Return whether these records are in memory, as far as a sample shows; False if the system does not tell."""
        # Of no records there is no sample, from which nothing is learnt.
        return len(numbers) > 0 and self._seen(numbers) is True

    def _seen(self, numbers: Ints) -> bool | None:
        """Return whether records are in memory, as a sample of them shows, or an earlier one; None if not known."""
        if time.monotonic_ns() < self._trusted_until:
            return self._trusted
        found = self._sample(numbers)
        if found is False:
            self._trust = _TRUSTED_NS
            return False
        self._trusted = found
        self._trusted_until = time.monotonic_ns() + self._trust
        self._trust = min(2 * self._trust, _MOST_TRUSTED_NS)
        return found

    def load(self, numbers: Ints) -> bool:
        """Start to load these records unless a sample of them is in memory; return whether it was not."""
        if self._sample(numbers) is not False:
            return False
        self._will_need(numbers)
        return True

    def _sample(self, numbers: Ints) -> bool | None:
        """Return whether a sample of records is in memory; None if the system does not tell."""
        sample = numbers[:: max(1, -(-len(numbers) // _SAMPLES))]
        found = {reader.are_resident(within) for reader, within in self._by_shard(sample)}
        return False if False in found else None if None in found else True

    def _will_need(self, numbers: Ints) -> None:
        for reader, within in self._by_shard(numbers):
            reader.will_need(within)

    def _by_shard(self, numbers: Ints) -> list[tuple[ShardReader, Ints]]:
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        return [
            (self._reader(shard), numbers[shard_of == shard] - self._splits[shard])
            for shard in distinct(shard_of).tolist()
        ]
