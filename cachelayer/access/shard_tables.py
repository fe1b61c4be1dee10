"""Tables of where mapped shards lie, so that one call reads records from many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.address_space import AddressSpace
from cachelayer.arrayrecord.blocks import to_logical
from cachelayer.arrayrecord.checksums import checked
from cachelayer.arrayrecord.places import Places, UniformRecords, VaryingRecords, check_inside
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.record_buffers import Records

# How a shard is read: alone (also if it is not open yet), or together with others: as records of one size, or by index.
_ALONE, _UNIFORM = 0, 1
_VARYING = {"none": 2, "zstd": 3}
_COMPRESSION = {kind: name for name, kind in _VARYING.items()}
_FARTHEST = 2**62


@dataclass(eq=False)
class ShardTables:
    """The shards of a version, or of several versions one after another.

    Args:
        splits: the number of the first record of each shard, then the number of all records.
        is_mapped: for each shard, whether it is mapped.
        kind: for each shard, how it is read.
        base, index: for each mapped shard, the addresses at which the file and its index begin.
        room: for each mapped shard, the bytes of the file without block headers.
        origin: for each shard of records of one size, the logical offset where record 0 of all would lie if the file
            went back so far.
        limit: for each mapped shard of records of one size, the first logical offset at which a record would not fit
            into the file; for all others 0: no record fits.
        stride, nbytes: bytes from one record to the next, and of each record, in shards of records of one size;
            ``nbytes`` is -1 if there are none.
        checks: whether each record is compared with its checksum.
    """

    splits: Ints
    is_mapped: NDArray[np.bool_]
    kind: NDArray[np.int8]
    base: Ints
    index: Ints
    room: Ints
    origin: Ints
    limit: NDArray[np.uint64]
    stride: int = 0
    nbytes: int = -1
    checks: bool = False

    @classmethod
    def of(cls, splits: Ints) -> ShardTables:
        """Return the tables of shards that are not mapped yet."""
        count = len(splits) - 1
        base, within, room, origin = (np.zeros(count, np.int64) for _ in range(4))
        is_mapped, kind = np.zeros(count, np.bool_), np.zeros(count, np.int8)
        return cls(splits, is_mapped, kind, base, within, room, origin, np.zeros(count, np.uint64))

    @classmethod
    def joined(cls, members: Sequence[ShardTables]) -> ShardTables | None:
        """Return a copy of several tables as one; None if their mapped shards are not all read alike."""

        def together(name: str) -> Any:
            return np.concatenate([getattr(each, name) for each in members])

        firsts = splits_of(np.array([each.splits[-1] for each in members], np.int64)).tolist()
        splits = np.concatenate([each.splits[:-1] + first for each, first in zip(members, firsts, strict=False)])
        splits = np.append(splits, firsts[-1])
        is_mapped = together("is_mapped")
        kinds = together("kind")[is_mapped & (splits[1:] > splits[:-1])]
        opened = [each for each in members if each.is_mapped.any()]
        alike = {(each.stride, each.nbytes, each.checks) for each in opened}
        if not len(kinds) or kinds[0] == _ALONE or (kinds != kinds[0]).any() or len(alike) > 1:
            return None
        ((stride, nbytes, checks),) = alike
        if firsts[-1] * stride > _FARTHEST:
            return None
        return cls(
            splits,
            is_mapped,
            together("kind"),
            together("base"),
            together("index"),
            together("room"),
            np.concatenate([each.origin - first * stride for each, first in zip(members, firsts, strict=False)]),
            together("limit"),
            stride,
            nbytes,
            checks,
        )

    def gathered(
        self,
        space: AddressSpace,
        holder: object,
        shard_of: Ints,
        numbers: Ints,
        path: Callable[[int], str],
        *,
        in_part: bool,
    ) -> Records | None:
        """Return records that are read from all their shards together; None if the shards must be read one by one.

        Args:
            space: where the shards are mapped.
            holder: an object that keeps mapped all shards that the tables say are mapped: what has opened them, and the
                epoch of the space, which the caller has held since before it took these tables.
            shard_of: the shard of each record.
            numbers: the number of each record.
            path: returns the path of a shard for error messages.
            in_part: do not read bytes before they are used, if that is possible.

        Raises:
            CorruptionError: if a record does not lie within its shard, or is damaged.
        """

        def name(row: int) -> str:
            shard = int(shard_of[row])
            return f"{path(shard)}: record {numbers[row] - self.splits[shard]} of the shard"

        found = self._unchecked(space, holder, shard_of, numbers, name, in_part=in_part)
        if found is None or not self.checks:
            return found
        return checked(found, self._rows(space, shard_of, numbers)["crc32c"], name)

    def _unchecked(
        self,
        space: AddressSpace,
        holder: object,
        shard_of: Ints,
        numbers: Ints,
        name: Callable[[int], str],
        *,
        in_part: bool,
    ) -> Records | None:
        limit = self.limit[shard_of]
        logical = numbers * self.stride
        logical += self.origin[shard_of]
        # As unsigned integers, negative offsets are larger than all others: one comparison checks both ends.
        if not (logical.view(np.uint64) >= limit).any():
            return UniformRecords.inside(space, holder, self.base[shard_of], logical, self.nbytes)
        if not self.is_mapped[shard_of].all():
            return None
        kind = int(self.kind[shard_of[0]])
        if kind == _ALONE or (self.kind[shard_of] != kind).any():
            return None
        if kind == _UNIFORM:
            check_inside(logical, np.full(len(logical), self.nbytes), self.room[shard_of], name)
            return None
        located = self._by_index(space, holder, shard_of, numbers, name)
        compression = _COMPRESSION[kind]
        if in_part and compression == "none" and not self.checks:
            return VaryingRecords(located)
        return located.records(compression)

    def _by_index(
        self, space: AddressSpace, holder: object, shard_of: Ints, numbers: Ints, name: Callable[[int], str]
    ) -> Places:
        """Return the stored bytes of records, whose positions are read from the mapped indices."""
        rows = self._rows(space, shard_of, numbers)
        logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
        return Places(space, holder, self.base[shard_of], self.room[shard_of], logical, lengths, name)

    def _rows(self, space: AddressSpace, shard_of: Ints, numbers: Ints) -> Any:
        """Return the index rows of records, from mapped indices."""
        within = numbers - self.splits[shard_of]
        return index.mapped_rows(space.memory, self.index[shard_of], within)

    def enter(self, shard: int, reader: ShardReader, start: int) -> None:
        """Enter a mapped shard, whose file begins at an address."""
        rows = reader.mapped_index.slot
        self.base[shard], self.room[shard] = start, reader.mapped.room
        if rows is not None:
            self.index[shard] = rows.start
        self.kind[shard] = self._kind_of(reader, shard)
        self.checks = self.checks or reader.is_checked

    def show(self, shard: int) -> None:
        """Let reading threads find a shard that was entered; they may do so at once."""
        self.is_mapped[shard] = True
        if self.kind[shard] == _UNIFORM:
            self.limit[shard] = self.room[shard] - self.nbytes + 1

    def hide(self, shard: int) -> None:
        """Let no new reader find a shard."""
        # It is evicted again if it still counts as mapped, so that comes last.
        self.limit[shard] = 0
        self.is_mapped[shard] = False

    def _kind_of(self, reader: ShardReader, shard: int) -> int:
        if reader.stride is None:
            return _VARYING[reader.header.compression]
        nbytes = reader.header.record_nbytes
        first, stride = reader.stride
        origin = first - int(self.splits[shard]) * stride
        if nbytes is None or self.nbytes not in (-1, nbytes) or abs(origin) > _FARTHEST:
            return _ALONE
        self.stride, self.nbytes, self.origin[shard] = stride, nbytes, origin
        return _UNIFORM
