"""What an order is, the exact one, and what every stream asks of any: numbers of records, and stand-ins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from cachelayer.locks import cached_property
from cachelayer.streams.order.permutation import MASK, Indices, mix, permuted_at, round_keys

EXACT_VERSION = 1
Places = Indices | range

GROUP = 64
"""The number of places of an epoch, one of which stands in for another."""
# No stream has so many epochs, and no split so many segments.
_STAND_IN_EPOCH = 3 << 62
# Numbers of this many places are computed at once and kept, because the next steps usually lie among them too.
_PIECE_BITS = 13
_PIECE = 1 << _PIECE_BITS
_KEPT_PIECES = 64
# Places further apart from each other are not read one after another.
_MOST_PIECES = 16
_MOST_STRIDE_BITS = 16
# Sort keys have 16 bits, and a step less than 2**40 rows.
_OFFSET_BITS = 40


class BlockBounds(NamedTuple):
    """The blocks of some records; one entry a record.

    Args:
        begin, end: the first record of the block, and the one after its last.
        last: the place in the epoch at which the last record of the block comes.
    """

    begin: Indices
    end: Indices
    last: Indices


class OrderInBlocks(Protocol):
    """An order of records that are read block by block."""

    def sort_keys(self, epoch: int, places: Indices) -> Indices:
        """Return by what the rows of a step are sorted before their places: the lane of each with its bits reversed."""

    def blocks(self, epoch: int, places: Indices) -> BlockBounds:
        """Return the blocks that the records at places of an epoch belong to."""


class Order(ABC):
    """The record at each place of each epoch.

    Numbers take so long to compute that those of whole pieces of an epoch are kept.
    """

    if TYPE_CHECKING:
        # Each order has these as fields of a dataclass, as properties, or as constants.

        @property
        def records(self) -> int:
            """Number of records."""

        @property
        def seed(self) -> int | None:
            """Key of the permutations."""

        @property
        def shuffle(self) -> bool:
            """True if the order is permuted."""

        @property
        def reshuffle(self) -> bool:
            """True if each epoch has a permutation of its own."""

    @property
    @abstractmethod
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order: kind, version, seed, shuffle, reshuffle, and the sizes that it depends on."""

    @property
    def in_blocks(self) -> bool:
        """True if it is an :class:`OrderInBlocks` too: records are read block by block, and not one by one."""
        return False

    def past(self, position: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return what a state says of an order of which only what comes before its position is fixed; else nothing."""
        return {}

    @property
    def length(self) -> int:
        """Number of places of an epoch."""
        return self.records

    def at(self, epoch: int, places: Places) -> Indices:
        """Return the numbers of the records at places of an epoch, an array or a range: int64 ``[len(places)]``.

        The places of a piece differ by multiples of a power of two. So if there are 2**j shards whose rows are arranged
        by lanes, each shard computes only its own places.
        """
        if len(places) == 0:
            return np.empty(0, np.int64)
        if isinstance(places, range):
            low, high, bits = places.start, places.stop - 1, 0
        else:
            low, high, bits = int(places.min()), int(places.max()), 0
            if high - low >= len(places):
                changes = int(np.bitwise_or.reduce(places ^ low)) | 1 << _MOST_STRIDE_BITS
                bits = (changes & -changes).bit_length() - 1
        first, last = low >> bits >> _PIECE_BITS, high >> bits >> _PIECE_BITS
        if last - first >= _MOST_PIECES:
            return self.compute(epoch, np.asarray(places))
        shared = low & (1 << bits) - 1
        pieces = [self._piece(epoch, bits, shared, number) for number in range(first, last + 1)]
        numbers = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        if isinstance(places, range):
            return numbers[low - first * _PIECE : high + 1 - first * _PIECE].copy()
        wanted: Indices = numbers.take((places >> bits if bits else places) - first * _PIECE)
        return wanted

    @abstractmethod
    def compute(self, epoch: int, places: Indices) -> Indices:
        """Return the numbers of the records at places of an epoch."""

    @cached_property
    def _piece(self) -> Callable[[int, int, int, int], Indices]:
        """What returns the record numbers of a piece of an epoch: it keeps those of the last pieces."""
        return lru_cache(_KEPT_PIECES)(self._compute_piece)

    def _compute_piece(self, epoch: int, bits: int, shared: int, number: int) -> Indices:
        """Return the record numbers at the places whose last bits are shared: those of one piece."""
        first = number << _PIECE_BITS
        end = min(first + _PIECE, (self.length - 1 - shared >> bits) + 1)
        return self.compute(epoch, np.arange(first, end) << bits | shared)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: self.__dict__[each.name] for each in fields(cast(Any, self))}


@dataclass(frozen=True)
class ExactOrder(Order):
    """An exact permutation of all records in every epoch.

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

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("exact", EXACT_VERSION, self)

    def compute(self, epoch: int, places: Indices) -> Indices:
        if not self.shuffle:
            return places
        return permuted_at(self.records, self.seed or 0, epoch if self.reshuffle else 0, places)


def describe(kind: str, version: int, order: Order, **more: Any) -> Mapping[str, Any]:
    """Return what a state says of an order."""
    mine = {"kind": kind, "version": version, "seed": order.seed, "shuffle": order.shuffle}
    return {**mine, "reshuffle": order.reshuffle, **more}


def arrange_rows(sort_keys: Indices) -> Indices:
    """Return the offsets of places sorted by their keys; places of one key stay in order."""
    keys = sort_keys << _OFFSET_BITS
    keys |= np.arange(keys.shape[-1])
    keys.sort(axis=-1)
    keys &= (1 << _OFFSET_BITS) - 1
    return keys


def stand_ins(order: Order, length: int, position: int) -> Iterator[int]:
    """Yield the records that may stand in at a global position, in the order in which they are tried.

    They are the other records of an aligned group of places; the last group ends with the epoch, of ``length``. A
    hash of seed and position chooses the first, and the others follow in cyclic order. So what stands in depends
    neither on the batch size nor on the shards.
    """
    epoch, place = divmod(position, length)
    end = min(place - place % GROUP + GROUP, length)
    begin = max(0, end - GROUP)
    records = order.at(epoch, range(begin, end)).tolist()
    first, second, *_ = round_keys(order.seed or 0, _STAND_IN_EPOCH)
    start = mix(mix(position + first & MASK) ^ second) * len(records) >> 64
    others = dict.fromkeys(records[start:] + records[:start])
    del others[records[place - begin]]
    yield from others
