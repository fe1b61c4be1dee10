"""Records and blocks at places of an order in blocks, computed in chunks that are kept for the batches that follow.

A chunk holds the places of some lanes: of those whose numbers have the same last bits. So a shard of 2**j computes only
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.block_windows import Deal, Windows, windows_of
from cachelayer.streams.order import BlockSpans

_CHUNK_BITS = 13
_KEPT = 256

Indices = NDArray[np.int64]


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
            out[:, which] = _spans(dealt, *chunk)[:, entries]
    return BlockSpans(*out)


def _visited(dealt: Deal, places: Indices) -> Iterator[tuple[slice | Indices, tuple[int, int, int] | None, Indices]]:
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
    numbers = places >> bits
    first, last = low >> bits + _CHUNK_BITS, high >> bits + _CHUNK_BITS
    for number in range(first, last + 1):
        which = slice(None) if first == last else np.flatnonzero(numbers >> _CHUNK_BITS == number)
        yield which, (bits, shared, number), numbers[which] - (number << _CHUNK_BITS)


@lru_cache(maxsize=_KEPT)
def _numbers(dealt: Deal, bits: int, shared: int, number: int) -> Indices:
    """Return the record numbers of a chunk."""
    out = np.empty(1 << _CHUNK_BITS, np.int64)
    for windows, which, rows, entries in _tables(dealt, bits, shared, number):
        table = windows.records
        out[which] = (
            windows.numbers(rows, entries) if table is None else table.reshape(-1)[rows * windows.width + entries]
        )
    out.setflags(write=False)
    return out


@lru_cache(maxsize=_KEPT)
def _spans(dealt: Deal, bits: int, shared: int, number: int) -> Indices:
    """Return the begins, the ends and the last places of the blocks of a chunk."""
    out = np.empty((3, 1 << _CHUNK_BITS), np.int64)
    for windows, which, rows, entries in _tables(dealt, bits, shared, number):
        table = windows.blocks
        blocks = (
            windows.blocks_of(rows, entries) if table is None else table.reshape(-1)[rows * windows.width + entries]
        )
        for row, values in zip(out, windows.spans, strict=True):
            row[which] = values[blocks]
    out.setflags(write=False)
    return out


def _tables(dealt: Deal, bits: int, shared: int, number: int) -> Iterator[tuple[Windows, Indices, Indices, Indices]]:
    """Yield the tables of a chunk: which of its places, and their rows and entries in the table."""
    grid = dealt.grid
    places = np.arange(number << _CHUNK_BITS, number + 1 << _CHUNK_BITS) << bits | shared
    which = np.flatnonzero(places < grid.dealt)
    lanes = places[which] & (grid.lanes - 1)
    axis = (places[which] >> grid.lane_bits) + grid.phases[lanes]
    tables = axis // (grid.window * grid.windows_together)
    keys = tables * grid.groups + (lanes & (grid.groups - 1))
    order = np.argsort(keys)
    which, rows, axis, keys = which[order], lanes[order] // grid.groups, axis[order], keys[order]
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    for start, stop in pairwise(cuts):
        if start < stop:
            table, group = divmod(int(keys[start]), grid.groups)
            windows = windows_of(dealt, group, table)
            yield windows, which[start:stop], rows[start:stop], axis[start:stop] - windows.first
