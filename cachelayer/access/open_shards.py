"""The open shards of a version, some of which are mapped and in tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.shard_tables import ShardTables
from cachelayer.arrayrecord.address_space import AddressSpace, address_space
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.errors import CorruptionError
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.records.turns import out_of_turn


class OpenShards:
    """The readers of shards, by number. Shards that were not read recently may be unmapped at any time.

    Args:
        splits: the number of the first record of each shard, then the number of all records.
        open_shard: opens a shard, given its number and when the read began, in nanoseconds of the monotonic clock.

    Attributes:
        space: where shards are mapped; None if system calls read them all.
        tables: where the mapped shards lie.
        entered: how often a shard has been entered into the tables.
    """

    def __init__(self, splits: Ints, open_shard: Callable[[int, int], ShardReader]) -> None:
        self._splits = splits
        self._open_shard = open_shard
        self._mapped: dict[int, ShardReader] = {}
        self._unmapped: dict[int, ShardReader] = {}
        self._lock = ProcessLock()
        self.tables = ShardTables.of(splits)
        self.entered = 0
        # When each shard was last read.
        self._used = np.zeros(len(splits) - 1, np.int64)
        self.space: AddressSpace | None = address_space()
        if self.space is not None:
            self.space.add(self)

    def reader(self, shard: int, now: int) -> ShardReader:
        """Return the reader of a shard, mapped if possible.

        Args:
            shard: the shard.
            now: when the read began, in nanoseconds of the monotonic clock.
        """
        self._used[shard] = now
        # A reader of an empty shard is false, so compare with None.
        mapped = self._mapped.get(shard)
        return self._opened(shard, now) if mapped is None else mapped

    def readers(self, shards: Sequence[int], now: int) -> list[ShardReader]:
        """Return the readers of several shards, as many of them mapped as possible."""
        self._used[list(shards)] = now
        readers: list[ShardReader] = []
        is_full = False
        for shard in shards:
            reader = self._mapped.get(shard)
            if reader is None and is_full:
                reader = self._unmapped.get(shard)
            readers.append(self._opened(shard, now) if reader is None else reader)
            # This read has already evicted all other shards, so system calls read the rest of it.
            is_full = is_full or not readers[-1].is_mapped
        return readers

    def gathered(self, shard_of: Ints, numbers: Ints, now: int, *, in_part: bool = False) -> Records | None:
        """Return records that are read from all their shards together; None if the shards must be read one by one.

        Args:
            shard_of: the shard of each record.
            numbers: the number of each record in the version.
            now: when the read began, in nanoseconds of the monotonic clock.
            in_part: do not read bytes before they are used, if that is possible.

        Raises:
            CorruptionError: if a record does not lie within its shard.
        """
        space = self.space
        if space is None:
            return None
        self._used[shard_of] = now
        # Hold the epoch before reading the tables: every shard that they say is mapped then stays mapped.
        epoch = space.epoch
        return self.tables.gathered(space, (self, epoch), shard_of, numbers, self.path, in_part=in_part)

    def note_use(self, is_used: NDArray[np.bool_], now: int) -> None:
        """Note which shards are read by a caller that has a copy of the tables."""
        self._used[is_used] = now

    def last_used(self) -> tuple[Ints, Ints]:
        """Return the mapped shards and when each was last read; see :class:`Residents`."""
        mapped = np.flatnonzero(self.tables.is_mapped)
        return mapped, self._used[mapped]

    def evict(self, numbers: list[int], evicted: list[object]) -> None:
        """Forget these mapped shards, and append their readers to a list; see :class:`Residents`."""
        for number in numbers:
            reader = self._mapped[number]
            self._unmapped[number] = reader.without_mapping()
            evicted.append(reader)
            self.tables.hide(number)
            del self._mapped[number]

    def path(self, shard: int) -> str:
        """Return the path of a shard; its number if it was never opened."""
        reader = self._mapped.get(shard) or self._unmapped.get(shard)
        return f"shard {shard}" if reader is None else str(reader.mapped.path)

    def _opened(self, shard: int, now: int) -> ShardReader:
        with out_of_turn(), self._lock:
            reader = self._mapped.get(shard)
            if reader is not None:
                return reader
            known = self._unmapped.get(shard)
            if known is not None and self.space is None:
                return known
            reader = self._checked(shard, now) if known is None else self._remapped(known, shard, now)
            slot = reader.mapped.slot
            if slot is None or not reader.is_mapped:
                self._unmapped[shard] = reader.without_mapping()
            else:
                with slot.space.changing:
                    self._enter(shard, reader, slot.start)
            return reader

    def _checked(self, shard: int, now: int) -> ShardReader:
        reader = self._open_shard(shard, now)
        records = int(self._splits[shard + 1] - self._splits[shard])
        if len(reader) != records:
            raise CorruptionError(f"{reader.mapped.path}: it holds {len(reader)} records, expected {records}")
        return reader

    def _remapped(self, known: ShardReader, shard: int, now: int) -> ShardReader:
        try:
            return known.remapped(now)
        except CorruptionError:
            # The files have been replaced, so check the new ones as at first use.
            return self._checked(shard, now)

    def _enter(self, shard: int, reader: ShardReader, start: int) -> None:
        """Enter a mapped shard into the tables."""
        self.tables.enter(shard, reader, start)
        self._unmapped.pop(shard, None)
        self._mapped[shard] = reader
        # Reading threads find the shard as soon as it is shown, so this comes last.
        self.tables.show(shard)
        self.entered += 1
