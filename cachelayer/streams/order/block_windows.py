"""The permutations of an order in blocks: of blocks among all lanes, and of the records in each window of a lane.

docs/order.md specifies them. What is computed is kept for the windows that are read now: nothing grows with the number
of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.order.block_grid import Grid
from cachelayer.streams.order.permutation import Words, feistel, mixed, permuted, permuted_at, round_keys

_LEAST_BITS = 2
_KEPT_WINDOWS = 160
_MOST_SEARCHED = 1 << 16

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Deal:
    """The permutations of one epoch.

    Args:
        grid: the lanes.
        keys: the keys of seed and epoch.
    """

    grid: Grid
    keys: tuple[int, ...]

    @property
    def offset(self) -> int:
        """The record number at which the strips begin."""
        return self.keys[2] % self.grid.records

    @cached_property
    def origins(self) -> Indices:
        """For each lane, where its axis begins: on the strip of records that is cut into blocks as the lane is."""
        strips = permuted(self.grid.lanes, self.keys[3], 0, 0, self.grid.lanes)
        left = self.grid.records - self.grid.dealt
        origins: Indices = strips * self.grid.lane_records + strips * left // self.grid.lanes - self.grid.phases
        return origins

    def shifts(self, lanes: Indices, columns: Indices) -> Indices:
        """Return, for each block of each lane, what leads from the axis of the lane to the place on the strips.

        Whole blocks are exchanged with whole blocks of all strips; the others come from the lane's own strip.
        """
        grid = self.grid
        found = np.repeat(self.origins[lanes][:, None], len(columns), axis=1)
        numbers = columns[None, :] - grid.first_whole[lanes][:, None]
        rows, places = np.nonzero((numbers >= 0) & (numbers < grid.whole))
        if len(rows):
            begins = self._dealt_blocks(numbers[rows, places] * grid.lanes + lanes[rows])
            found[rows, places] = begins - columns[places] * grid.block
        return found

    def _dealt_blocks(self, index: Indices) -> Indices:
        """Return where whole blocks begin on the strips; each is named by the whole block of a lane that it becomes."""
        grid = self.grid
        other = permuted_at(grid.whole * grid.lanes, self.keys[4], 0, index)
        lane = other & (grid.lanes - 1)
        begins: Indices = self.origins[lane] + (grid.first_whole[lane] + (other >> grid.lane_bits)) * grid.block
        return begins

    def rest(self, places: Indices) -> Indices:
        """Return the record numbers at places after those of all lanes."""
        grid = self.grid
        left = grid.records - grid.dealt
        chosen = permuted_at(left, self.keys[5], 0, places - grid.dealt)
        # They lie behind strips that are evenly spread over the records.
        return self.numbers(-(-(chosen + 1) * grid.lanes // left) * grid.lane_records + chosen)

    def tweaks(self, lanes: Indices, windows: Indices) -> Words:
        """Return a word for each window of a lane, which keys the permutation of its records."""
        words = (windows * self.grid.lanes + lanes).astype(np.uint64)
        return mixed(mixed(words + np.uint64(self.keys[6])) ^ np.uint64(self.keys[7]))

    def numbers(self, places: Indices) -> Indices:
        """Return the record numbers at places on the strips."""
        numbers = places + self.offset
        np.subtract(numbers, self.grid.records, out=numbers, where=numbers >= self.grid.records)
        return numbers


@lru_cache(maxsize=64)
def deal(grid: Grid, seed: int, epoch: int) -> Deal:
    return Deal(grid, round_keys(seed, epoch))


class BlockWindows:
    """One window, or several, of each lane of a group: a table with a row for each lane, cut out of its axis.

    Args:
        dealt: the permutations of the epoch.
        group: the number of the group of lanes.
        number: the number of the table among those of the group.
    """

    def __init__(self, dealt: Deal, group: int, number: int) -> None:
        grid = dealt.grid
        self._deal = dealt
        self._lanes = np.arange(group, grid.lanes, grid.groups)
        windows = np.arange(grid.windows_together) + number * grid.windows_together
        # Where the table begins on the axis, and how much of the axis it has.
        self.first, self.width = number * grid.windows_together * grid.window, grid.windows_together * grid.window
        edges = np.arange(grid.windows_together) * grid.window
        phases = grid.phases[self._lanes][:, None] - self.first
        # Where each window of each lane begins, and how many records it has.
        self._begins = np.maximum(edges, phases)
        self._sizes = np.maximum(0, np.minimum(edges + grid.window, phases + grid.lane_records) - self._begins)
        self._tweaks = dealt.tweaks(self._lanes[:, None], windows[None, :])
        columns = np.arange(grid.windows_together * grid.columns) + self.first // grid.block
        self._shifts = dealt.shifts(self._lanes, columns) + self.first
        self._slots = self._sorted() if grid.is_sorted else None

    def _sorted(self) -> NDArray[np.int32]:
        """Return the slot of the record at each entry of the table; entries before and after a lane are of no use."""
        window = self._deal.grid.window
        words = np.arange(window, dtype=np.uint64)
        hashes = mixed(mixed(words + self._tweaks[:, :, None]) ^ np.uint64(self._deal.keys[1]))
        found = np.argsort(hashes, axis=2)
        if (self._sizes < window).any():
            outside = found >= self._sizes[:, :, None]
            found = np.take_along_axis(found, np.argsort(outside, axis=2, kind="stable"), axis=2)
            late = self._begins % window
            places = np.maximum(0, np.arange(window) - late[:, :, None])
            found = np.take_along_axis(found, places, axis=2)
        found += self._begins[:, :, None]
        return found.reshape(len(self._lanes), self.width).astype(np.int32)

    def slots(self, rows: Indices, entries: Indices) -> Indices:
        """Return the slots of the records at entries of the table: where they lie on the axis unpermuted."""
        if self._slots is not None:
            return self._slots[rows, entries].astype(np.int64)
        sizes, begins = self._sizes[rows, 0], self._begins[rows, 0]
        words = (entries - begins).astype(np.uint64)
        found = np.empty(len(rows), np.int64)
        for bits in np.unique(self._bits).tolist():
            at = np.flatnonzero((self._bits == bits)[rows])
            if len(at):
                tweaks = self._tweaks[rows[at], 0]
                found[at] = _walked(words[at], sizes[at].astype(np.uint64), bits, self._deal.keys, tweaks)
        found += begins
        return found

    @cached_property
    def _bits(self) -> Indices:
        """Number of bits of the largest place in each window."""
        return np.array([max(_LEAST_BITS, (size - 1).bit_length()) for size in self._sizes[:, 0].tolist()])

    @cached_property
    def records(self) -> Indices | None:
        """The record number at each entry of the table; None if they are computed one by one."""
        if self._slots is None:
            return None
        rows, columns = self._shifts.shape
        if columns == 1:
            return self._deal.numbers(self._slots + self._shifts)
        blocks = self._slots // np.int32(self._deal.grid.block)
        blocks += np.arange(rows, dtype=np.int32)[:, None] * np.int32(columns)
        return self._deal.numbers(self._shifts.take(blocks) + self._slots)

    def numbers(self, rows: Indices, entries: Indices) -> Indices:
        """Return the record numbers at entries of the table."""
        slots = self.slots(rows, entries)
        return self._deal.numbers(self._shifts[rows, slots // self._deal.grid.block] + slots)

    @cached_property
    def blocks(self) -> Indices | None:
        """The index in :attr:`spans` at each entry of the table; None if they are computed one by one."""
        if self._slots is None:
            return None
        rows, entries = np.indices(self._slots.shape)
        found: Indices = self.blocks_of(rows.reshape(-1), entries.reshape(-1)).reshape(self._slots.shape)
        return found

    def blocks_of(self, rows: Indices, entries: Indices) -> Indices:
        """Return the index in :attr:`spans` of the block of each record at entries of the table."""
        slots = self.slots(rows, entries)
        found: Indices = rows * self._shifts.shape[1] + slots // self._deal.grid.block
        split = self._split
        if split is not None:
            beyond = (found == split) & (
                self._shifts.reshape(-1)[split] + slots >= self._deal.grid.records - self._deal.offset
            )
            found[beyond] = self._shifts.size
        return found

    @cached_property
    def _edges(self) -> tuple[Indices, Indices]:
        """Where each block begins on the strips, turned by the offset, and where it ends; flat."""
        grid = self._deal.grid
        edges = np.arange(self._shifts.shape[1]) * grid.block
        phases = grid.phases[self._lanes][:, None] - self.first
        begin, end = np.maximum(edges, phases), np.minimum(edges + grid.block, phases + grid.lane_records)
        shifts = self._shifts + self._deal.offset
        return (begin + shifts).reshape(-1), (np.maximum(begin, end) + shifts).reshape(-1)

    @cached_property
    def _split(self) -> int | None:
        """The block whose records do not lie together, since it reaches over the end of the records; None if none."""
        begin, end = self._edges
        found = np.flatnonzero((begin < self._deal.grid.records) & (end > self._deal.grid.records))
        return int(found[0]) if len(found) else None

    @cached_property
    def spans(self) -> tuple[Indices, Indices, Indices]:
        """The begins, ends and last places of the blocks; behind them, of the second part of a block in two parts."""
        records, split = self._deal.grid.records, self._split
        begin, end = (np.append(each, 0) for each in self._edges)
        if split is not None:
            begin[-1], end[-1], end[split] = records, end[split], records
        wanted = begin < end
        turned = np.where(begin >= records, records, 0)
        return begin - turned, end - turned, self._lasts(wanted)

    def _lasts(self, wanted: NDArray[np.bool_]) -> Indices:
        """Return the last place of the epoch of each block that is wanted."""
        grid, blocks = self._deal.grid, self._shifts.shape[1]
        found = np.full(len(wanted), -1)
        rows_of = np.append(np.repeat(np.arange(len(self._lanes)), blocks), (self._split or 0) // blocks)
        first = self._begins[:, 0]
        before = first + self._sizes.sum(axis=1)
        # From the end of each row, more and more entries, until each block was seen.
        reach = self.width if self._slots is not None else 2 * blocks
        while len(rows := np.unique(rows_of[wanted & (found < 0)])):
            counts = np.minimum(before[rows] - first[rows], reach)
            ends = np.cumsum(counts)
            entries = np.arange(ends[-1]) + np.repeat(before[rows] - ends, counts)
            each = np.repeat(rows, counts)
            seen = np.full_like(found, -1)
            # Of several entries of a block, the last assignment counts.
            seen[self.blocks_of(each, entries)] = entries
            found = np.where(found < 0, seen, found)
            before[rows] -= counts
            reach = min(2 * reach, _MOST_SEARCHED)
        lanes = self._lanes[rows_of]
        places: Indices = (found + self.first - grid.phases[lanes]) * grid.lanes + lanes
        return places


@lru_cache(maxsize=_KEPT_WINDOWS)
def windows_of(dealt: Deal, group: int, number: int) -> BlockWindows:
    return BlockWindows(dealt, group, number)


def _walked(words: Words, sizes: Words, bits: int, keys: tuple[int, ...], tweaks: Words) -> Indices:
    """Apply a keyed bijection to words, each at least once, until it is below its size."""
    words = feistel(words, bits, keys, tweaks)
    outside = np.flatnonzero(words >= sizes)
    while len(outside):
        words[outside] = feistel(words[outside], bits, keys, tweaks[outside])
        outside = outside[words[outside] >= sizes[outside]]
    return words.view(np.int64)
