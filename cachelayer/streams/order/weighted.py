"""The order of a weighted sample: at each position a record that is drawn by its weight, with replacement.

A hash of seed and position gives a fraction of the sum of all weights. The record drawn is the first one whose running
sum is above it. With weights 2, 0, 1 and 1::

    record     0       2   3            the sums are 2 2 3 4; record 1 is never drawn
               |-------|---|---|
    target     0       2   3   4

docs/order.md specifies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order.orders import MOST_POSITIONS, Order, describe
from cachelayer.streams.order.permutation import Indices, hash_words, round_keys
from cachelayer.support.locks import cached_property

_EPOCH = (1 << 63) - 1
"""The epoch whose keys draw records: no stream has so many epochs, and neither splits nor mixtures use it."""
_BITS = 52
"""The bits of a hash that are used. With more, a fraction times the sum of all weights might be rounded up to it."""


def sums_of(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running sums of weights times a power of two, so that none is infinite.

    Weights are finite, not negative, and not all 0.
    """
    return np.cumsum(np.ldexp(weights, -math.frexp(float(weights.max()))[1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedOrder(Order):
    """The records of a weighted sample, without an end."""

    sums: NDArray[np.float64] = field(repr=False)
    """The running sums of the weights: float64, ascending, of shape ``[records]``; the last one is positive."""
    weights: str
    """SHA-256 of the sums as little-endian float64, in hexadecimal."""
    seed: int
    """The key of the draws."""

    shuffle = reshuffle = True
    length = MOST_POSITIONS

    @property
    def records(self) -> int:
        return len(self.sums)

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("weighted", self, weights=self.weights)

    def compute(self, epoch: int, places: Indices) -> Indices:
        first, second, *_ = round_keys(self.seed, _EPOCH)
        words = hash_words((places + epoch * MOST_POSITIONS).view(np.uint64), first, second)
        fractions = (words >> np.uint64(64 - _BITS)) * 2.0**-_BITS
        targets = fractions * self.sums[-1]
        # numpy's search through all sums takes up to ten times as long as one that begins between two near records.
        cells = (fractions * (len(self._near) - 1)).astype(np.int64)
        low = self._near[cells]
        high = self._near[cells + 1]
        while (low < high).any():
            middle = low + high >> 1
            is_above = self.sums[middle] > targets
            high = np.where(is_above, middle, high)
            low = np.where(is_above, low, middle + 1)
        return low

    @cached_property
    def _near(self) -> Indices:
        """The records that evenly spaced targets draw, about as many targets as there are records."""
        cells = 1 << self.records.bit_length() - 1
        targets = np.arange(cells + 1) / cells * self.sums[-1]
        near: Indices = self.sums.searchsorted(targets, side="right")
        return near
