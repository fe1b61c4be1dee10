"""Orders: which record has which place of an epoch; the exact order; and which records stand in at a place.

With 10 records and seed 0, the exact order begins::

    place       0 1 2 3 4 5 6 7 8 9
    epoch 0     3 0 8 7 5 1 6 4 2 9
    epoch 1     8 5 3 6 2 7 1 0 9 4
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from cachelayer.errors import StateError
from cachelayer.streams.order.permutation import MASK, Indices, mix, permuted_at, round_keys
from cachelayer.support.locks import PickledByFields, cached_property

VERSIONS = {"exact": 1, "blocks": 1, "buckets": 1, "weighted": 1, "mixture": 2}
"""The newest version of each kind of order, under which its permutations never change."""

MOST_POSITIONS = 1 << 62
"""Positions are added and multiplied as signed 64-bit integers."""
GROUP = 64
"""The number of places of an epoch, one of which stands in for another."""
_STAND_IN_EPOCH = 3 << 62
"""The epoch whose keys choose stand-ins: no stream has so many epochs, and no split so many segments."""
_PIECE_BITS = 13
_PIECE = 1 << _PIECE_BITS
"""The places of a piece, whose record numbers are computed at once and kept: the next steps usually lie in it too."""
_KEPT_PIECES = 64
_KEPT_EXACT_PIECES = 512
"""Of all exact orders of the process, 32 MiB: a mixture has as many of them as parts."""
_MOST_PIECES = 16
"""Places in more pieces than this are computed by themselves: the next steps do not lie in the same pieces."""
_MOST_STRIDE_BITS = 16
_OFFSET_BITS = 40
"""A step has less than 2**40 rows. Sort keys have 16 bits, so a key and an offset fit a word together."""


class BlockBounds(NamedTuple):
    """The blocks of some records, by record."""

    begin: Indices
    """The first record of the block."""
    end: Indices
    """The record after its last one."""
    last: Indices
    """The place of the epoch at which the last record of the block comes."""


class OrderInBlocks(Protocol):
    """An order of records that are read block by block."""

    def sort_keys(self, epoch: int, places: Indices) -> Indices:
        """Return the sort key of each place: its lane with the bits reversed. Rows of a step are sorted by it."""

    def blocks(self, epoch: int, places: Indices) -> BlockBounds:
        """Return the block of the record at each place of an epoch."""


class Order(PickledByFields, ABC):
    """An order: the record at each place of every epoch.

    Record numbers take long to compute, so whole pieces of an epoch are computed at once and kept.
    """

    in_blocks: ClassVar[bool] = False
    """True if it is an :class:`OrderInBlocks` too: records are read block by block, and not one by one."""
    cuts: ClassVar[tuple[int, ...]] = ()
    """The places of an epoch at which a step begins, besides the first, such as the borders of buckets."""

    if TYPE_CHECKING:
        # Orders have these as fields of a dataclass, as properties, or as constants.

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
        """The order in a state: kind, version, seed, shuffle, reshuffle, and the sizes that it depends on."""

    def past(self, position: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return what a state says of the order before its position, if what comes later may change; else nothing."""
        return {}

    def continuing(self, saved: Mapping[str, Any]) -> Self:  # noqa: ARG002
        """Return the order with what that of a state has decided, such as sizes of blocks that the user left open."""
        return self

    def over(self, records: int) -> Self:  # noqa: ARG002
        """Return the order of the same kind over another number of records, for a stream that advances to more."""
        raise StateError(f"a stream in an order of kind {self.described['kind']!r} does not advance to more records")

    @property
    def length(self) -> int:
        """Number of places of an epoch."""
        return self.records

    def at(self, epoch: int, places: Indices | range) -> Indices:
        """Return the record number at each place of an epoch, an array or a range: int64 ``[len(places)]``.

        If rows are arranged by lanes, a shard of 2**j has the places of every 2**j-th lane: their last j bits are the
        same, here 01. A piece has only such places, so no shard computes the places of others::

            places        1  5  9  13  ...       last 2 bits shared
            piece 0       1  5  9  13  ...       8,192 places
        """
        if len(places) == 0:
            return np.empty(0, np.int64)
        places = np.asarray(places)
        shared_bits = 0
        low = int(places.min())
        high = int(places.max())
        if high - low >= len(places):
            changes = int(np.bitwise_or.reduce(places ^ low)) | 1 << _MOST_STRIDE_BITS
            # The lowest bit in which two places differ.
            shared_bits = (changes & -changes).bit_length() - 1
        first = low >> shared_bits >> _PIECE_BITS
        last = high >> shared_bits >> _PIECE_BITS
        if last - first >= _MOST_PIECES:
            return self.compute(epoch, places)
        shared = low & (1 << shared_bits) - 1
        pieces = [self._piece(epoch, shared_bits, shared, number) for number in range(first, last + 1)]
        numbers = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        within = places >> shared_bits if shared_bits else places
        chosen: Indices = numbers.take(within - first * _PIECE)
        return chosen

    def between(self, epoch: int, begin: int, end: int) -> Indices:
        """Return the record numbers at consecutive places of an epoch, read-only: int64 ``[end - begin]``."""
        first = begin >> _PIECE_BITS
        last = max(begin, end - 1) >> _PIECE_BITS
        if last - first >= _MOST_PIECES:
            return self.compute(epoch, np.arange(begin, end))
        pieces = [self._piece(epoch, 0, 0, number) for number in range(first, last + 1)]
        numbers = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        return numbers[begin - first * _PIECE : end - first * _PIECE]

    @abstractmethod
    def compute(self, epoch: int, places: Indices) -> Indices:
        """Return the record number at each place of an epoch, without a cache."""

    @cached_property
    def _piece(self) -> Callable[[int, int, int, int], Indices]:
        """Returns the record numbers of a piece of an epoch, and keeps them."""
        return lru_cache(_KEPT_PIECES)(self.compute_piece)

    def compute_piece(self, epoch: int, shared_bits: int, shared: int, number: int) -> Indices:
        """Return the record numbers of a piece: of places whose last bits are ``shared``."""
        first = number << _PIECE_BITS
        end = min(first + _PIECE, (self.length - 1 - shared >> shared_bits) + 1)
        numbers = self.compute(epoch, np.arange(first, end) << shared_bits | shared).view()
        numbers.setflags(write=False)
        return numbers


@dataclass(frozen=True)
class ExactOrder(Order):
    """An exact permutation of all records in every epoch."""

    records: int
    """The number of records, n."""
    shuffle: bool = False
    """Whether the order is permuted at all."""
    seed: int | None = None
    """The key of the permutations, in [0, 2**64); None only if nothing is shuffled."""
    reshuffle: bool = True
    """Whether every epoch has a permutation of its own."""

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("exact", self)

    def over(self, records: int) -> ExactOrder:
        return replace(self, records=records)

    def compute(self, epoch: int, places: Indices) -> Indices:
        if not self.shuffle:
            return places
        return permuted_at(self.records, self.seed or 0, epoch if self.reshuffle else 0, places)

    @property
    def _piece(self) -> Callable[[int, int, int, int], Indices]:
        return partial(_exact_piece, self)


@lru_cache(_KEPT_EXACT_PIECES)
def _exact_piece(order: ExactOrder, epoch: int, shared_bits: int, shared: int, number: int) -> Indices:
    """Return the record numbers of a piece of an epoch, and keep them for all streams of this order."""
    return order.compute_piece(epoch, shared_bits, shared, number)


def describe(kind: str, order: Order, **more: Any) -> Mapping[str, Any]:
    """Return what a state says of an order."""
    return {
        "kind": kind,
        "version": VERSIONS[kind],
        "seed": order.seed,
        "shuffle": order.shuffle,
        "reshuffle": order.reshuffle,
        **more,
    }


def arrange_rows(sort_keys: Indices) -> Indices:
    """Return the indices that sort places by their keys; places of one key stay in order."""
    # To sort words of key and index is several times faster than a stable argsort.
    words = sort_keys << _OFFSET_BITS
    words |= np.arange(words.shape[-1])
    words.sort(axis=-1)
    words &= (1 << _OFFSET_BITS) - 1
    return words


def stand_ins(order: Order, epoch: int, place: int) -> Iterator[int]:
    """Yield the records that may stand in at a place of an epoch, in the order in which they are tried.

    They are the other records of an aligned group of 64 places; the last group ends with the epoch. A hash of seed and
    position chooses the first one, and the others follow in cyclic order. So
    neither the batch size nor the number of shards changes what stands in. With groups of 4, at place 5::

        places      | 0 1 2 3 | 4 5 6 7 | 8 9 ...
        records     | 3 0 8 7 | 5 1 6 4 |
        stand-ins             6, 4, 5                if the hash chooses place 6
    """
    end = min(place - place % GROUP + GROUP, order.length)
    begin = max(0, end - GROUP)
    records = order.at(epoch, range(begin, end)).tolist()
    first, second, *_ = round_keys(order.seed or 0, _STAND_IN_EPOCH)
    start = mix(mix(epoch * order.length + place + first & MASK) ^ second) * len(records) >> 64
    others = dict.fromkeys(records[start:] + records[:start])
    del others[records[place - begin]]
    yield from others
