"""Histograms of numbers whose range is unknown until the end."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 32
# Bits of a float's significand: no bin is narrower than the step between the largest floats.
_BITS = 53
_NARROWEST = -1074

Number = int | float


@dataclass(frozen=True)
class Histogram:
    """The counts of numbers in ranges of one width.

    Args:
        edges: where each range begins, and where the last one ends: range i is ``edges[i] <= x < edges[i + 1]``.
        counts: how many numbers lie in each range.
    """

    edges: tuple[Number, ...]
    counts: tuple[int, ...]


class GrowingHistogram:
    """Counts finite numbers in one pass; the result does not depend on their order.

    Bins are ``2**k`` wide and begin at multiples of that. If numbers lie outside of them, whole bins are merged, two at
    a time, until at most ``BINS`` cover all numbers. With enough different numbers, at least half of ``BINS`` remain.

    Args:
        whole: whether the numbers are integers, so that bins are at least 1 wide.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._k = 0 if whole else _NARROWEST
        self._first = 0
        self._counts = np.zeros(0, np.int64)

    def add(self, values: NDArray[Any], weights: NDArray[np.int64] | None = None) -> None:
        """Count integers or float64, of shape ``[n]``, each as often as its weight says; once by default."""
        if len(values) == 0:
            return
        low, high = values.min().item(), values.max().item()
        self._cover(low, high)
        if self._whole:
            places = (values >> self._k) - (low >> self._k)
        else:
            places = np.floor(np.ldexp(values, -self._k))
            # A negative number that is too small to be scaled still belongs below zero.
            places[(places == 0) & (values < 0)] = -1
            places -= self._place(low)
        counts = np.bincount(places.astype(np.int64), weights)
        start = self._place(low) - self._first
        self._counts[start : start + len(counts)] += counts.astype(np.int64)

    def result(self) -> Histogram | None:
        """Return the histogram; None if nothing was counted."""
        if len(self._counts) == 0:
            return None
        edges = tuple(self._edge(self._first + place) for place in range(len(self._counts) + 1))
        return Histogram(edges, tuple(self._counts.tolist()))

    def _place(self, value: Number) -> int:
        """Return the bin of a number; bin 0 begins at zero."""
        if self._whole:
            return int(value) >> self._k
        place = math.floor(math.ldexp(value, -self._k))
        return -1 if place == 0 and value < 0 else place

    def _edge(self, place: int) -> Number:
        if self._whole:
            return place << self._k
        try:
            return math.ldexp(place, self._k)
        except OverflowError:
            return math.copysign(sys.float_info.max, place)

    def _cover(self, low: Number, high: Number) -> None:
        """Extend the bins so that they cover the range from ``low`` to ``high`` too."""
        most = max(abs(low), abs(high))
        if not self._whole and most > 0:
            self._widen(max(self._k, math.frexp(most)[1] - _BITS))
        while True:
            first, last = self._place(low), self._place(high)
            if len(self._counts):
                first, last = min(first, self._first), max(last, self._first + len(self._counts) - 1)
            if last - first < BINS:
                break
            self._widen(self._k + 1)
        counts = np.zeros(last - first + 1, np.int64)
        start = self._first - first if len(self._counts) else 0
        counts[start : start + len(self._counts)] = self._counts
        self._first, self._counts = first, counts

    def _widen(self, k: int) -> None:
        by, self._k = k - self._k, k
        if by == 0 or len(self._counts) == 0:
            return
        places = [(self._first + place) >> by for place in range(len(self._counts))]
        self._first = places[0]
        counts = np.zeros(places[-1] - places[0] + 1, np.int64)
        np.add.at(counts, [place - places[0] for place in places], self._counts)
        self._counts = counts
