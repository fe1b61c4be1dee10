"""Records and blocks at places of an order in blocks, computed in chunks that are kept for the batches that follow.

A chunk holds places of lanes whose numbers have the same last bits. So if there are 2**j shards, each computes only the
places of its own lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order.block_grid import Grid
from cachelayer.streams.order.block_windows import BlockWindows, Deal, windows_of
from cachelayer.streams.order.exact import BlockSpans

_CHUNK = 1 << 15
_KEPT = 128

Indices = NDArray[np.int64]
_Name = tuple[int, int, int]


def numbers_in(dealt: Deal, start: int, stop: int) -> Indices:
    """Return the record numbers at places ``start`` to ``stop`` of an epoch."""
    size, end = _chunk_size(dealt.grid, 0), min(stop, dealt.grid.dealt)
    first = start // size
    if start < stop <= min(end, (first + 1) * size):
        return _numbers(dealt, 0, 0, first)[start - first * size : stop - first * size].copy()
    pieces = [np.empty(0, np.int64)]
    for number in range(first, -(-end // size) if start < end else first):
        pieces += [_numbers(dealt, 0, 0, number)[max(0, start - number * size) : end - number * size]]
    if stop > end:
        pieces.append(dealt.rest(np.arange(max(start, end), stop)))
    return np.concatenate(pieces)


def numbers_at(dealt: Deal, places: Indices) -> Indices:
    """Return the record numbers at places of an epoch."""
    out = np.empty(len(places), np.int64)
    for which, chunk, entries in _visited(dealt, places):
        out[which] = dealt.rest(entries) if chunk is None else _numbers(dealt, *chunk)[entries]
    return out


def spans_at(dealt: Deal, places: Indices) -> BlockSpans:
    """Return the blocks of the records at places of an epoch."""
    out = np.empty((3, len(places)), np.int64)
    for which, chunk, entries in _visited(dealt, places):
        if chunk is None:
            numbers = dealt.rest(entries)
            out[:, which] = numbers, numbers + 1, entries
        else:
            # Not by indexing, in which numpy gives the GIL away.
            out[:, which] = _spans(dealt, *chunk).take(entries, axis=1)
    return BlockSpans(*out)


def _visited(dealt: Deal, places: Indices) -> Iterator[tuple[slice | Indices, _Name | None, Indices]]:
    """Yield the chunks that places lie in: which places, the chunk, and their entries in it.

    A chunk is named by the number of last bits that its lanes share, these bits, and its number. None stands for the
    places after those of all lanes, whose entries are the places themselves.
    """
    if len(places) == 0:
        return
    low, high = int(places.min()), int(places.max())
    if high >= dealt.grid.dealt:
        behind = places >= dealt.grid.dealt
        yield np.flatnonzero(behind), None, places[behind]
        inside = np.flatnonzero(~behind)
        for which, chunk, entries in _visited(dealt, places[inside]):
            yield inside[which], chunk, entries
        return
    changes = int(np.bitwise_or.reduce(places ^ low)) | dealt.grid.lanes
    bits = (changes & -changes).bit_length() - 1
    shared = low & ((1 << bits) - 1)
    size = _chunk_size(dealt.grid, bits)
    numbers = places >> bits
    first, last = (low >> bits) // size, (high >> bits) // size
    if first == last:
        yield slice(None), (bits, shared, first), numbers - first * size
        return
    chunks = numbers // size
    for number in np.unique(chunks).tolist():
        which = np.flatnonzero(chunks == number)
        yield which, (bits, shared, number), numbers[which] - number * size


def _chunk_size(grid: Grid, bits: int) -> int:
    """Return the number of places of a chunk, a multiple of the number of its lanes."""
    return max(_CHUNK, grid.lanes >> bits)


@lru_cache(maxsize=_KEPT)
def _numbers(dealt: Deal, bits: int, shared: int, number: int) -> Indices:
    """Return the record numbers of a chunk, up to the end of the lanes."""
    out = np.empty(_shape(dealt.grid, bits, number), np.int64)
    for windows, columns, mask, rows, entries in _tables(dealt, bits, shared, number):
        part = out[:, columns]
        if windows.records is None:
            part[mask] = windows.numbers(np.broadcast_to(rows, mask.shape)[mask], entries[mask])
        else:
            entries += rows * windows.width
            np.copyto(part, windows.records.take(entries, mode="clip"), where=mask)
    out.setflags(write=False)
    return out.reshape(-1)


@lru_cache(maxsize=_KEPT)
def _spans(dealt: Deal, bits: int, shared: int, number: int) -> Indices:
    """Return the begins, the ends and the last places of the blocks of a chunk, up to the end of the lanes."""
    out = np.empty((3, *_shape(dealt.grid, bits, number)), np.int64)
    for windows, columns, mask, rows, entries in _tables(dealt, bits, shared, number):
        if windows.blocks is None:
            blocks = windows.blocks_of(np.broadcast_to(rows, mask.shape)[mask], entries[mask])
        else:
            blocks = windows.blocks.take((entries + rows * windows.width)[mask])
        for part, values in zip(out[:, :, columns], windows.spans, strict=True):
            part[mask] = values[blocks]
    out.setflags(write=False)
    return out.reshape(3, -1)


def _shape(grid: Grid, bits: int, number: int) -> tuple[int, int]:
    """Return the number of places of each lane in a chunk, and the number of its lanes."""
    lanes = grid.lanes >> bits
    steps = _chunk_size(grid, bits) // lanes
    return min(steps, grid.lane_records - number * steps), lanes


def _tables(
    dealt: Deal, bits: int, shared: int, number: int
) -> Iterator[tuple[BlockWindows, slice, NDArray[np.bool_], Indices, Indices]]:
    """Yield the tables that a chunk lies in.

    With each come the columns of the chunk whose lanes it has; for these columns, which places lie in the table; and
    the row of each column, and the entry of each place, in the table.
    """
    grid = dealt.grid
    steps, lanes = _shape(grid, bits, number)
    places = np.arange(steps) + number * (_chunk_size(grid, bits) // lanes)
    groups = max(1, grid.groups >> bits)
    width = grid.window * grid.windows_together
    for first in range(groups):
        columns = slice(first, None, groups)
        chosen = np.arange(shared, grid.lanes, 1 << bits)[columns]
        axis = places[:, None] + grid.phases[chosen]
        left = axis >= 0
        # Phases grow with lanes.
        for table in range(int(axis[0, 0]) // width, int(axis[-1, -1]) // width + 1):
            later = axis >= (table + 1) * width
            group = int(chosen[0]) % grid.groups
            yield windows_of(dealt, group, table), columns, left & ~later, chosen // grid.groups, axis - table * width
            left = later
