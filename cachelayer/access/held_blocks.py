"""Blocks of records that were fetched with few requests, and are held in memory until a stream has read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Ints, groups_of, splits_of
from cachelayer.records.record_buffers import PackedRecords, Records, join_records

_LONG = 1 << 14
"""Records of so many bytes are not copied out of their blocks."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class HeldBlock:
    """Records that were fetched together."""

    numbers: Ints
    """The numbers of the records, ascending, each once."""
    records: PackedRecords
    """The records, checked and decompressed, in this order."""
    broken: frozenset[int] = frozenset()
    """The rows whose records did not match their checksums, although they were fetched twice."""

    @property
    def ends(self) -> tuple[int, int]:
        """The first record number and the last."""
        return self.numbers.item(0), self.numbers.item(-1)


def held_records(blocks: Sequence[HeldBlock], numbers: Ints) -> Records | None:
    """Return records out of blocks; None if one of them is in no block.

    Raises:
        CorruptionError: if one of the records is damaged.
    """
    blocks = [block for block in blocks if len(block.numbers)]
    if not blocks:
        return None
    block_of, rows, is_held = _locate(blocks, numbers)
    if not is_held.all():
        return None
    for place, block in enumerate(blocks):
        if block.broken:
            damaged = [row for row in rows[block_of == place].tolist() if row in block.broken]
            if damaged:
                raise CorruptionError(f"{block.records.name(damaged[0])} does not match its checksum")
    return gathered([block.records for block in blocks], block_of, rows)


def _locate(blocks: Sequence[HeldBlock], numbers: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Return the block of each record, its row there, and whether it is in a block at all.

    Args:
        blocks: one block or more, none of them empty.
        numbers: the numbers of the records.
    """
    firsts, lasts = np.array([block.ends for block in blocks], np.int64).T
    sizes = np.array([len(block.numbers) for block in blocks])
    order = firsts.argsort(kind="stable")
    if (lasts[order[:-1]] >= firsts[order[1:]]).any():
        # Blocks of packs, or of a shuffled view, lie in each other: one search through the numbers of all.
        every = np.concatenate([block.numbers for block in blocks])
        order = every.argsort(kind="stable")
        places = order[np.minimum(every[order].searchsorted(numbers), len(every) - 1)]
        splits = splits_of(sizes)
        block_of = splits.searchsorted(places, side="right") - 1
        return block_of, places - splits[block_of], every[places] == numbers
    # Blocks follow one another: a search through their first numbers. The row follows from the number, unless the
    # block has gaps.
    block_of = order[np.maximum(firsts[order].searchsorted(numbers, side="right") - 1, 0)]
    rows = numbers - firsts[block_of]
    is_held = (numbers >= firsts[block_of]) & (numbers <= lasts[block_of])
    if (sizes <= lasts - firsts).any():
        for place, mine in groups_of(block_of, len(blocks)):
            own = blocks[place].numbers
            rows[mine] = np.minimum(own.searchsorted(numbers[mine]), len(own) - 1)
            is_held[mine] &= own[rows[mine]] == numbers[mine]
    return block_of, rows, is_held


def gathered(parts: Sequence[PackedRecords], part_of: Ints, rows: Ints) -> Records:
    """Return records out of several buffers: copies, unless all are long and of one length.

    Args:
        parts: the buffers.
        part_of: which of them each record is in.
        rows: the row of each record in its buffer.
    """
    if len(rows) and int(rows.min()) < 0:
        raise IndexError(f"there is no row {rows.min()}")
    sizes = {part.uniform_nbytes for part in parts}
    uniform = sizes.pop() if len(sizes) == 1 else None
    if uniform is not None and uniform >= _LONG:
        return join_records(
            len(rows), [(mine, parts[part][rows[mine]]) for part, mine in groups_of(part_of, len(parts))]
        )
    # A batch has records of hundreds of buffers: Python finds each in less time than numpy looks at each buffer.
    memories = [part.memory() for part in parts]
    places = list(zip(part_of.tolist(), rows.tolist(), strict=True))
    start_of = [part.starts.item for part in parts]
    starts = [start_of[part](row) for part, row in places]
    if uniform is not None:
        lengths = [uniform] * len(rows)
    else:
        length_of = [part.lengths.item for part in parts]
        lengths = [length_of[part](row) for part, row in places]
    ranges = zip(part_of.tolist(), starts, lengths, strict=True)
    memory = bytearray().join([memories[part][start : start + length] for part, start, length in ranges])
    splits = splits_of(np.array(lengths, np.int64))
    return PackedRecords(np.frombuffer(memory, np.uint8), splits[:-1], splits[1:] - splits[:-1], uniform)
