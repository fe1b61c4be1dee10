"""Blocks of records that were fetched with few requests, and are held in memory until a stream has read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError
from cachelayer.gather import Buffers
from cachelayer.records.spans import Spans, common_size
from cachelayer.support.memory import Ints, buffers_of, groups_of, splits_of

_PLACE_NBYTES = 16


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class HeldBlock:
    """Records that were fetched together."""

    numbers: Ints
    """The numbers of the records, ascending, each once."""
    records: Spans
    """The records, checked and decompressed, in this order, in one buffer."""
    broken: frozenset[int] = frozenset()
    """The rows whose records did not match their checksums, although they were fetched twice."""
    places: Buffers = field(init=False)
    """Holds the start and the bytes of each record: int64 of shape ``[records, 2]``."""

    def __post_init__(self) -> None:
        places = np.column_stack([self.records.starts, self.records.lengths])
        object.__setattr__(self, "places", buffers_of([places.reshape(-1).view(np.uint8)]))

    @property
    def ends(self) -> tuple[int, int]:
        """The first record number and the last."""
        return self.numbers.item(0), self.numbers.item(-1)


def held_records(blocks: Sequence[HeldBlock], numbers: Ints) -> Spans | None:
    """Return records out of blocks; None if one of them is in no block."""
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
    return _records_in(blocks, block_of, rows)


def _locate(blocks: Sequence[HeldBlock], numbers: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Return the block of each record, its row there, and whether it is in a block at all."""
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


def _records_in(blocks: Sequence[HeldBlock], block_of: Ints, rows: Ints) -> Spans:
    """Return records of blocks, given the block of each, and its row there."""
    name_of_block = [block.records.name for block in blocks]

    def name(row: int) -> str:
        return name_of_block[int(block_of[row])](int(rows[row]))

    # A batch has records of hundreds of blocks: the places of its records are gathered like the records themselves.
    places = Spans(_every([block.places for block in blocks]), rows * _PLACE_NBYTES, _PLACE_NBYTES, block_of, name)
    starts, lengths = places.take(0, _PLACE_NBYTES).reshape(-1).view(np.int64).reshape(-1, 2).T
    size = common_size([block.records for block in blocks])
    sizes = np.ascontiguousarray(lengths) if size is None else size
    buffers = _every([block.records.buffers for block in blocks])
    return Spans(buffers, np.ascontiguousarray(starts), sizes, block_of, name)


def _every(buffers: Sequence[Buffers]) -> Buffers:
    return Buffers(np.concatenate([each.table for each in buffers]), [each.owners for each in buffers])
