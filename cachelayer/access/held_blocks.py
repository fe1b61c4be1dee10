"""Records that were fetched together, and are held for the streams that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Ints, groups_of, splits_of
from cachelayer.records.record_buffers import PackedRecords, Records, join_records

_LONG = 1 << 14
"""From this size on, records stay where they are."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class HeldBlock:
    """Records that were fetched together, to be read by their numbers.

    Args:
        numbers: their numbers, ascending, each once.
        records: the records, checked and decompressed.
        broken: the rows of those that did not match their checksums, although they were fetched twice.
    """

    numbers: Ints
    records: PackedRecords
    broken: frozenset[int] = frozenset()

    @property
    def ends(self) -> tuple[int, int]:
        """The first number and the last."""
        return self.numbers.item(0), self.numbers.item(-1)


def held_records(blocks: Sequence[HeldBlock], numbers: Ints) -> Records | None:
    """Return copies of records out of blocks; None if one of them is in no block.

    Args:
        blocks: the blocks; those that lie in each other, such as blocks of packs, take longer to look through.
        numbers: the numbers of the records.

    Raises:
        CorruptionError: if one of them is damaged.
    """
    blocks = [block for block in blocks if len(block.numbers)]
    if not blocks:
        return None
    firsts, lasts = np.array([block.ends for block in blocks], np.int64).T
    order = firsts.argsort(kind="stable")
    if (lasts[order[:-1]] < firsts[order[1:]]).all():
        owner = order[np.maximum(firsts[order].searchsorted(numbers, side="right") - 1, 0)]
        rows, found = numbers - firsts[owner], (numbers >= firsts[owner]) & (numbers <= lasts[owner])
        sizes = np.array([len(block.numbers) for block in blocks])
        if (sizes <= lasts - firsts).any():
            for place, mine in groups_of(owner, len(blocks)):
                own = blocks[place].numbers
                rows[mine] = np.minimum(own.searchsorted(numbers[mine]), len(own) - 1)
                found[mine] &= own[rows[mine]] == numbers[mine]
    else:
        every = np.concatenate([block.numbers for block in blocks])
        order = every.argsort(kind="stable")
        places = order[np.minimum(every[order].searchsorted(numbers), len(every) - 1)]
        splits = splits_of(np.array([len(block.numbers) for block in blocks]))
        owner = splits.searchsorted(places, side="right") - 1
        rows = places - splits[owner]
        found = every[places] == numbers
    if not found.all():
        return None
    for place, block in enumerate(blocks):
        if block.broken:
            damaged = [row for row in rows[owner == place].tolist() if row in block.broken]
            if damaged:
                raise CorruptionError(f"{block.records.name(damaged[0])} does not match its checksum")
    return gathered([block.records for block in blocks], owner, rows)


def gathered(parts: Sequence[PackedRecords], owner: Ints, rows: Ints) -> Records:
    """Return records out of many buffers: copies, unless all are long and of one length.

    Args:
        parts: where they are.
        owner: for each record, which of ``parts`` it is in.
        rows: the row of each in there.
    """
    if len(rows) and int(rows.min()) < 0:
        raise IndexError(f"there is no row {rows.min()}")
    sizes = {part.uniform_nbytes for part in parts}
    uniform = sizes.pop() if len(sizes) == 1 else None
    if uniform is not None and uniform >= _LONG:
        return join_records(len(rows), [(mine, parts[part][rows[mine]]) for part, mine in groups_of(owner, len(parts))])
    # A batch has records of hundreds of buffers: Python finds each in less time than numpy looks at each buffer.
    memories, places = [part.memory() for part in parts], list(zip(owner.tolist(), rows.tolist(), strict=True))
    start_of = [part.starts.item for part in parts]
    starts = [start_of[part](row) for part, row in places]
    if uniform is not None:
        lengths = [uniform] * len(rows)
    else:
        length_of = [part.lengths.item for part in parts]
        lengths = [length_of[part](row) for part, row in places]
    found = zip(owner.tolist(), starts, lengths, strict=True)
    memory = bytearray().join([memories[part][start : start + length] for part, start, length in found])
    splits = splits_of(np.array(lengths, np.int64))
    return PackedRecords(np.frombuffer(memory, np.uint8), splits[:-1], splits[1:] - splits[:-1], uniform)
