"""Stored records that lie in memory, in one buffer or in several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.records.memory import Bytes, Ints, gather_ranges, gather_rows, memory_of, move_ranges, splits_of


class Records(ABC):
    """Stored records that lie in memory: codecs read those of their bytes that they need.

    Attributes:
        lengths: bytes of each record.
        uniform_nbytes: the bytes of every record if all are known to be equal, else None.
        name: returns what errors call a record, by its row.
    """

    lengths: Ints
    uniform_nbytes: int | None
    name: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def row(self, row: int) -> Records:
        """Return one of the records."""

    @abstractmethod
    def _slab(self, offset: int, nbytes: int) -> Bytes:
        """See :meth:`slab`; all records are long enough."""

    @abstractmethod
    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        """See :meth:`ranges`; all ranges lie in their records."""

    def slab(self, offset: int, nbytes: int) -> Bytes:
        """Return the same range of each record: a new uint8 array of shape ``[rows, nbytes]``."""
        uniform = self.uniform_nbytes
        if uniform is None or not 0 <= offset <= offset + nbytes <= uniform:
            self._refuse_short(outside(offset, nbytes, self.lengths))
        return self._slab(offset, nbytes)

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        """Return the result of :meth:`slab` as arrays of ``rows`` rows each, which share no memory."""
        if rows == 1:
            # Long rows are not copied twice.
            return [self.row(row).slab(offset, nbytes) for row in range(len(self))]
        slab = self.slab(offset, nbytes)
        return [slab[start : start + rows].copy() for start in range(0, len(self), rows)]

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        """Return a range of each record, all in one new uint8 array; ``starts`` counts from the record's first byte."""
        self._refuse_short(outside(starts, lengths, self.lengths))
        return self._ranges(starts, lengths)

    def _refuse_short(self, is_short: NDArray[np.bool_]) -> None:
        if is_short.any():
            raise CorruptionError(f"{self.name(int(is_short.argmax()))} is shorter than its parts")

    def copied(self) -> PackedRecords:
        """Return the same records one after another in memory of their own."""
        uniform = self.uniform_nbytes
        if uniform is not None:
            values = self.slab(0, uniform).reshape(-1)
        else:
            values = self.ranges(np.zeros(len(self), np.int64), self.lengths)
        return PackedRecords(values, splits_of(self.lengths)[:-1], self.lengths, uniform, self.name)

    def packed(self) -> PackedRecords:
        """Return the same records in one buffer; copied if they do not lie in one already."""
        return self.copied()


@dataclass(frozen=True, eq=False)
class PackedRecords(Records):
    """Records in one buffer, each in one piece.

    Args:
        buffer: uint8, where they lie.
        starts: where each record begins in the buffer.
        lengths, uniform_nbytes, name: see :class:`Records`.
    """

    buffer: Bytes
    starts: Ints
    lengths: Ints
    uniform_nbytes: int | None = None
    name: Callable[[int], str] = "record {}".format

    @classmethod
    def of(cls, records: Sequence[bytes]) -> PackedRecords:
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        return cls(np.frombuffer(b"".join(records), np.uint8), splits_of(lengths)[:-1], lengths)

    def __getitem__(self, rows: Ints | slice) -> PackedRecords:
        name = renamed(self, rows)
        return PackedRecords(self.buffer, self.starts[rows], self.lengths[rows], self.uniform_nbytes, name)

    def row(self, row: int) -> PackedRecords:
        return self[row : row + 1]

    def packed(self) -> PackedRecords:
        return self

    def in_one_piece(self) -> list[tuple[Ints, PackedRecords]]:
        """Return groups of the records, with the rows of each, such that each record lies in one piece."""
        return [(np.arange(len(self)), self)]

    def memory(self) -> memoryview:
        return memory_of(self.buffer)

    @cached_property
    def stride(self) -> int | None:
        """The bytes of every record if all are equal and follow one another, else None."""
        starts, lengths = self.starts, self.lengths
        if len(starts) == 0:
            return None
        nbytes = lengths.item(0)
        if self.uniform_nbytes is None and not (lengths == nbytes).all():
            return None
        return nbytes if (starts[1:] - starts[:-1] == nbytes).all() else None

    def _slab(self, offset: int, nbytes: int) -> Bytes:
        starts, stride = self.starts + offset, self.stride
        if stride is None or not nbytes:
            return gather_rows(self.buffer, starts, nbytes)
        return np.ndarray((len(starts), nbytes), np.uint8, self.buffer, starts.item(0), (stride, 1)).copy()

    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        return gather_ranges(self.buffer, self.starts + starts, lengths)

    def to_list(self) -> list[bytes]:
        memory, ends = self.memory(), self.starts + self.lengths
        return [bytes(memory[start:end]) for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class JoinedRecords(Records):
    """Records that lie in several places.

    Args:
        lengths, uniform_nbytes: see :class:`Records`.
        groups: for each place, the rows that lie there, and their records.
    """

    lengths: Ints
    uniform_nbytes: int | None
    groups: Sequence[tuple[Ints, Records]]

    @cached_property
    def _places(self) -> dict[int, tuple[Records, int]]:
        return {row: (records, place) for rows, records in self.groups for place, row in enumerate(rows.tolist())}

    def row(self, row: int) -> Records:
        records, place = self._places[row]
        return records.row(place)

    def name(self, row: int) -> str:
        records, place = self._places[row]
        return records.name(place)

    def _slab(self, offset: int, nbytes: int) -> Bytes:
        out = np.empty((len(self), nbytes), np.uint8)
        for rows, records in self.groups:
            out[rows] = records.slab(offset, nbytes)
        return out

    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        for rows, records in self.groups:
            group, counts = records.ranges(starts[rows], lengths[rows]), lengths[rows]
            move_ranges(out, splits[rows], group, splits_of(counts)[:-1], counts)
        return out


def joined(count: int, groups: Sequence[tuple[Ints, Records]]) -> Records:
    """Return records that were read in groups.

    Args:
        count: the number of records.
        groups: for each group, the rows that it has, and its records.
    """
    if len(groups) < 2:
        return groups[0][1] if groups else PackedRecords.of([])
    lengths = np.empty(count, np.int64)
    for rows, records in groups:
        lengths[rows] = records.lengths
    sizes = {records.uniform_nbytes for _, records in groups}
    return JoinedRecords(lengths, sizes.pop() if len(sizes) == 1 else None, groups)


def renamed(records: Records, rows: Ints | slice) -> Callable[[int], str]:
    """Return what errors call the records of these rows."""
    return lambda row: records.name(int(np.arange(len(records))[rows][row]))


def outside(starts: Ints | int, lengths: Ints | int, room: Ints | int) -> NDArray[np.bool_]:
    """Return which ranges do not lie in the ``room`` bytes that there are. Safe for any numbers: no sum overflows."""
    return np.asarray((starts < 0) | (lengths < 0) | (lengths > room) | (starts > room - lengths))
