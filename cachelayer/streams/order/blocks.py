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

from cachelayer.arguments import explains_options, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.streams.order.orders import BlockBounds, Order, describe
from cachelayer.streams.order.permutation import Indices, hash_words, permuted_at, round_keys, sort_by_hash

BLOCKS_VERSION = 1
MOST_LANES_BITS = 16
MOST_LANES = 1 << MOST_LANES_BITS
MOST_BLOCKS = 1 << 20
_MOST_RECORDS = 1 << 15
# Of a window: what is sorted has 16 bits, and what sorting takes should not be waited for.
_LANE_WINDOW = 1 << 16
_WINDOW = 1 << 20
_BLOCK_NBYTES = 1 << 20
_WINDOW_NBYTES = 1 << 30
# Many lanes are worth more than many blocks in each, up to this number of lanes.
_FEW_LANES, _BLOCKS_OF_FEW = 64, 2
_MANY_LANES, _BLOCKS_OF_MANY = 1024, 64
_KEPT_WINDOWS = 6
# Records of windows that are sorted at once.
_AT_ONCE = 1 << 16
_BEHIND = np.uint64(~0xFFFF & (1 << 64) - 1)


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

    @property
    def follow_from_bytes(self) -> bool:
        """True if a size follows from the bytes of the records."""
        return self.records is None or self.window is None

    def order(
        self, records: int, record_nbytes: int, together: int = 1, *, seed: int, reshuffle: bool = True
    ) -> BlockOrder:
        """Return the order of records of about so many bytes each; the sizes that are None follow from both.

        A block has at least as many records as are read together; see :class:`cachelayer.protocols.DatasetInfo`.
        """
        nbytes = max(1, record_nbytes)
        block = self.records or min(_MOST_RECORDS, max(together, round(_BLOCK_NBYTES / nbytes)))
        if self.records is None and self.lanes is not None:
            block = min(block, max(1, records // self.lanes))
        block = min(block, max(1, records))
        blocks, lanes = records // block, self.lanes
        if lanes is None:
            few = min(_FEW_LANES, power_of_two(blocks // _BLOCKS_OF_FEW))
            lanes = min(_MANY_LANES, max(few, power_of_two(blocks // _BLOCKS_OF_MANY)))
        lanes = min(lanes, power_of_two(blocks), power_of_two(self.window or MOST_BLOCKS))
        depth = min(_WINDOW_NBYTES // (block * nbytes), _WINDOW // block) if self.window is None else self.window
        return BlockOrder(records, block, max(1, depth // lanes) * lanes, lanes, seed, reshuffle, self)


@dataclass(frozen=True, eq=False)
class _Window:
    """A window of some lanes, those with the same last bits; one row a lane.

    Args:
        first: how many records of the lane come before it.
        starts: the first record number of each block.
        slots: at each place in the window, where the record lies in its blocks, one after another.
        block: number of records in a block.
    """

    first: Indices
    starts: Indices
    slots: NDArray[np.uint16]
    block: int

    @cached_property
    def lasts(self) -> Indices:
        """The last place in the window of each block."""
        lasts = np.empty(self.starts.shape, np.int64)
        # The last assignment counts.
        lasts[np.arange(len(lasts))[:, None], self.slots // np.uint16(self.block)] = np.arange(self.slots.shape[1])
        return lasts


@dataclass(frozen=True)
class BlockOrder(Order):
    """The order in blocks of the records in every epoch.

    Args:
        records: number of records, n.
        least: least number of records in a block.
        window: number of blocks in the windows of all lanes, a multiple of ``lanes``.
        lanes: number of lanes, L, a power of two.
        seed: key of the permutations, in [0, 2**64).
        reshuffle: whether each epoch has permutations of its own.
        asked: the sizes that the user asked for; None if all of them are given.
    """

    records: int
    least: int
    window: int
    lanes: int
    seed: int
    reshuffle: bool = True
    asked: Blocks | None = field(default=None, compare=False)

    shuffle = True
    in_blocks = True

    def with_sizes_of(self, state: Any) -> BlockOrder:
        """Return the order with the sizes of a state in place of those that follow from the version alone.

        They differ if the state was saved over other records: appended ones change the mean size of a record.
        """
        if self.asked is None or not isinstance(state, dict):
            return self
        given = {name: size for name, size in vars(self.asked).items() if size is not None}
        try:
            sizes = Blocks(**{**{name: state[name] for name in self.sizes}, **given})
        except (KeyError, InvalidArgumentError, InvalidTypeError):
            return self
        order = sizes.order(self.records, 1, seed=self.seed, reshuffle=self.reshuffle)
        return replace(order, asked=self.asked)

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("blocks", BLOCKS_VERSION, self, blocks=self.sizes)

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes as a state names them, and :class:`Blocks`."""
        return {"records": self.least, "window": self.window, "lanes": self.lanes}

    @cached_property
    def block(self) -> int:
        """Number of records in a block, B: the least for which the fewest are left over."""
        sizes = np.arange(self.least, max(self.least, min(self.least * 3 // 2, self.records // self.lanes)) + 1)
        return int(sizes[np.argmin(self.records // self.lanes % sizes)])

    @cached_property
    def rounds(self) -> int:
        """Number of blocks of a lane, K."""
        return self.records // self.lanes // self.block

    @cached_property
    def dealt(self) -> int:
        """Number of records in the blocks of all lanes. The others are the tail."""
        return self.lanes * self.rounds * self.block

    @cached_property
    def _depth(self) -> int:
        """Number of blocks in a window of a lane, W."""
        return max(1, min(self.window // self.lanes, self.rounds, _LANE_WINDOW // self.block))

    @cached_property
    def _lane_bits(self) -> int:
        return self.lanes.bit_length() - 1

    @cached_property
    def _missing(self) -> Indices:
        """Number of blocks by which the first window of each lane is shorter."""
        return np.arange(self.lanes) * (self._depth if self._depth < self.rounds else 0) >> self._lane_bits

    @cached_property
    def _window(self) -> Callable[[int, int, int, int], _Window]:
        """What returns a window: it keeps those that are read now."""
        return lru_cache(_KEPT_WINDOWS)(self._make_window)

    def _keys(self, epoch: int) -> tuple[int, ...]:
        return round_keys(self.seed, epoch if self.reshuffle else 0)

    def _tail(self, epoch: int) -> tuple[int, int]:
        """Return the places of the tail: the first, which belongs to lane 0, and the one behind the last."""
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
        """Return the record numbers at places of an epoch; fill in begins, ends and last places of their blocks."""
        numbers = np.empty(len(places), np.int64)
        lanes, steps = places & self.lanes - 1, places >> self._lane_bits
        first, end = self._tail(epoch)
        # In each lane the tail has so many places.
        tail = (end - first + self.lanes - 1 - np.arange(self.lanes)) >> self._lane_bits
        is_after = places >= end
        if is_after.any():
            steps -= np.where(is_after, tail.take(lanes), 0)
        in_tail = np.flatnonzero((places >= first) & ~is_after)
        if len(in_tail):
            chosen = permuted_at(end - first, self._keys(epoch)[3], 0, places[in_tail] - first)
            # The tail is what lies between blocks.
            numbers[in_tail] = -(-(chosen + 1) * self.lanes * self.rounds // (end - first)) * self.block + chosen
            if bounds is not None:
                bounds[:, in_tail] = numbers[in_tail], numbers[in_tail] + 1, places[in_tail]
        for which, window, rows, columns in self._windows_of(epoch, lanes, steps, in_tail):
            # Not by indexing with rows and columns, which takes three times as long.
            slots = window.slots.take(rows * window.slots.shape[1] + columns).astype(np.int64)
            turns = slots // self.block
            cells = rows * self._depth + turns
            begins = window.starts.take(cells)
            numbers[which] = begins + (slots - turns * self.block)
            if bounds is not None:
                last, lane = window.first[rows] + window.lasts.take(cells), lanes[which]
                last += np.where(last >= first >> self._lane_bits, tail[lane], 0)
                bounds[:, which] = begins, begins + self.block, (last << self._lane_bits) | lane
        return numbers

    def _windows_of(
        self, epoch: int, lanes: Indices, steps: Indices, in_tail: Indices
    ) -> Iterator[tuple[slice | Indices, _Window, Indices, Indices]]:
        """Yield the windows that records of lanes lie in: which ones, the window, and their rows and columns in it.

        ``steps`` says how many records of its lane come before each; those ``in_tail`` lie in no window.
        """
        windows = (steps // self.block + self._missing.take(lanes)) // self._depth
        windows[in_tail] = -1
        if len(in_tail) == len(lanes):
            return
        # The lanes of a shard have the same last bits, if the number of shards is a power of two.
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
                yield which, window, rows, steps[which] - window.first.take(rows)

    def _make_window(self, epoch: int, bits: int, shared: int, number: int) -> _Window:
        """Return a window of the lanes whose last bits are shared."""
        keys, lanes = self._keys(epoch), np.arange(shared, self.lanes, 1 << bits)
        first = np.clip(number * self._depth - self._missing[lanes], 0, self.rounds)
        sizes = (np.clip((number + 1) * self._depth - self._missing[lanes], 0, self.rounds) - first) * self.block
        count = self.rounds * self.lanes
        turns = np.minimum(first[:, None] + np.arange(self._depth), self.rounds - 1) * self.lanes + lanes[:, None]
        blocks = permuted_at(count, keys[4], 0, turns.reshape(-1)).reshape(turns.shape)
        tweaks = hash_words((number * self.lanes + lanes).astype(np.uint64), keys[6], keys[7])
        places = np.arange(self._depth * self.block)
        slots = np.empty((len(lanes), len(places)), np.uint16)
        together = max(1, _AT_ONCE // len(places))
        for row in range(0, len(lanes), together):
            rows = slice(row, row + together)
            words = hash_words(places.astype(np.uint64) + tweaks[rows, None], 0, keys[1])
            words[places >= sizes[rows, None]] |= _BEHIND
            slots[rows] = sort_by_hash(words)
        starts = blocks * self.block + blocks * (self.records - self.dealt) // count
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
