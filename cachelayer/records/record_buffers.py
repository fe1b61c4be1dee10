"""Stored records in memory. Codecs read only those bytes of the records that they need.

How records lie in memory depends on where they come from; how they are read does not::

    PackedRecords  one buffer: aaaaBBBccccc      starts 0 4 7, lengths 4 3 5
    MappedRecords  a mapped shard: aaaaB<block header>BBccccc    (see arrayrecord.mapping)
    JoinedRecords  several places: records 0 and 2 in one buffer, record 1 in another

    same_range(1, 2)              aa BB cc    the same range of all records: uint8 of shape [3, 2]
    ranges([0, 1, 4], [2, 2, 1])  aaBBc       a range of its own of each record: uint8 of shape [5]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.records.memory import Bytes, Ints, gather_ranges, gather_rows, memory_of, move_ranges, splits_of


class Records(ABC):
    """Stored records in memory. All that is read of them is copied."""

    lengths: Ints
    """The bytes of each record."""
    uniform_nbytes: int | None
    """The bytes of every record, if all records are known to have one size."""
    name: Callable[[int], str]
    """Returns what errors call a record, given its row."""

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def __getitem__(self, rows: Ints) -> Records:
        """Return some of the records, which may repeat."""

    @abstractmethod
    def single(self, row: int) -> Records:
        """Return one of the records."""

    @abstractmethod
    def _same_range(self, offset: int, nbytes: int) -> Bytes:
        """Copy a range that lies within every record."""

    @abstractmethod
    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        """Copy ranges that lie within their records."""

    def same_range(self, offset: int, nbytes: int) -> Bytes:
        """Return the same range of all records.

        Returns:
            A new uint8 array of shape ``[rows, nbytes]``: bytes ``offset`` to ``offset + nbytes`` of each record.

        Raises:
            CorruptionError: if a record is shorter.
        """
        uniform = self.uniform_nbytes
        if uniform is None or not 0 <= offset <= offset + nbytes <= uniform:
            self._refuse_short(lie_outside(offset, nbytes, self.lengths))
        return self._same_range(offset, nbytes)

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        """Return a range of its own of each record.

        Args:
            starts: where the range of each record begins, counted from the first byte of the record.
            lengths: the bytes of the range of each record.

        Returns:
            A new one-dimensional uint8 array: the ranges one after another.

        Raises:
            CorruptionError: if a record is shorter.
        """
        self._refuse_short(lie_outside(starts, lengths, self.lengths))
        return self._ranges(starts, lengths)

    def _refuse_short(self, is_short: NDArray[np.bool_]) -> None:
        if is_short.any():
            raise CorruptionError(f"{self.name(int(is_short.argmax()))} is shorter than its parts")

    def packed_copy(self) -> PackedRecords:
        """Return the same records in a new buffer."""
        uniform = self.uniform_nbytes
        if uniform is not None:
            values = self.same_range(0, uniform).reshape(-1)
        else:
            values = self.ranges(np.zeros(len(self), np.int64), self.lengths)
        return PackedRecords(values, splits_of(self.lengths)[:-1], self.lengths, uniform, self.name)

    def packed(self) -> PackedRecords:
        """Return the same records in one buffer: without a copy if they lie in one already."""
        return self.packed_copy()


@dataclass(frozen=True, eq=False)
class PackedRecords(Records):
    """Records in one buffer, each in one piece."""

    buffer: Bytes
    starts: Ints
    """Where each record begins in the buffer."""
    lengths: Ints
    uniform_nbytes: int | None = None
    name: Callable[[int], str] = "record {}".format

    @classmethod
    def of_bytes(cls, records: Sequence[bytes]) -> PackedRecords:
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        return cls(np.frombuffer(b"".join(records), np.uint8), splits_of(lengths)[:-1], lengths)

    def __getitem__(self, rows: Ints | slice) -> PackedRecords:
        name = names_of_rows(self, rows)
        return PackedRecords(self.buffer, self.starts[rows], self.lengths[rows], self.uniform_nbytes, name)

    def single(self, row: int) -> PackedRecords:
        return self[row : row + 1]

    def packed(self) -> PackedRecords:
        return self

    def contiguous_groups(self) -> list[tuple[Ints, PackedRecords]]:
        """Return groups of records, each in one buffer, with the rows of each group. Here there is one group."""
        return [(np.arange(len(self)), self)]

    def memory(self) -> memoryview:
        return memory_of(self.buffer)

    @cached_property
    def stride(self) -> int | None:
        """The bytes of every record if all records have one size and follow one another, else None."""
        starts, lengths = self.starts, self.lengths
        if len(starts) == 0:
            return None
        nbytes = lengths.item(0)
        if self.uniform_nbytes is None and not (lengths == nbytes).all():
            return None
        return nbytes if (starts[1:] - starts[:-1] == nbytes).all() else None

    def _same_range(self, offset: int, nbytes: int) -> Bytes:
        starts = self.starts + offset
        stride = self.stride
        if stride is None or not nbytes:
            return gather_rows(self.buffer, starts, nbytes)
        # The range of the next record begins one record further: numpy copies a matrix with such rows in one call.
        return np.ndarray((len(starts), nbytes), np.uint8, self.buffer, starts.item(0), (stride, 1)).copy()

    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        return gather_ranges(self.buffer, self.starts + starts, lengths)

    def to_list(self) -> list[bytes]:
        memory = self.memory()
        ends = self.starts + self.lengths
        return [bytes(memory[start:end]) for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class JoinedRecords(Records):
    """Records that lie in several buffers."""

    lengths: Ints
    uniform_nbytes: int | None
    groups: Sequence[tuple[Ints, Records]]
    """For each buffer, the rows of its records, and these records."""

    @cached_property
    def _group_and_index(self) -> dict[int, tuple[Records, int]]:
        """By row: the group that has its record, and the index of the record in the group."""
        return {row: (records, index) for rows, records in self.groups for index, row in enumerate(rows.tolist())}

    def __getitem__(self, rows: Ints) -> Records:
        group_of = np.empty(len(self), np.int64)
        index_of = np.empty(len(self), np.int64)
        for group, (members, _) in enumerate(self.groups):
            group_of[members] = group
            index_of[members] = np.arange(len(members))
        groups = []
        for group, (_, records) in enumerate(self.groups):
            in_group = np.flatnonzero(group_of[rows] == group)
            if len(in_group):
                groups.append((in_group, records[index_of[rows[in_group]]]))
        return join_records(len(rows), groups)

    def single(self, row: int) -> Records:
        records, index = self._group_and_index[row]
        return records.single(index)

    def name(self, row: int) -> str:
        records, index = self._group_and_index[row]
        return records.name(index)

    def _same_range(self, offset: int, nbytes: int) -> Bytes:
        out = np.empty((len(self), nbytes), np.uint8)
        for rows, records in self.groups:
            out[rows] = records.same_range(offset, nbytes)
        return out

    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        for rows, records in self.groups:
            counts = lengths[rows]
            group = records.ranges(starts[rows], counts)
            move_ranges(out, splits[rows], group, splits_of(counts)[:-1], counts)
        return out


@dataclass(frozen=True, eq=False)
class StoredBytes:
    """A file in a record. Its parts are read when they are used."""

    records: Records
    row: int
    """The row of its record."""
    start: int
    """Where it begins in the record."""
    nbytes: int

    @classmethod
    def of(cls, file: bytes) -> StoredBytes:
        """Return a file in memory."""
        return cls(PackedRecords.of_bytes([file]), 0, 0, len(file))

    def read(self) -> bytes:
        """Return the whole file."""
        [[body]] = read_together([FileRanges(self, np.zeros(1, np.int64), np.array([self.nbytes]))])
        return bytes(body)


@dataclass(frozen=True, eq=False)
class FileRanges:
    """Ranges of a file."""

    file: StoredBytes
    begins: Ints
    """The first byte of each range in the file."""
    ends: Ints
    """The byte after each range."""


def read_together(wanted: Sequence[FileRanges]) -> list[list[memoryview]]:
    """Return the bytes of the ranges of each file. The ranges of files in the same records are read at once."""
    numbers_by_records: dict[int, list[int]] = {}
    for number, ranges in enumerate(wanted):
        numbers_by_records.setdefault(id(ranges.file.records), []).append(number)
    bodies: list[list[memoryview]] = [[] for _ in wanted]
    for numbers in numbers_by_records.values():
        files = [wanted[number] for number in numbers]
        counts = [len(ranges.begins) for ranges in files]
        rows = np.repeat([ranges.file.row for ranges in files], counts)
        starts = np.concatenate([ranges.file.start + ranges.begins for ranges in files])
        lengths = np.concatenate([ranges.ends - ranges.begins for ranges in files])
        memory = memory_of(files[0].file.records[rows].ranges(starts, lengths))
        splits = splits_of(lengths).tolist()
        number_of_range = np.repeat(numbers, counts).tolist()
        for number, (begin, end) in zip(number_of_range, pairwise(splits), strict=True):
            bodies[number].append(memory[begin:end])
    return bodies


def join_records(count: int, groups: Sequence[tuple[Ints, Records]]) -> Records:
    """Return records that were read in groups, in the order of their rows.

    Args:
        count: the number of records.
        groups: for each group, the rows of its records, and these records.
    """
    if not groups:
        return PackedRecords.of_bytes([])
    if len(groups) == 1:
        return groups[0][1]
    lengths = np.empty(count, np.int64)
    for rows, records in groups:
        lengths[rows] = records.lengths
    sizes = {records.uniform_nbytes for _, records in groups}
    return JoinedRecords(lengths, sizes.pop() if len(sizes) == 1 else None, groups)


def names_of_rows(records: Records, rows: Ints | slice) -> Callable[[int], str]:
    """Return the function that names the records of these rows in errors."""
    return lambda row: records.name(int(np.arange(len(records))[rows][row]))


def lie_outside(starts: Ints | int, lengths: Ints | int, nbytes: Ints | int) -> NDArray[np.bool_]:
    """Return whether each range reaches outside of the ``nbytes`` bytes that there are.

    Damaged files hold any numbers, so this compares without a sum that could overflow.
    """
    return np.asarray((starts < 0) | (lengths < 0) | (lengths > nbytes) | (starts > nbytes - lengths))
