"""Blocks of records that are kept for a stream: fetched ones in memory, those of local files where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from cachelayer.arrayrecord.fetched import FetchedRecords, read_fetched
from cachelayer.arrayrecord.places import GroupedRecords
from cachelayer.records.memory import Ints, distinct
from cachelayer.records.record_buffers import Records


@dataclass(frozen=True, eq=False)
class InPlace:
    """Records that are read from local files when they are needed.

    Args:
        read: reads the records of some numbers.
        numbers: the number of each record.
    """

    read: Callable[[Ints], Records]
    numbers: Ints


@dataclass(eq=False, slots=True, weakref_slot=True)
class Held:
    """A block of records.

    Args:
        parts: where the records are.
        part_of: for each record the part that it is in.
        row_of: for each record its row in there.
        damaged: True if reading has found a damaged record, and fetching the block once more has not helped.
        fetch: fetches the block once more; None if that is not known.
    """

    parts: Sequence[FetchedRecords | InPlace]
    part_of: Ints
    row_of: Ints
    damaged: bool = False
    fetch: Callable[[], Held] | None = None
    _fetched_again: Held | None = None
    whole: FetchedRecords | None = field(init=False)
    """The records if all of them were fetched at once, else None."""

    def __post_init__(self) -> None:
        first = self.parts[0] if len(self.parts) == 1 else None
        self.whole = first if isinstance(first, FetchedRecords) else None

    @classmethod
    def of(cls, part: FetchedRecords | InPlace, count: int) -> Held:
        """Return a block of one part."""
        return cls([part], np.zeros(count, np.int64), np.arange(count))

    def again(self) -> Held:
        """Return the block as it comes when it is fetched once more, at the first call."""
        if self._fetched_again is None and self.fetch is not None:
            self._fetched_again = self.fetch()
        return self._fetched_again or self

    @property
    def nbytes(self) -> int:
        """The bytes of the records in memory."""
        return sum(part.nbytes for part in self.parts if isinstance(part, FetchedRecords))


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
    parts: list[FetchedRecords | InPlace] = []
    part_of, row_of = np.empty(count, np.int64), np.empty(count, np.int64)
    for rows, held in groups:
        part_of[rows], row_of[rows] = held.part_of + len(parts), held.row_of
        parts += held.parts
    return Held(parts, part_of, row_of)


def records_of(blocks: Sequence[Held], owner: Ints, rows: Ints) -> Records:
    """Return some records of blocks.

    Args:
        blocks: the blocks.
        owner: for each record the block that it is in.
        rows: for each record its row in there.

    Raises:
        CorruptionError: if a record is not what was written.
    """
    wholes = [block.whole for block in blocks]
    return (
        _by_parts(blocks, owner, rows)
        if None in wholes
        else read_fetched(cast(list[FetchedRecords], wholes), owner, rows)
    )


def _by_parts(blocks: Sequence[Held], owner: Ints, rows: Ints) -> Records:
    """Return the records of blocks of which some have several parts, or lie in local files."""
    in_memory: list[FetchedRecords] = []
    found: list[tuple[Ints, Ints, Ints]] = []
    in_place: dict[Callable[[Ints], Records], list[tuple[Ints, Ints]]] = {}
    for number in distinct(owner).tolist():
        mine = np.flatnonzero(owner == number)
        block = blocks[number]
        part_of, row_of = block.part_of[rows[mine]], block.row_of[rows[mine]]
        for place in distinct(part_of).tolist():
            part, chosen = block.parts[place], part_of == place
            if isinstance(part, FetchedRecords):
                found.append((mine[chosen], np.full(int(chosen.sum()), len(in_memory)), row_of[chosen]))
                in_memory.append(part)
            else:
                in_place.setdefault(part.read, []).append((mine[chosen], part.numbers[row_of[chosen]]))
    groups: list[tuple[Ints, Records]] = []
    for read, pieces in in_place.items():
        where, numbers = (np.concatenate(column) for column in zip(*pieces, strict=True))
        groups.append((where, read(numbers)))
    if found:
        where, owners, places = (np.concatenate(column) for column in zip(*found, strict=True))
        groups.append((where, read_fetched(in_memory, owners, places)))
    return GroupedRecords(len(rows), groups)
