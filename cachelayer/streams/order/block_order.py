"""An order in blocks: records that lie together come together, and each shard reads only its own blocks.

Version 2 of the order, which docs/order.md specifies. It never changes under this number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError
from cachelayer.streams.order.block_chunks import numbers_at, numbers_in, spans_at
from cachelayer.streams.order.block_grid import MOST_LANES, Grid, power_of_two, reversed_bits
from cachelayer.streams.order.block_windows import Deal, deal
from cachelayer.streams.order.exact import BlockSpans

BLOCK_ORDER_VERSION = 2
MOST_BLOCKS = 1 << 20
_BLOCK_NBYTES = 1 << 20
_WINDOW_NBYTES = 1 << 30
# Many lanes are worth more than many blocks in each, up to this number of lanes.
_FEW_LANES, _BLOCKS_OF_FEW = 64, 2
_MANY_LANES, _BLOCKS_OF_MANY = 1024, 64
# Stand-ins of this number of attempts come from the block, which is at hand.
# How steps of up to so many rows are arranged is kept for many of them, and else for a few.
_KEPT_ROWS = 1 << 13

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """Sizes of a shuffle in blocks; pass it as ``shuffle=``. Those that are None follow from the version.

    Args:
        records: number of consecutive records in a block; by default about 1 MiB of them. If a block, or one record for
            each lane, is more than there are, all records are shuffled and read one by one.
        window: number of blocks, over all lanes, among which records are shuffled; by default about 1 GiB of them, and
            at least one for each lane. It is rounded down to a multiple of ``lanes``, and bounds what all shards
            together hold in memory. In a mixture, each dataset has a window of its own.
        lanes: a power of two, into which the blocks are dealt. A shard reads only the blocks of its own lanes, so use
            at least 8 for each. By default 1,024, or fewer in small versions.

    Raises:
        InvalidArgumentError: if a size is out of range.
        InvalidTypeError: if a size is not an integer.
    """

    records: int | None = None
    window: int | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("records", 1 << 62), ("window", MOST_BLOCKS), ("lanes", MOST_LANES)):
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


def grid_of(sizes: Blocks, records: int, record_nbytes: int) -> Grid:
    """Return the lanes of an order in blocks of a version.

    Args:
        sizes: the sizes that are given; the others follow from the version.
        records: number of records.
        record_nbytes: approximate bytes of a record.
    """
    nbytes = max(1, record_nbytes)
    block = sizes.records or max(1, round(_BLOCK_NBYTES / nbytes))
    lanes = sizes.lanes
    if lanes is None:
        blocks = records // block
        lanes = max(power_of_two(blocks // _BLOCKS_OF_MANY), min(_FEW_LANES, power_of_two(blocks // _BLOCKS_OF_FEW)))
        lanes = min(lanes, _MANY_LANES, power_of_two(sizes.window or MOST_BLOCKS))
    if sizes.records is None:
        # The blocks of a lane are alike, rather than the last one short; a lane of less than a block is one.
        share = max(1, records // lanes)
        block = -(-share // max(1, share // block))
    window = sizes.window or min(MOST_BLOCKS, _WINDOW_NBYTES // (block * nbytes))
    return Grid(records, block, max(1, window // lanes), lanes)


@dataclass(frozen=True)
class BlockOrder:
    """The order in blocks of the records in every epoch: an :class:`~cachelayer.streams.order.exact.Ordering`.

    Args:
        grid: the sizes.
        seed: key of the permutations, in [0, 2**64).
        reshuffle: whether each epoch has permutations of its own.
    """

    grid: Grid
    seed: int
    reshuffle: bool = True

    shuffle = True

    @property
    def records(self) -> int:
        return self.grid.records

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes as a state names them."""
        grid = self.grid
        return {"records": grid.block, "window": grid.depth * grid.lanes, "lanes": grid.lanes}

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order."""
        return {
            "version": BLOCK_ORDER_VERSION,
            "seed": self.seed,
            "shuffle": True,
            "reshuffle": self.reshuffle,
            "blocks": self.sizes,
        }

    def _deal(self, epoch: int) -> Deal:
        return deal(self.grid, self.seed, epoch if self.reshuffle else 0)

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at places ``start`` to ``stop`` of an epoch: int64 of shape ``[stop - start]``."""
        return numbers_in(self._deal(epoch), start, stop)

    def at(self, epoch: int, places: Indices) -> Indices:
        """Return the record numbers at places of an epoch."""
        return numbers_at(self._deal(epoch), places)

    def ranks(self, epoch: int, start: int, stop: int) -> Indices:  # noqa: ARG002
        """Return the lane of each place with its bits reversed, as a fraction of 2**16."""
        return self.ranks_at(np.arange(start, stop))

    def ranks_at(self, places: Indices) -> Indices:
        """Return what :meth:`ranks` returns, at any places."""
        return reversed_bits(places & (self.grid.lanes - 1))

    def arranged(self, epoch: int, start: int, stop: int) -> Indices:  # noqa: ARG002
        """Return the rows of a step: for each row the offset of its place from ``start``."""
        size, first = stop - start, start & (self.grid.lanes - 1)
        return (_kept if size <= _KEPT_ROWS else _kept_large)(self.grid.lanes, first, size)

    def blocks(self, epoch: int, start: int, stop: int) -> BlockSpans:
        """Return the block of the record at each place."""
        return self.blocks_at(epoch, np.arange(start, stop))

    def blocks_at(self, epoch: int, places: Indices) -> BlockSpans:
        """Return the blocks of the records at places of an epoch."""
        return spans_at(self._deal(epoch), places)


def _arranged(lanes: int, first: int, size: int) -> Indices:
    """Return how a step is arranged whose first place belongs to a lane."""
    # The places of a lane come together, in their order: a row of this table. Nothing is sorted.
    offsets = (_lanes_in_order(lanes) - first) % lanes
    table = offsets[:, None] + np.arange(0, size, lanes)
    found: Indices = table[table < size]
    found.setflags(write=False)
    return found


# Steps of one size begin in few lanes, and each is asked for several times.
_kept = lru_cache(maxsize=256)(_arranged)
_kept_large = lru_cache(maxsize=4)(_arranged)


@lru_cache(maxsize=8)
def _lanes_in_order(lanes: int) -> Indices:
    """Return the lanes in the order of their bits in reverse."""
    return np.argsort(reversed_bits(np.arange(lanes)))
