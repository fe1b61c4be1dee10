"""Files in records, such as videos, whose bytes are read when they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cachelayer.records.spans import NameOfRow, Records, Spans, joined_spans, names_in_groups, names_of_rows
from cachelayer.support.memory import Bytes, Ints, memory_of, splits_of

Fetch = Callable[[Ints, Ints, Ints], Spans]
"""Fetches a range of each of some records: given their rows, and the begins and the bytes of the ranges."""


@dataclass(frozen=True, eq=False)
class PartialRecords(Records):
    """Records whose begin and end are in memory. The bytes between them are fetched when they are used."""

    sizes: Ints
    name: NameOfRow
    heads: Spans
    """The begin of each record."""
    tails: Spans
    """The end of each record."""
    fetch: Fetch
    """Fetches ranges of the records, which are not checked."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, rows: Ints | slice) -> PartialRecords:
        numbers = np.arange(len(self))[rows]

        def fetch(some: Ints, starts: Ints, nbytes: Ints) -> Spans:
            return self.fetch(numbers[some], starts, nbytes)

        name = names_of_rows(self, rows)
        return PartialRecords(self.sizes[rows], name, self.heads[rows], self.tails[rows], fetch)

    def _take(self, offset: int, nbytes: int, out: Bytes) -> None:
        rows = len(self)
        places = np.arange(rows, dtype=np.int64) * nbytes
        self._move(np.full(rows, offset), np.full(rows, nbytes), out.reshape(-1), places)

    def _move(self, starts: Ints, lengths: Ints, out: Bytes, places: Ints) -> None:
        from_end = starts - (self.lengths - self.tails.lengths)
        is_in_head = starts + lengths <= self.heads.lengths
        is_in_tail = ~is_in_head & (from_end >= 0)
        head = np.flatnonzero(is_in_head)
        tail = np.flatnonzero(is_in_tail)
        rest = np.flatnonzero(~is_in_head & ~is_in_tail)
        self.heads[head].move(starts[head], lengths[head], out, places[head])
        self.tails[tail].move(from_end[tail], lengths[tail], out, places[tail])
        if len(rest):
            fetched = self.fetch(rest, starts[rest], lengths[rest])
            fetched.move(np.zeros(len(rest), np.int64), lengths[rest], out, places[rest])


def join_records(count: int, groups: Sequence[tuple[Ints, Records]]) -> Records:
    """Return records that were read in groups, each with the rows of its records, in the order of all rows."""
    if len(groups) == 1:
        return groups[0][1]
    spans = [(rows, records) for rows, records in groups if isinstance(records, Spans)]
    return joined_spans(count, spans) if len(spans) == len(groups) else _joined_partial_records(count, groups)


def _joined_partial_records(count: int, groups: Sequence[tuple[Ints, Records]]) -> PartialRecords:
    lengths = np.empty(count, np.int64)
    group_of = np.empty(count, np.int64)
    index_of = np.empty(count, np.int64)
    heads = []
    tails = []
    for group, (rows, records) in enumerate(groups):
        lengths[rows] = records.lengths
        group_of[rows] = group
        index_of[rows] = np.arange(len(rows))
        if isinstance(records, PartialRecords):
            heads.append((rows, records.heads))
            tails.append((rows, records.tails))
        else:
            packed = records.packed()
            heads.append((rows, packed))
            tails.append((rows, Spans.in_buffer(packed.buffer, packed.starts, np.zeros(len(rows), np.int64))))

    def fetch(some: Ints, starts: Ints, nbytes: Ints) -> Spans:
        fetched = []
        for group, (_, records) in enumerate(groups):
            mine = np.flatnonzero(group_of[some] == group)
            if len(mine) and isinstance(records, PartialRecords):
                fetched.append((mine, records.fetch(index_of[some[mine]], starts[mine], nbytes[mine])))
        return joined_spans(len(some), fetched)

    name = names_in_groups(groups)
    return PartialRecords(lengths, name, joined_spans(count, heads), joined_spans(count, tails), fetch)


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
        return cls(Spans.of_bytes([file]), 0, 0, len(file))

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
