"""Blocks of records that are kept in memory for a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cachelayer.arrayrecord.fetched import FetchedRecords, read_fetched
from cachelayer.arrayrecord.places import whole
from cachelayer.records.memory import Ints, groups_of, splits_of
from cachelayer.records.record_buffers import RecordBuffer, Records


@dataclass(eq=False, slots=True, weakref_slot=True)
class Held:
    """A block of records.

    Args:
        parts: where the records are.
        part_of: for each record the part that it is in.
        row_of: for each record its row in there; of one part, all rows in order.
        damaged: True if reading has found a damaged record, and fetching the block once more has not helped.
        fetch: fetches the block once more; None if that is not known.
    """

    parts: Sequence[FetchedRecords]
    part_of: Ints
    row_of: Ints
    damaged: bool = False
    fetch: Callable[[], Held] | None = None
    _fetched_again: Held | None = None

    @classmethod
    def of(cls, part: FetchedRecords) -> Held:
        return cls([part], np.zeros(len(part), np.int64), np.arange(len(part)))

    @classmethod
    def of_local(cls, records: Records) -> Held:
        """Return a block of records of local files, which were checked as far as they are to be."""
        copied, count = whole(records), len(records)
        part = FetchedRecords(
            copied.buffer, copied.starts, copied.lengths, None, np.zeros(count, np.bool_), lambda row: f"record {row}"
        )
        return cls.of(part)

    def again(self) -> Held:
        """Return the block as it comes when it is fetched once more, at the first call."""
        if self._fetched_again is None and self.fetch is not None:
            self._fetched_again = self.fetch()
        return self._fetched_again or self

    @property
    def nbytes(self) -> int:
        """The bytes of the records in memory."""
        return sum(part.nbytes for part in self.parts)


def fetched(fetch: Callable[[], Held]) -> Held:
    """Fetch a block that can be fetched once more if it came damaged."""
    held = fetch()
    held.fetch = fetch
    return held


def joined(count: int, groups: Sequence[tuple[Ints, Held]]) -> Held:
    """Return the blocks of several groups of records as one.

    Args:
        count: number of records.
        groups: for each group, the rows that it has, and its records.
    """
    if len(groups) == 1:
        return groups[0][1]
    parts: list[FetchedRecords] = []
    part_of, row_of = np.empty(count, np.int64), np.empty(count, np.int64)
    for rows, held in groups:
        part_of[rows], row_of[rows] = held.part_of + len(parts), held.row_of
        parts += held.parts
    return Held(parts, part_of, row_of)


def records_of(blocks: Sequence[Held], owner: Ints, rows: Ints) -> RecordBuffer:
    parts = [part for block in blocks for part in block.parts]
    if any(len(block.parts) != 1 for block in blocks):
        firsts = splits_of(np.array([len(block.parts) for block in blocks], np.int64))
        part_of, row_of = np.empty_like(owner), np.empty_like(rows)
        for number, mine in groups_of(owner, len(blocks)):
            block, within = blocks[number], rows[mine]
            part_of[mine], row_of[mine] = firsts[number] + block.part_of[within], block.row_of[within]
        owner, rows = part_of, row_of
    return read_fetched(parts, owner, rows)
