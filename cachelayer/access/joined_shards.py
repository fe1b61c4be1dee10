"""The local shards of several versions, as one sequence of records that one call reads from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self
from weakref import ReferenceType, ref

import numpy as np

from cachelayer.access.local_shards import LocalShards
from cachelayer.access.readahead import ReadAhead
from cachelayer.access.shard_tables import ShardTables
from cachelayer.arrayrecord.address_space import AddressSpace, Epoch
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.record_buffers import Records
from cachelayer.tally import add_records


@dataclass(frozen=True, eq=False)
class _Copied:
    """A copy of the tables of all versions.

    Args:
        epoch: the epoch of the address space in which they were copied. Later, they may be wrong.
        entered: how often a shard of each version had been entered.
        tables: the copy; None if mapped shards differ in how they are read.
    """

    epoch: ReferenceType[Epoch]
    entered: list[int]
    tables: ShardTables | None


class JoinedShards:
    """Reads records of several versions together, if their shards are mapped and read alike. Thread-safe.

    Args:
        space: where shards are mapped.
        members: the shards of each version, once. They open and unmap them; this object only copies where they lie.
    """

    def __init__(self, space: AddressSpace, members: Sequence[LocalShards]) -> None:
        self._space = space
        self._members = tuple(members)
        self._open = [member.opened for member in members]
        self._splits = splits_of(np.concatenate([np.diff(each.tables.splits) for each in self._open]))
        self._firsts = splits_of(np.array([len(each.tables.kind) for each in self._open], np.int64))
        self._parts = [slice(*part) for part in pairwise(self._firsts.tolist())]
        self._copied = _Copied(ref(Epoch()), [], None)
        self._read_ahead = ReadAhead(self._splits, self._reader)

    @classmethod
    def of(cls, members: Sequence[LocalShards]) -> Self | None:
        """Return the shards of several versions together, those of each once; None if none are mapped."""
        spaces = {member.opened.space for member in members}
        space = spaces.pop() if len(spaces) == 1 else None
        if space is None:
            return None
        return cls(space, list(dict.fromkeys(members)))

    def first(self, member: LocalShards) -> int:
        """Return the number of the first record of a version."""
        return sum(len(each) for each in self._members[: self._members.index(member)])

    def records(self, numbers: Ints, *, in_part: bool) -> Records | None:
        """Return records, numbered through all shards; None if they must be read version by version.

        Args:
            numbers: the records.
            in_part: do not read bytes before they are used, if that is possible.

        Raises:
            CorruptionError: if a record does not lie within its shard, or is damaged.
        """
        # Hold the epoch before looking at the tables: every shard that they say is mapped then stays mapped.
        epoch = self._space.epoch
        tables = self._tables(epoch)
        # As unsigned integers, negative numbers are larger than all others: one comparison checks both ends.
        if tables is None or not len(numbers) or int(numbers.view(np.uint64).max()) >= int(self._splits[-1]):
            return None
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        is_used = np.zeros(len(tables.kind), np.bool_)
        is_used[shard_of] = True
        if (is_used & ~tables.is_mapped).any():
            return None
        now = time.monotonic_ns()
        for each, part in zip(self._open, self._parts, strict=True):
            each.note_use(is_used[part], now)
        is_cold = self._read_ahead.announce(numbers)
        found = tables.gathered(self._space, (self, epoch), shard_of, numbers, self._path, in_part=in_part)
        if found is not None:
            add_records("disk" if is_cold else "memory_map", found)
        return found

    def _tables(self, epoch: Epoch) -> ShardTables | None:
        """Return a copy of the tables that is right as long as this epoch is held."""
        copied = self._copied
        if copied.epoch() is not epoch or copied.entered != [each.entered for each in self._open]:
            # No shard is entered or evicted meanwhile.
            with self._space.changing:
                entered = [each.entered for each in self._open]
                tables = ShardTables.joined([each.tables for each in self._open])
                copied = self._copied = _Copied(ref(self._space.epoch), entered, tables)
        return copied.tables

    def _member(self, shard: int) -> tuple[int, int]:
        """Return the version of a shard, and its number there."""
        member = int(self._firsts.searchsorted(shard, side="right")) - 1
        return member, shard - int(self._firsts[member])

    def _reader(self, shard: int) -> ShardReader:
        member, number = self._member(shard)
        return self._members[member].reader(number)

    def _path(self, shard: int) -> str:
        member, number = self._member(shard)
        return self._open[member].path(number)
