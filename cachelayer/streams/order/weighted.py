"""The order of a weighted sample: at each position a record that is drawn by its weight, with replacement.

docs/order.md specifies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.order.orders import Order, describe
from cachelayer.streams.order.permutation import Indices, hash_words, round_keys
from cachelayer.streams.steps import MOST_POSITIONS

WEIGHTED_VERSION = 1
# No stream has so many epochs, and neither splits nor mixtures use this one.
_EPOCH = (1 << 63) - 1
# With so many bits of a hash, a fraction of the sum of all weights is always less than it.
_BITS = 52


def sums_of(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running sums of weights times a power of two, so that none is infinite.

    Args:
        weights: finite, not negative, and not all 0.
    """
    return np.cumsum(np.ldexp(weights, -math.frexp(float(weights.max()))[1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedOrder(Order):
    """The records of a weighted sample, without an end.

    Args:
        sums: the running sums of the weights: float64, ascending, of shape ``[records]``; the last is positive.
        weights: SHA-256 of the sums as little-endian float64, in hexadecimal.
        seed: key of the draws.
    """

    sums: NDArray[np.float64] = field(repr=False)
    weights: str
    seed: int

    shuffle = reshuffle = True
    length = MOST_POSITIONS

    @property
    def records(self) -> int:
        return len(self.sums)

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("weighted", WEIGHTED_VERSION, self, weights=self.weights)

    def compute(self, epoch: int, places: Indices) -> Indices:
        first, second, *_ = round_keys(self.seed, _EPOCH)
        words = hash_words((places + epoch * MOST_POSITIONS).view(np.uint64), first, second)
        fractions = (words >> np.uint64(64 - _BITS)) * 2.0**-_BITS
        targets = fractions * self.sums[-1]
        # numpy's search through all sums takes up to ten times as long. This one begins between two that are near.
        cells = (fractions * (len(self._near) - 1)).astype(np.int64)
        low, high = self._near[cells], self._near[cells + 1]
        while (low < high).any():
            middle = low + high >> 1
            is_above = self.sums[middle] > targets
            high = np.where(is_above, middle, high)
            low = np.where(is_above, low, middle + 1)
        return low

    @cached_property
    def _near(self) -> Indices:
        """For the multiples of a fraction, about as many as there are records, the record that each draws."""
        cells = 1 << self.records.bit_length() - 1
        targets = np.arange(cells + 1) / cells * self.sums[-1]
        near: Indices = self.sums.searchsorted(targets, side="right")
        return near
