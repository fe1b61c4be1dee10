"""An order in blocks: records that lie together come together, and each shard reads only its own blocks.

There are L lanes. Place p of an epoch belongs to lane p mod L, so any L places in a row have one record of each. All
records but a few lie in K * L blocks of B: block k of lane l is entry k * L + l of a permutation. The records of a lane
are shuffled over windows of W blocks; the first window of lane l has l * W // L blocks less, so that the windows of the
lanes do not all end together. With L = 4, K = 5 and W = 2::

    lane 0   |0 1|2 3|4|
    lane 1   |0 1|2 3|4|
    lane 2   |0|1 2|3 4|
    lane 3   |0|1 2|3 4|

The records that are left over, the tail, lie between blocks all over the dataset, are permuted by themselves, and come
at a place that the key decides. docs/order.md specifies all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.streams.order.orders import BlockBounds, Order, describe
from cachelayer.streams.order.permutation import Indices, hash_words, permuted_at, round_keys, sort_by_hash
from cachelayer.support.arguments import explains_options, integer
from cachelayer.support.locks import cached_property

MOST_LANES_BITS = 16
MOST_LANES = 1 << MOST_LANES_BITS
MOST_BLOCKS = 1 << 20
_MOST_RECORDS = 1 << 15
_LANE_WINDOW = 1 << 16
"""The most records of a lane in a window: the slots that are sorted have 16 bits."""
_WINDOW = 1 << 20
"""The most records of a window by default: nobody should wait for the sorting."""
_BLOCK_NBYTES = 1 << 20
_WINDOW_NBYTES = 1 << 30
_FEW_LANES = 64
_BLOCKS_OF_FEW = 2
"""Up to 64 lanes, many lanes are worth more than many blocks in each of them: two are enough."""
_MANY_LANES = 1024
_BLOCKS_OF_MANY = 64
"""Up to 1,024 lanes are made if each of them has 64 blocks."""
_KEPT_WINDOWS = 6
_AT_ONCE = 1 << 16
"""Records of windows that are sorted at once."""
_BEHIND = np.uint64(~0xFFFF & (1 << 64) - 1)
"""The bits that are set in words of slots that a shorter window does not have, so that they are sorted behind all."""


@explains_options
@dataclass(frozen=True)
class Blocks:
    """Sizes of a shuffle in blocks; pass it as ``shuffle=``. A size that is None follows from the version.

    Examples:
        >>> ten = cachelayer.wrap(list(range(10)), identity="ten")
        >>> pairs = cachelayer.Blocks(records=2, window=2, lanes=1)  # a window is two blocks of two records
        >>> [number for batch in ten.stream(5, shuffle=pairs, seed=0) for number in batch.tolist()]
        [8, 9, 0, 1, 2, 3, 7, 6, 5, 4]

    Raises:
        InvalidArgumentError: if a size is out of range.
        InvalidTypeError: if a size is not an integer.
    """

    records: int | None = None
    """The least number of consecutive records in a block, at most 32,768; by default about 1 MiB of them, and at least
    the windows of four documents, or the packs that are made of 16,384. All blocks have the same number of records, up
    to half as many more, so that few records are left over."""
    window: int | None = None
    """The number of blocks, over all lanes, among which records are shuffled; by default about 1 GiB of them, and at
    least one for each lane. It is rounded down to a multiple of ``lanes``, holds at most 65,536 records of a lane, and
    bounds what all shards together hold in memory. In a mixture, each dataset has a window of its own."""
    lanes: int | None = None
    """The number of lanes into which the blocks are dealt, a power of two; fewer if there are fewer blocks. A shard
    reads only the blocks of its own lanes, so use at least 8 for each shard. By default 1,024, or fewer in small
    versions."""

    def __post_init__(self) -> None:
        for name, most in (("records", _MOST_RECORDS), ("window", MOST_BLOCKS), ("lanes", MOST_LANES)):
            value = getattr(self, name)
            if value is None:
                continue
            number = integer(f"Blocks: {name}", value, 1)
            if number > most:
                raise InvalidArgumentError(f"Blocks: {name} {number}: it must be at most {most}")
            object.__setattr__(self, name, number)
        if self.lanes is None:
            return
        if self.lanes & (self.lanes - 1):
            low = power_of_two(self.lanes)
            raise InvalidArgumentError(f"Blocks: lanes {self.lanes}: pass a power of two, such as {low} or {2 * low}")
        if self.window is not None and self.window < self.lanes:
            raise InvalidArgumentError(
                f"Blocks: a window of {self.window} blocks holds less than one for each of {self.lanes} lanes: pass a "
                f"window of at least {self.lanes}, or fewer lanes"
            )


@dataclass(frozen=True, eq=False)
class _Window:
    """A window of the lanes that have the same last bits; one row a lane.

    With W = 2 blocks of B = 3 records, the row of a lane may be::

    starts    300  120                 the first record of each block
    slots     4 0 5 2 1 3              of 300 301 302 120 121 122
    records   121 300 122 302 301 120
    """

    first: Indices
    """The number of records of the lane before the window."""
    starts: Indices
    """The first record number of each block."""
    slots: NDArray[np.uint16]
    """For each place in the window, which of the records in its blocks comes there."""
    block: int
    """The number of records in a block."""

    @cached_property
    def lasts(self) -> Indices:
        """For each block, the place in the window at which its last record comes."""
        lasts = np.empty(self.starts.shape, np.int64)
        # Of several assignments to a block, the last one counts.
        lasts[np.arange(len(lasts))[:, None], self.slots // np.uint16(self.block)] = np.arange(self.slots.shape[1])
        return lasts


@dataclass(frozen=True)
class BlockOrder(Order):
    """The order in blocks of the records in every epoch."""

    records: int
    """The number of records, n."""
    least: int
    """The least number of records in a block."""
    window: int
    """The number of blocks in the windows of all lanes, a multiple of ``lanes``."""
    lanes: int
    """The number of lanes, L, a power of two."""
    seed: int
    """The key of the permutations, in [0, 2**64)."""
    reshuffle: bool = True
    """Whether every epoch has permutations of its own."""
    sizes_of_user: Blocks | None = field(default=None, compare=False)
    """The sizes that the user asked for, some of which may be open; None if all of them are given."""

    shuffle = True
    in_blocks = True

    def continuing(self, saved: Mapping[str, Any]) -> BlockOrder:
        """Return the order with the sizes of a state in place of sizes that follow from the version.

        They differ if the state was saved before records were appended, which change the mean size of a record.
        """
        state = saved.get("blocks")
        if self.sizes_of_user is None or not isinstance(state, dict):
            return self
        chosen_sizes = {name: size for name, size in vars(self.sizes_of_user).items() if size is not None}
        try:
            sizes = Blocks(**{**{name: state[name] for name in self.sizes}, **chosen_sizes})
        except (KeyError, InvalidArgumentError, InvalidTypeError):
            return self
        order = block_order(sizes, self.records, 1, seed=self.seed, reshuffle=self.reshuffle)
        return replace(order, sizes_of_user=self.sizes_of_user)

    def over(self, records: int) -> BlockOrder:
        """Return the order over another number of records, in blocks of the same sizes."""
        order = block_order(Blocks(**self.sizes), records, 1, seed=self.seed, reshuffle=self.reshuffle)
        return replace(order, sizes_of_user=self.sizes_of_user)

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("blocks", self, blocks=self.sizes)

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes as a state names them, and :class:`Blocks`."""
        return {"records": self.least, "window": self.window, "lanes": self.lanes}

    @cached_property
    def block(self) -> int:
        """The number of records in a block, B: of the sizes with which the fewest are left over, the least."""
        sizes = np.arange(self.least, max(self.least, min(self.least * 3 // 2, self.records // self.lanes)) + 1)
        return int(sizes[np.argmin(self.records // self.lanes % sizes)])

    @cached_property
    def rounds(self) -> int:
        """The number of blocks of a lane, K."""
        return self.records // self.lanes // self.block

    @cached_property
    def dealt(self) -> int:
        """The number of records in the blocks of all lanes. The others are the tail."""
        return self.lanes * self.rounds * self.block

    @cached_property
    def _depth(self) -> int:
        """The number of blocks of a lane in a window, W."""
        return max(1, min(self.window // self.lanes, self.rounds, _LANE_WINDOW // self.block))

    @cached_property
    def _lane_bits(self) -> int:
        return self.lanes.bit_length() - 1

    @cached_property
    def _missing(self) -> Indices:
        """For each lane, by how many blocks its first window is shorter."""
        return np.arange(self.lanes) * (self._depth if self._depth < self.rounds else 0) >> self._lane_bits

    @cached_property
    def _window(self) -> Callable[[int, int, int, int], _Window]:
        """Returns a window, and keeps those that are read now."""
        return lru_cache(_KEPT_WINDOWS)(self._make_window)

    def _keys(self, epoch: int) -> tuple[int, ...]:
        return round_keys(self.seed, epoch if self.reshuffle else 0)

    def _tail(self, epoch: int) -> tuple[int, int]:
        """Return the first place of the tail, which belongs to lane 0, and the place behind its last one."""
        first = self._keys(epoch)[2] % (self.rounds * self.block + 1) * self.lanes
        return first, first + self.records - self.dealt

    def compute(self, epoch: int, places: Indices) -> Indices:
        return self._find(epoch, places)

    def sort_keys(self, epoch: int, places: Indices) -> Indices:  # noqa: ARG002
        keys: Indices = _reversed_bits()[places & self.lanes - 1]
        return keys

    def blocks(self, epoch: int, places: Indices) -> BlockBounds:
        bounds = np.empty((3, len(places)), np.int64)
        self._find(epoch, places, bounds)
        return BlockBounds(*bounds)

    def _find(self, epoch: int, places: Indices, bounds: Indices | None = None) -> Indices:
        """Return the record numbers at places of an epoch.

        ``bounds`` gets the begin, the end and the last place of each record's block, one row each.
        """
        numbers = np.empty(len(places), np.int64)
        lanes = places & self.lanes - 1
        # How many records of its lane come before each record: the places of the lane before it, without the tail's.
        turns = places >> self._lane_bits
        first, end = self._tail(epoch)
        tail_of_lane = (end - first + self.lanes - 1 - np.arange(self.lanes)) >> self._lane_bits
        is_after = places >= end
        if is_after.any():
            turns -= np.where(is_after, tail_of_lane.take(lanes), 0)
        in_tail = np.flatnonzero((places >= first) & ~is_after)
        if len(in_tail):
            chosen = permuted_at(end - first, self._keys(epoch)[3], 0, places[in_tail] - first)
            # The tail is what lies between blocks: so many blocks lie before its record number ``chosen``.
            blocks_before = -(-(chosen + 1) * self.lanes * self.rounds // (end - first))
            numbers[in_tail] = blocks_before * self.block + chosen
            if bounds is not None:
                # A record of the tail is a block of its own.
                bounds[:, in_tail] = numbers[in_tail], numbers[in_tail] + 1, places[in_tail]
        for which, window, rows, columns in self._windows_of(epoch, lanes, turns, in_tail):
            # Not by indexing with rows and columns, which takes three times as long.
            slots = window.slots.take(rows * window.slots.shape[1] + columns).astype(np.int64)
            block_of_row = slots // self.block
            blocks = rows * self._depth + block_of_row
            begins = window.starts.take(blocks)
            numbers[which] = begins + (slots - block_of_row * self.block)
            if bounds is not None:
                lane = lanes[which]
                last_turns = window.first[rows] + window.lasts.take(blocks)
                last_turns += np.where(last_turns >= first >> self._lane_bits, tail_of_lane[lane], 0)
                bounds[:, which] = begins, begins + self.block, (last_turns << self._lane_bits) | lane
        return numbers

    def _windows_of(
        self, epoch: int, lanes: Indices, turns: Indices, in_tail: Indices
    ) -> Iterator[tuple[slice | Indices, _Window, Indices, Indices]]:
        """Yield the windows of some records: which records, the window, and their rows and columns in it.

        ``turns`` counts the records of its lane before each; those ``in_tail`` lie in no window.
        """
        windows = (turns // self.block + self._missing.take(lanes)) // self._depth
        windows[in_tail] = -1
        if len(in_tail) == len(lanes):
            return
        # If the number of shards is a power of two, the lanes of a shard have the same last bits. Windows are made of
        # such lanes alone: the windows of other lanes are not computed.
        shared = int(lanes[0])
        changes = int(np.bitwise_or.reduce(lanes ^ shared)) | self.lanes
        bits = (changes & -changes).bit_length() - 1
        shared &= (1 << bits) - 1
        numbers = [int(windows[0])] if (windows == windows[0]).all() else np.unique(windows).tolist()
        for number in numbers:
            if number >= 0:
                which = slice(None) if len(numbers) == 1 else np.flatnonzero(windows == number)
                window = self._window(epoch if self.reshuffle else 0, bits, shared, number)
                rows = lanes[which] >> bits
                yield which, window, rows, turns[which] - window.first.take(rows)

    def _make_window(self, epoch: int, bits: int, shared: int, number: int) -> _Window:
        """Return window ``number`` of the lanes whose last ``bits`` bits are ``shared``."""
        keys = self._keys(epoch)
        lanes = np.arange(shared, self.lanes, 1 << bits)
        first = np.clip(number * self._depth - self._missing[lanes], 0, self.rounds)
        end = np.clip((number + 1) * self._depth - self._missing[lanes], 0, self.rounds)
        sizes = (end - first) * self.block
        # Which blocks the lanes have: entry k * L + l of a permutation. A shorter window has blocks that nobody reads.
        count = self.rounds * self.lanes
        block_of_lane = np.minimum(first[:, None] + np.arange(self._depth), self.rounds - 1)
        entries = block_of_lane * self.lanes + lanes[:, None]
        blocks = permuted_at(count, keys[4], 0, entries.reshape(-1)).reshape(entries.shape)
        # The tail lies between the blocks.
        starts = blocks * self.block + blocks * (self.records - self.dealt) // count
        # In which order their records come: sorted by a hash that has keys of its own for each window and lane.
        lane_keys = hash_words((number * self.lanes + lanes).astype(np.uint64), keys[6], keys[7])
        places = np.arange(self._depth * self.block)
        slots = np.empty((len(lanes), len(places)), np.uint16)
        lanes_at_once = max(1, _AT_ONCE // len(places))
        for row in range(0, len(lanes), lanes_at_once):
            rows = slice(row, row + lanes_at_once)
            words = hash_words(places.astype(np.uint64) + lane_keys[rows, None], 0, keys[1])
            words[places >= sizes[rows, None]] |= _BEHIND
            slots[rows] = sort_by_hash(words)
        return _Window(first * self.block, starts, slots, self.block)


def power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number, at least 1."""
    return 1 << (max(1, number).bit_length() - 1)


@lru_cache(maxsize=1)
def _reversed_bits() -> Indices:
    """Return the numbers of 16 bits with their bits in reverse."""
    table = np.zeros(1, np.int64)
    for bit in reversed(range(MOST_LANES_BITS)):
        table = np.concatenate([table, table + (1 << bit)])
    return table


def block_order(
    sizes: Blocks, records: int, record_nbytes: int, together: int = 1, *, seed: int, reshuffle: bool = True
) -> BlockOrder:
    """Return the order of some records; sizes that are None follow from their number and their bytes.

    If the size of a block is open, it has at least ``together`` records; see :class:`cachelayer.protocols.Info`.
    """
    nbytes = max(1, record_nbytes)
    size = sizes.records or min(_MOST_RECORDS, max(together, round(_BLOCK_NBYTES / nbytes)))
    if sizes.records is None and sizes.lanes is not None:
        size = min(size, max(1, records // sizes.lanes))
    size = min(size, max(1, records))
    count = records // size
    lanes = sizes.lanes
    if lanes is None:
        few = min(_FEW_LANES, power_of_two(count // _BLOCKS_OF_FEW))
        lanes = min(_MANY_LANES, max(few, power_of_two(count // _BLOCKS_OF_MANY)))
    lanes = min(lanes, power_of_two(count), power_of_two(sizes.window or MOST_BLOCKS))
    depth = min(_WINDOW_NBYTES // (size * nbytes), _WINDOW // size) if sizes.window is None else sizes.window
    return BlockOrder(records, size, max(1, depth // lanes) * lanes, lanes, seed, reshuffle, sizes)
