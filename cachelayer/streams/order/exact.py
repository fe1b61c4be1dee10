"""The order of records: a permutation for each epoch, as :mod:`cachelayer.streams.order.permutation` computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cachelayer.streams.order.permutation import Indices, permuted

ORDER_VERSION = 1
# Ranks have 16 bits, and a step less than 2**40 rows.
_OFFSET_BITS = 40


@dataclass(frozen=True)
class BlockSpans:
    """The block that the record at each place belongs to; one entry a place.

    A record that belongs to no block is a block of its own.

    Args:
        begin: the first record number of the block.
        end: one past its last record number.
        last: the place of this epoch at which the last record of the block comes, over all shards.
    """

    begin: Indices
    end: Indices
    last: Indices


class Ordering(Protocol):
    """The record at each place of each epoch."""

    @property
    def records(self) -> int:
        """Number of records."""

    @property
    def shuffle(self) -> bool:
        """True if the order is permuted."""

    @property
    def seed(self) -> int | None:
        """Key of the permutations."""

    @property
    def reshuffle(self) -> bool:
        """True if each epoch has a permutation of its own."""

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at places ``start`` to ``stop`` of an epoch: int64 of shape ``[stop - start]``."""

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order."""

    def at(self, epoch: int, places: Indices) -> Indices:
        """Return the record numbers at places of an epoch."""

    def ranks(self, epoch: int, start: int, stop: int) -> Indices | None:
        """Return by what the rows of a step are sorted before their places; None if only by their places."""

    def arranged(self, epoch: int, start: int, stop: int) -> Indices | None:
        """Return the rows of a step: the offset of each row's place from ``start``; None for the order of places."""

    def blocks(self, epoch: int, start: int, stop: int) -> BlockSpans | None:
        """Return the block of the record at each place; None if records are read one by one."""

    def blocks_at(self, epoch: int, places: Indices) -> BlockSpans | None:
        """Return the blocks of the records at places of an epoch; None if records are read one by one."""


@dataclass(frozen=True)
class Order:
    """The order of ``records`` records in every epoch.

    Args:
        records: number of records, n.
        shuffle: whether the order is permuted at all.
        seed: key of the permutations, in [0, 2**64); None only if nothing is shuffled.
        reshuffle: whether each epoch has a permutation of its own.
    """

    records: int
    shuffle: bool = False
    seed: int | None = None
    reshuffle: bool = True

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at places ``start`` to ``stop`` of an epoch: int64 of shape ``[stop - start]``."""
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        return permuted(self.records, self.seed or 0, epoch if self.reshuffle else 0, start, stop)

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order."""
        return {"version": ORDER_VERSION, "seed": self.seed, "shuffle": self.shuffle, "reshuffle": self.reshuffle}

    def at(self, epoch: int, places: Indices) -> Indices:
        """Return the record numbers at places of an epoch."""
        return out_of_range(self, epoch, places)

    def ranks(self, epoch: int, start: int, stop: int) -> None:
        """Return None: rows are in order of their places."""

    def arranged(self, epoch: int, start: int, stop: int) -> None:
        """Return None: rows are in order of their places."""

    def blocks(self, epoch: int, start: int, stop: int) -> None:
        """Return None: records are read one by one."""

    def blocks_at(self, epoch: int, places: Indices) -> None:
        """Return None: records are read one by one."""


def out_of_range(order: Ordering, epoch: int, places: Indices) -> Indices:
    """Return the record numbers at places of an epoch, out of those of the range that they lie in."""
    if len(places) == 0:
        return places
    first, last = int(places.min()), int(places.max()) + 1
    found: Indices = order(epoch, first, last)[places - first]
    return found


def arrangement(ranks: Indices) -> Indices:
    """Return the offsets of places sorted by their ranks; places of one rank stay in order."""
    keys = ranks << _OFFSET_BITS
    keys |= np.arange(keys.shape[-1])
    keys.sort(axis=-1)
    keys &= (1 << _OFFSET_BITS) - 1
    return keys


def shares(order: Ordering, epoch: int, start: int, stop: int, index: int, count: int) -> Indices:
    """Return the offsets from ``start`` of one row of each step, if each step has a row for each of ``count`` shards.

    Args:
        order: the order.
        epoch, start, stop: the places of the steps, of which the last may be shorter.
        index: the row.
        count: the number of rows of a step.
    """
    ranks = None if count == 1 else order.ranks(epoch, start, stop)
    if ranks is None:
        return np.arange(index, stop - start, count)
    steps, left = divmod(stop - start, count)
    rows = arrangement(ranks[: steps * count].reshape(steps, count))[:, index] + np.arange(steps) * count
    if index >= left:
        return rows
    return np.append(rows, arrangement(ranks[steps * count :])[index] + steps * count)
