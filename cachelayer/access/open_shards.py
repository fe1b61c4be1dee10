"""The open shards of a version, in tables, so that one call reads records from many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.address_space import AddressSpace, Epoch, address_space
from cachelayer.arrayrecord.blocks import to_logical
from cachelayer.arrayrecord.checksums import checked
from cachelayer.arrayrecord.places import Places, UniformRecords, VaryingRecords, check_inside
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.errors import CorruptionError
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records

# How a shard is read: alone (also if it is not open yet), or together with others: as records of one size, or by index.
_ALONE, _UNIFORM = 0, 1
_VARYING = {"none": 2, "zstd": 3}
_COMPRESSION = {kind: name for name, kind in _VARYING.items()}
_FARTHEST = 2**62


class OpenShards:
    """The readers of shards, by number. Shards that were not read recently may be unmapped at any time.

    Args:
        splits: the number of the first record of each shard, then the number of all records.
        open_shard: opens a shard, given its number and when the read began, in nanoseconds of the monotonic clock.
    """

    def __init__(self, splits: Ints, open_shard: Callable[[int, int], ShardReader]) -> None:
        shards = len(splits) - 1
        self._splits = splits
        self._open_shard = open_shard
        self._mapped: dict[int, ShardReader] = {}
        self._unmapped: dict[int, ShardReader] = {}
        self._lock = ProcessLock()
        # For each shard: when it was last read, whether it is mapped, and how it is read. For each mapped shard: the
        # addresses at which the file and its index begin, and the bytes of the file without block headers.
        self._used, self._is_mapped = np.zeros(shards, np.int64), np.zeros(shards, np.bool_)
        self._kind = np.zeros(shards, np.int8)
        self._base, self._index, self._room = (np.zeros(shards, np.int64) for _ in range(3))
        # If all records have one size, two logical offsets for each shard: where record 0 of the version would lie if
        # this file went back so far, and the first offset at which a record would not fit into the file. The second is
        # 0 for a shard that is not mapped: no record fits.
        self._origin, self._limit = np.zeros(shards, np.int64), np.zeros(shards, np.uint64)
        self._stride, self._nbytes = 0, -1
        # Whether each record is compared with its checksum; all shards of a version are read alike.
        self._checks = False
        self._space: AddressSpace | None = address_space()
        if self._space is not None:
            self._space.add(self)

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
        space = self._space
        if space is None:
            return None
        self._used[shard_of] = now

        def name(row: int) -> str:
            shard = int(shard_of[row])
            return f"{self._path(shard)}: record {numbers[row] - self._splits[shard]} of the shard"

        # Hold the epoch before reading the tables: every shard that they say is mapped then stays mapped.
        epoch = space.epoch
        found = self._together(space, epoch, shard_of, numbers, name, in_part=in_part)
        if found is None or not self._checks:
            return found
        return checked(found, self._rows(space, shard_of, numbers)["crc32c"], name)

    def _together(
        self,
        space: AddressSpace,
        epoch: Epoch,
        shard_of: Ints,
        numbers: Ints,
        name: Callable[[int], str],
        *,
        in_part: bool,
    ) -> Records | None:
        """Return the records of :meth:`gathered`, unchecked."""
        limit = self._limit[shard_of]
        logical = numbers * self._stride
        logical += self._origin[shard_of]
        # As unsigned integers, negative offsets are larger than all others: one comparison checks both ends.
        if not (logical.view(np.uint64) >= limit).any():
            return UniformRecords.inside(space, epoch, self._base[shard_of], logical, self._nbytes)
        if not self._is_mapped[shard_of].all():
            return None
        kind = int(self._kind[shard_of[0]])
        if kind == _ALONE or (self._kind[shard_of] != kind).any():
            return None
        if kind == _UNIFORM:
            check_inside(logical, np.full(len(logical), self._nbytes), self._room[shard_of], name)
            return None
        located = self._by_index(space, epoch, shard_of, numbers, name)
        compression = _COMPRESSION[kind]
        if in_part and compression == "none" and not self._checks:
            return VaryingRecords(located)
        return located.records(compression)

    def _by_index(
        self, space: AddressSpace, epoch: Epoch, shard_of: Ints, numbers: Ints, name: Callable[[int], str]
    ) -> Places:
        """Return the stored bytes of records, whose positions are read from the mapped indices."""
        rows = self._rows(space, shard_of, numbers)
        logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
        return Places(space, epoch, self._base[shard_of], self._room[shard_of], logical, lengths, name)

    def _rows(self, space: AddressSpace, shard_of: Ints, numbers: Ints) -> Any:
        """Return the index rows of records, from mapped indices."""
        within = numbers - self._splits[shard_of]
        places = self._index[shard_of] + (index.HEADER_NBYTES + within * index.ROW.itemsize)
        return space.windows(index.ROW.itemsize)[places].view(index.ROW)

    def last_used(self) -> tuple[Ints, Ints]:
        """Return the mapped shards and when each was last read; see :class:`Residents`."""
        mapped = np.flatnonzero(self._is_mapped)
        return mapped, self._used[mapped]

    def evict(self, numbers: list[int]) -> list[object]:
        """Forget these mapped shards and return their readers; see :class:`Residents`."""
        self._is_mapped[numbers] = False
        self._limit[numbers] = 0
        evicted: list[object] = []
        for number in numbers:
            reader = self._mapped[number]
            self._unmapped[number] = reader.without_mapping()
            del self._mapped[number]
            evicted.append(reader)
        return evicted

    def _path(self, shard: int) -> str:
        reader = self._mapped.get(shard) or self._unmapped.get(shard)
        return f"shard {shard}" if reader is None else str(reader.mapped.path)

    def _opened(self, shard: int, now: int) -> ShardReader:
        with self._lock:
            reader = self._mapped.get(shard)
            if reader is not None:
                return reader
            known = self._unmapped.get(shard)
            if known is not None and self._space is None:
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
        rows = reader.mapped_index.slot
        self._base[shard], self._room[shard] = start, reader.mapped.room
        if rows is not None:
            self._index[shard] = rows.start
        self._kind[shard] = self._kind_of(reader, shard)
        self._checks = self._checks or reader.is_checked
        self._unmapped.pop(shard, None)
        self._mapped[shard] = reader
        # Reading threads find the shard as soon as these are set, so they come last.
        self._is_mapped[shard] = True
        if self._kind[shard] == _UNIFORM:
            self._limit[shard] = reader.mapped.room - self._nbytes + 1

    def _kind_of(self, reader: ShardReader, shard: int) -> int:
        if reader.stride is None:
            return _VARYING[reader.header.compression]
        nbytes = reader.header.record_nbytes
        first, stride = reader.stride
        origin = first - int(self._splits[shard]) * stride
        if nbytes is None or self._nbytes not in (-1, nbytes) or abs(origin) > _FARTHEST:
            return _ALONE
        self._stride, self._nbytes, self._origin[shard] = stride, nbytes, origin
        return _UNIFORM
