"""The order of a weighted sample: at each position a record that is drawn by its weight, with replacement.

Version 4 of the order, which docs/order.md specifies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.order.exact import Order
from cachelayer.streams.order.permutation import Words, mixed, round_keys
from cachelayer.streams.steps import MOST_POSITIONS

SAMPLED_ORDER_VERSION = 4
# No stream has so many epochs, and neither splits nor mixtures use this one.
_EPOCH = (1 << 63) - 1
_LOW = np.uint64((1 << 32) - 1)
_HALF = np.uint64(32)
# Draws that are made at a time, because the next batch usually lies among them too.
_PIECE = 1 << 13
_KEPT_PIECES = 32

Indices = NDArray[np.int64]


def sums_of(weights: NDArray[np.float64]) -> Indices:
    """Return the running sums of weights as integers: the last is less than 2**62.

    A positive weight counts as 1 at least, and 0 as 0. All are rounded down, the same on every machine.

    Args:
        weights: finite, not negative, and not all 0.
    """
    # Times this power of two, not even the largest for each record would reach 2**62.
    power = 62 - len(weights).bit_length() - math.frexp(float(weights.max()))[1]
    scaled = np.ldexp(weights, power).astype(np.int64)
    return np.cumsum(np.maximum(scaled, weights > 0))


@dataclass(frozen=True, kw_only=True)
class SampledOrder(Order):
    """The records of a weighted sample: an :class:`~cachelayer.streams.order.exact.Ordering` without an end.

    Args:
        weights: SHA-256 of the sums as little-endian int64, in hexadecimal.
        sums: the running sums of the weights; see :func:`sums_of`.
    """

    weights: str
    sums: Indices = field(compare=False, repr=False)
    shuffle: bool = True
    seed: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: self.__dict__[each.name] for each in fields(self)}

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order."""
        return {"version": SAMPLED_ORDER_VERSION, "seed": self.seed, "weights": self.weights}

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at positions ``start`` to ``stop``: int64 of shape ``[stop - start]``."""
        begin, end = epoch * MOST_POSITIONS + start, epoch * MOST_POSITIONS + stop
        numbers = range(begin // _PIECE, -(-end // _PIECE))
        pieces = [_piece(self, number)[max(0, begin - number * _PIECE) : end - number * _PIECE] for number in numbers]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def at(self, epoch: int, places: Indices) -> Indices:
        """Return the record numbers at positions."""
        first, second = self._keys
        words = (places + epoch * MOST_POSITIONS).view(np.uint64) + np.uint64(first)
        return self._draw(mixed(mixed(words) ^ np.uint64(second)))

    def _draw(self, words: Words) -> Indices:
        """Return the record that each word draws: the first whose sum is above ``word * total >> 64``."""
        targets = _times(words, int(self.sums[-1])).view(np.int64)
        # A search through all sums takes ten times as long. This one begins between two sums that are near.
        shift, near = self._near
        low: Indices = near[targets >> shift]
        high = near[(targets >> shift) + 1]
        while (low < high).any():
            middle = low + high >> 1
            is_above = self.sums[middle] > targets
            high = np.where(is_above, middle, high)
            low = np.where(is_above, low, middle + 1)
        return low

    @cached_property
    def _near(self) -> tuple[int, Indices]:
        """For about as many multiples of a power of two as there are records, the record that each draws."""
        total = int(self.sums[-1])
        shift = max(0, total.bit_length() - self.records.bit_length())
        return shift, self.sums.searchsorted(np.arange((total >> shift) + 2) << shift, side="right")

    @cached_property
    def _keys(self) -> Sequence[int]:
        return round_keys(self.seed, _EPOCH)[:2]


def _times(words: Words, factor: int) -> Words:
    """Return the upper 64 bits of each word times a factor, which has 128 bits."""
    low, high = np.uint64(factor & int(_LOW)), np.uint64(factor >> 32)
    upper, lower = words >> _HALF, words & _LOW
    first = (lower * low >> _HALF) + upper * low
    second = (first & _LOW) + lower * high
    product: Words = upper * high + (first >> _HALF) + (second >> _HALF)
    return product


@lru_cache(maxsize=_KEPT_PIECES)
def _piece(order: SampledOrder, number: int) -> Indices:
    return order.at(0, np.arange(number * _PIECE, (number + 1) * _PIECE))
