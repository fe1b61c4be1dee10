"""Records in mapped files, read straight from memory: only those of their bytes that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelayer.arrayrecord.blocks import HEADER, PAYLOAD, in_blocks, outside, pieces
from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.records.memory import (
    Bytes,
    Ints,
    gather_ranges,
    gather_rows,
    groups_of,
    move_ranges,
    splits_of,
)
from cachelayer.records.record_buffers import RecordBuffer, Records

# From this size on, rows are copied piece by piece, which takes no longer than to gather them.
_LONG = 1 << 14


def check_inside(logical: Ints, lengths: Ints, room: Ints | int, name: Callable[[int], str]) -> None:
    """Raise if a range does not lie in its file.

    Args:
        logical, lengths, room: see :func:`outside`.
        name: returns the name of a range in error messages, given its number.
    """
    wrong = outside(logical, lengths, room)
    if wrong.any():
        raise CorruptionError(f"{name(int(wrong.argmax()))} reaches past the end of the file")


@dataclass(frozen=True, eq=False)
class MappedRecords:
    """Uncompressed records in mapped files: :class:`~cachelayer.records.record_buffers.Records`.

    Args:
        groups: rows, and the memory where the files of these records are mapped, which it keeps mapped. All rows, or
            the rows of each version.
        base: where the file of each record begins in its memory; one number if all are in one file.
        logical: the logical offset of each record in its file.
        lengths: the bytes of each. All must lie in their files.
        name: returns what errors call a record, by its row.
        uniform_nbytes: the bytes of every record if all are equal.
    """

    groups: Sequence[tuple[Any, Bytes]]
    base: Ints | int
    logical: Ints
    lengths: Ints
    name: Callable[[int], str]
    uniform_nbytes: int | None = None

    def __len__(self) -> int:
        return len(self.logical)

    @cached_property
    def _group_of(self) -> Ints:
        group_of = np.empty(len(self), np.int64)
        for number, (rows, _) in enumerate(self.groups):
            group_of[rows] = number
        return group_of

    def _memories(self, rows: Ints) -> list[Bytes]:
        if len(self.groups) == 1:
            return [self.groups[0][1]] * len(rows)
        return [self.groups[number][1] for number in self._group_of[rows].tolist()]

    def slab(self, offset: int, nbytes: int) -> Bytes:
        self._check_parts(offset, nbytes)
        logical = self.logical + offset
        if nbytes >= _LONG:
            return self._copy_pieces(logical, nbytes)
        # Gather the rows as if no block header cut them. Then repair the few that a header does cut.
        blocks, places = in_blocks(logical)
        starts = logical + HEADER * (blocks + 1) + self.base
        if len(self.groups) == 1:
            out = gather_rows(self.groups[0][1], starts, nbytes)
        else:
            out = np.empty((len(self), nbytes), np.uint8)
            for rows, memory in self.groups:
                out[rows] = gather_rows(memory, starts[rows], nbytes)
        (cut,) = (places > PAYLOAD - nbytes).nonzero()
        after = PAYLOAD - places[cut]
        bounds = cut, after, starts[cut] + after + HEADER
        for memory, row, done, start in zip(self._memories(cut), *(bound.tolist() for bound in bounds), strict=True):
            out[row, done:] = memory[start : start + nbytes - done]
        return out

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        self._check_parts(offset, nbytes)
        bounds = [slice(row, row + rows) for row in range(0, len(self), rows)]
        if len(self.groups) == 1:
            return [self._rows(some).slab(offset, nbytes) for some in bounds]
        slab = self.slab(offset, nbytes)
        return [slab[some].copy() for some in bounds]

    def _rows(self, rows: slice) -> MappedRecords:
        """Return some of the records, which are in one group."""
        groups = [(slice(None), self.groups[0][1])]
        base = self.base if isinstance(self.base, int) else self.base[rows]
        return MappedRecords(groups, base, self.logical[rows], self.lengths[rows], self.name, self.uniform_nbytes)

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        wrong = outside(starts, lengths, self.lengths)
        if wrong.any():
            raise CorruptionError(f"{self.name(int(wrong.argmax()))} is shorter than its parts")
        owner, _, begins, counts = self._pieces(self.logical + starts, lengths)
        if len(self.groups) == 1:
            return gather_ranges(self.groups[0][1], begins, counts)
        splits = splits_of(counts)
        out = np.empty(int(splits[-1]), np.uint8)
        for number, some in groups_of(self._group_of[owner], len(self.groups)):
            move_ranges(out, splits[some], self.groups[number][1], begins[some], counts[some])
        return out

    def whole(self) -> RecordBuffer:
        if self.uniform_nbytes is not None:
            memory = self.slab(0, self.uniform_nbytes).reshape(-1)
        else:
            memory = self.ranges(np.zeros(len(self), np.int64), self.lengths)
        return RecordBuffer(memory, splits_of(self.lengths)[:-1], self.lengths, self.uniform_nbytes)

    def _check_parts(self, offset: int, nbytes: int) -> None:
        if self.uniform_nbytes is not None and 0 <= offset <= offset + nbytes <= self.uniform_nbytes:
            return
        wrong = self.lengths < offset + nbytes
        if offset < 0 or nbytes < 0 or wrong.any():
            raise CorruptionError(f"{self.name(int(wrong.argmax()))} is shorter than its parts")

    def _pieces(self, logical: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return what :func:`pieces` does, with places in the memory."""
        owner, inside, position, counts = pieces(logical, lengths)
        return owner, inside, position + (self.base if isinstance(self.base, int) else self.base[owner]), counts

    def _copy_pieces(self, logical: Ints, nbytes: int) -> Bytes:
        """Return ranges of one length as rows, each piece copied in a call that releases the GIL."""
        out = np.empty((len(self), nbytes), np.uint8)
        owner, inside, begins, counts = self._pieces(logical, np.full(len(self), nbytes))
        bounds = (bound.tolist() for bound in (owner, inside, inside + counts, begins, begins + counts))
        for memory, row, to, to_end, start, end in zip(self._memories(owner), *bounds, strict=True):
            out[row, to:to_end] = memory[start:end]
        return out


@dataclass(frozen=True, eq=False)
class GroupedRecords:
    """Records that were read in groups, for example some from memory and others over the network.

    Args:
        rows: the number of records.
        groups: for each group, the rows that it has, and their records.
    """

    rows: int
    groups: Sequence[tuple[Ints, Records]]

    def __len__(self) -> int:
        return self.rows

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

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        slab = self.slab(offset, nbytes)
        return [slab[row : row + rows].copy() for row in range(0, len(slab), rows)]

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        for rows, records in self.groups:
            group = records.ranges(starts[rows], lengths[rows])
            move_ranges(out, splits[rows], group, splits_of(lengths[rows])[:-1], lengths[rows])
        return out


def group_records(rows: int, groups: Sequence[tuple[Ints, Records]]) -> Records:
    """Return records that were read in groups; see :class:`GroupedRecords`. Mapped ones become one group."""
    if len(groups) == 1:
        return groups[0][1]
    mapped = [(own, records) for own, records in groups if isinstance(records, MappedRecords)]
    if not mapped or len(mapped) < len(groups):
        return GroupedRecords(rows, groups)
    memories = [(own[some], memory) for own, records in mapped for some, memory in records.groups]
    sizes = {records.uniform_nbytes for _, records in mapped}
    size = sizes.pop() if len(sizes) == 1 else None
    base, logical, lengths = (np.empty(rows, np.int64) for _ in range(3))
    for own, records in mapped:
        base[own], logical[own], lengths[own] = records.base, records.logical, records.lengths

    def name(row: int) -> str:
        return next(records.name(own.tolist().index(row)) for own, records in mapped if row in own)

    return MappedRecords(memories, base, logical, lengths, name, size)


def whole(records: Records) -> RecordBuffer:
    """Return records in memory of their own."""
    if isinstance(records, RecordBuffer):
        return records
    if isinstance(records, MappedRecords):
        return records.whole()
    values = records.ranges(np.zeros(len(records), np.int64), records.lengths)
    return RecordBuffer(values, splits_of(records.lengths)[:-1], records.lengths, records.uniform_nbytes)
