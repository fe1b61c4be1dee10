"""Stored records in memory: where their bytes are, and how parts of them are copied out.

Records may lie in many buffers, such as mapped shards, fetched blocks and decompressed chunks, and block headers may
cut them. Whoever reads them does not see that::

    buffer 0   aaaaB<header>BB      buffer 1   ccccc
    spans      buffer_of 0 0 1, starts 0 4 0, lengths 4 3 5

    take(1, 2)                     aa BB cc    the same range of all records: uint8 of shape [3, 2]
    ranges([0, 1, 4], [2, 2, 1])   aaBBc       a range of its own of each record: uint8 of shape [5]
    move(..., out, [9, 0, 5])      BB...c...aa the same ranges, each at a place of its own
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError
from cachelayer.gather import Buffers, copy_ranges, copy_rows
from cachelayer.support.leases import empty
from cachelayer.support.memory import Bytes, Ints, buffers_of, memory_of, splits_of

NameOfRow = Callable[[int], str]
"""Returns what errors call a record, given its row."""


class Records(ABC):
    """Stored records. All that is read of them is copied."""

    sizes: Ints | int
    """The bytes of each record, or of every record."""
    name: NameOfRow

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Ints:
        """The bytes of each record."""
        return np.full(len(self), self.sizes, np.int64) if isinstance(self.sizes, int) else self.sizes

    @abstractmethod
    def __getitem__(self, rows: Ints | slice) -> Records:
        """Return some of the records, which may repeat."""

    @abstractmethod
    def _take(self, offset: int, nbytes: int, out: Bytes) -> None:
        """Copy a range that lies within every record into uint8 of shape ``[rows, nbytes]``."""

    @abstractmethod
    def _move(self, starts: Ints, lengths: Ints, out: Bytes, places: Ints) -> None:
        """Copy ranges that lie within their records."""

    def take(self, offset: int, nbytes: int) -> Bytes:
        """Return the same range of all records, uint8 of shape ``[rows, nbytes]``; raise if a record is shorter."""
        if not isinstance(self.sizes, int) or not 0 <= offset <= offset + nbytes <= self.sizes:
            self._refuse_short(lie_outside(offset, nbytes, self.lengths))
        out = empty((len(self), nbytes))
        self._take(offset, nbytes, out)
        return out

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        """Return a range of its own of each record, one after another; raise if a record is shorter."""
        self._refuse_short(lie_outside(starts, lengths, self.lengths))
        splits = splits_of(lengths)
        out = empty((int(splits[-1]),))
        self._move(starts, lengths, out, splits[:-1])
        return out

    def move(self, starts: Ints, lengths: Ints, out: Bytes, places: Ints) -> None:
        """Copy a range of its own of each record, as in :meth:`ranges`, to a place of its own in ``out``, of uint8."""
        self._refuse_short(lie_outside(starts, lengths, self.lengths))
        self._move(starts, lengths, out, places)

    def _refuse_short(self, is_short: NDArray[np.bool_]) -> None:
        if is_short.any():
            raise CorruptionError(f"{self.name(int(is_short.argmax()))} is shorter than its parts")

    def record(self, row: int) -> bytearray:
        """Return one record, which the caller may change."""
        return bytearray(self[row : row + 1].packed_copy().memory())

    def packed(self) -> Spans:
        """Return the same records in one buffer, each in one piece: without a copy if they lie so already."""
        return self.packed_copy()

    def packed_copy(self) -> Spans:
        """Return the same records one after another in a new buffer."""
        sizes = self.sizes
        if isinstance(sizes, int):
            starts = np.arange(len(self), dtype=np.int64) * sizes
            return Spans.in_buffer(self.take(0, sizes).reshape(-1), starts, sizes, self.name)
        values = self.ranges(np.zeros(len(self), np.int64), sizes)
        return Spans.in_buffer(values, splits_of(sizes)[:-1], sizes, self.name)


@dataclass(frozen=True, eq=False)
class Spans(Records):
    """Records in memory, each of which has a place in a buffer."""

    buffers: Buffers
    starts: Ints
    """Where each record begins in its buffer; see :mod:`cachelayer.gather`."""
    sizes: Ints | int
    buffer_of: Ints | None = None
    """The buffer of each record; None if all lie in the first."""
    name: NameOfRow = "record {}".format

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.ascontiguousarray(self.starts))
        if self.buffer_of is not None:
            object.__setattr__(self, "buffer_of", np.ascontiguousarray(self.buffer_of))

    @classmethod
    def in_buffer(cls, buffer: Bytes, starts: Ints, sizes: Ints | int, name: NameOfRow = "record {}".format) -> Self:
        """Return records in one buffer, each in one piece."""
        return cls(buffers_of([buffer]), starts, sizes, name=name)

    @classmethod
    def of_bytes(cls, records: Sequence[bytes]) -> Self:
        """Return records with these bytes."""
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        return cls.in_buffer(np.frombuffer(b"".join(records), np.uint8), splits_of(lengths)[:-1], lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Ints | slice) -> Spans:
        sizes = self.sizes if isinstance(self.sizes, int) else self.sizes[rows]
        buffer = None if self.buffer_of is None else self.buffer_of[rows]
        return Spans(self.buffers, self.starts[rows], sizes, buffer, names_of_rows(self, rows))

    def _take(self, offset: int, nbytes: int, out: Bytes) -> None:
        outside = copy_rows(self.buffers.table, self.buffer_of, self.starts, offset, nbytes, out)
        if outside >= 0:
            raise self._outside(outside)

    def _move(self, starts: Ints, lengths: Ints, out: Bytes, places: Ints) -> None:
        begins = self.starts + starts
        nbytes = np.ascontiguousarray(lengths)
        outside = copy_ranges(self.buffers.table, self.buffer_of, begins, nbytes, out, places)
        if outside >= 0:
            raise self._outside(outside)

    def _outside(self, row: int) -> CorruptionError:
        return CorruptionError(f"{self.name(row)} does not lie in its file: the file or its index is damaged")

    def packed(self) -> Spans:
        table = self.buffers.table
        is_packed = len(table) == 1 and not table.item(0, 2) and isinstance(self.buffers.owners[0], np.ndarray)
        return self if is_packed else self.packed_copy()

    @property
    def buffer(self) -> Bytes:
        """The buffer of packed records."""
        buffer: Bytes
        (buffer,) = self.buffers.owners
        return buffer

    def memory(self) -> memoryview:
        """Return the buffer of packed records."""
        return memory_of(self.buffer)

    def to_list(self) -> list[bytes]:
        """Return the bytes of each of packed records."""
        memory = self.memory()
        ends = self.starts + self.lengths
        return [bytes(memory[start:end]) for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True)]


def joined_spans(count: int, groups: Sequence[tuple[Ints, Spans]]) -> Spans:
    """Return records of several groups, each with the rows of its records, in the order of all rows."""
    if len(groups) == 1:
        return groups[0][1]
    starts = np.empty(count, np.int64)
    buffer = np.zeros(count, np.int64)
    first_of: dict[int, int] = {}
    every: list[Buffers] = []
    buffers = 0
    for rows, spans in groups:
        # Groups may share buffers, such as two parts of a mixture that are views of one version.
        first = first_of.setdefault(id(spans.buffers), buffers)
        if first == buffers:
            every.append(spans.buffers)
            buffers += len(spans.buffers.table)
        starts[rows] = spans.starts
        buffer[rows] = first if spans.buffer_of is None else spans.buffer_of + first
    sizes = common_size([spans for _, spans in groups])
    if sizes is None:
        sizes = np.empty(count, np.int64)
        for rows, spans in groups:
            sizes[rows] = spans.sizes
    table = np.concatenate([np.empty((0, 4), np.int64), *(each.table for each in every)])
    owners = tuple(each.owners for each in every)
    return Spans(Buffers(table, owners), starts, sizes, buffer, names_in_groups(groups))


def common_size(every: Sequence[Records]) -> Ints | int | None:
    """Return the size that all records of several are known to have; None if there is none."""
    sizes = {records.sizes if isinstance(records.sizes, int) else None for records in every}
    return sizes.pop() if len(sizes) == 1 else None


def names_in_groups(groups: Sequence[tuple[Ints, Records]]) -> NameOfRow:
    """Return the function that names the records of several groups."""

    def name(row: int) -> str:
        for rows, records in groups:
            places = np.flatnonzero(rows == row)
            if len(places):
                return records.name(int(places[0]))
        raise IndexError(row)

    return name


def names_of_rows(records: Records, rows: Ints | slice) -> NameOfRow:
    """Return the function that names the records of these rows in errors."""
    return lambda row: records.name(int(np.arange(len(records))[rows][row]))


def lie_outside(starts: Ints | int, lengths: Ints | int, nbytes: Ints | int) -> NDArray[np.bool_]:
    """Return whether each range reaches outside of the ``nbytes`` bytes that there are.

    Damaged files hold any numbers, so this compares without a sum that could overflow. A range of more than ``nbytes``
    bytes would have to begin before 0.
    """
    return np.asarray(((starts | lengths) < 0) | (starts > nbytes - lengths))
