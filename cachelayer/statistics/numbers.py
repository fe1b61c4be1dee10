"""Statistics of numbers: range, mean, standard deviation, NaNs and distribution."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.specs import dtypes

VALUES = 32
"""How many distinct integers are counted one by one at most."""
BINS = 32
"""How many bins a histogram has at most."""
_BITS = 52
"""The bits of a float's significand."""
_NARROWEST = -1074
"""The exponent of the smallest float: no bin is narrower."""
Number = int | float


@dataclass(frozen=True)
class Histogram:
    """The counts of numbers in bins of equal width."""

    edges: tuple[Number | str, ...]
    """Bin i has the numbers ``edges[i] <= x < edges[i + 1]``; texts for dates and durations."""
    counts: tuple[int, ...]
    """How many numbers lie in each bin."""


@dataclass(frozen=True)
class NumberStats:
    """The statistics of a leaf of numbers. All but the first three are those of the finite numbers."""

    count: int
    """How many numbers there are."""
    nans: int
    """How many of these are NaN or NaT."""
    infinities: int
    """How many of these are infinite."""
    minimum: Number | str | None
    """The smallest; a text for dates and durations, None if there is no number."""
    maximum: Number | str | None
    """The largest, in the same form."""
    mean: float | None
    """The mean; None for dates and durations, if there is no number, and if it is too large for a float."""
    std: float | None
    """The standard deviation of the population, if there is a mean."""
    values: tuple[tuple[int | bool, int], ...] | None
    """Each integer or bool with its count, in ascending order, if at most 32 differ; else None."""
    histogram: Histogram | None
    """None if there is no number."""


def are_numbers(dtype: dtypes.DType) -> bool:
    """Return whether values of a dtype have an order and a range, unlike complex numbers and strings."""
    return dtypes.number_kind(np.dtype(dtype)) in "biufMm"


class NumberSummary:
    """Collects statistics of numbers of one dtype, batch by batch.

    The means and deviations of batches are combined as Chan, Golub and LeVeque do. The bins of the histogram are
    ``2**scale`` wide and begin at multiples of that. When a batch needs wider bins, two old bins make a new one::

        scale 0   [0 1)[1 2)[2 3)[3 4)
        scale 1   [0      2)[2      4)[4      6)

    Floats of more than 64 bits are rounded to float64.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._kind = dtypes.number_kind(dtype)
        self._count = self._nans = self._finite = 0
        self._range: tuple[Number, Number] | None = None
        self._mean = self._squares = 0.0
        self._values: Counter[int] | None = Counter() if self._kind in "biu" else None
        self.record_of_largest: int | None = None
        """The number of the first record with the largest number, if the numbers came with those of their records."""
        self._scale = _NARROWEST if self._kind == "f" else 0
        self._bins: Counter[int] = Counter()

    def add(self, values: NDArray[Any], records: NDArray[np.int64] | None = None) -> None:
        """Add an array of shape ``[n]``, perhaps with the numbers of their records."""
        self._count += len(values)
        if records is not None and len(values) and (self._range is None or values.max() > self._range[1]):
            self.record_of_largest = int(records[values.argmax()])
        # NumPy would warn of signaling NaNs, and of floats of 128 bits that are too large.
        with np.errstate(over="ignore", invalid="ignore"):
            if self._kind == "f":
                values = values.astype(np.float64)
            if self._kind in "fMm":
                self._nans += int(np.isnan(values).sum())
                values = values[np.isfinite(values)]
            if len(values):
                self._add_finite(*_counted(values.view(np.int64) if self._kind in "Mm" else values, self._kind))

    def _add_finite(self, values: NDArray[Any], counts: NDArray[Any]) -> None:
        """Add distinct finite numbers with their counts."""
        low = values.min().item()
        high = values.max().item()
        if self._range is not None:
            low = min(low, self._range[0])
            high = max(high, self._range[1])
        self._range = (low, high)
        self._add_moments(values.astype(np.float64), counts)
        self._add_bins(values, counts)
        if self._values is not None:
            self._values.update(dict(zip(values[: VALUES + 1].tolist(), counts.tolist(), strict=False)))
            self._values = self._values if len(self._values) <= VALUES else None

    def _add_moments(self, values: NDArray[np.float64], counts: NDArray[Any]) -> None:
        before = self._finite
        count = int(counts.sum())
        self._finite += count
        mean = float(np.average(values, weights=counts))
        difference = mean - self._mean
        self._mean += difference * count / self._finite
        squares = float((np.square(values - mean) * counts).sum())
        self._squares += squares + difference * difference * before * count / self._finite

    def _add_bins(self, values: NDArray[Any], counts: NDArray[Any]) -> None:
        """Widen the bins until at most ``BINS`` hold all numbers so far, then count the numbers of this batch.

        Bins of floats are so wide that the number of a bin fits into the 52 bits of a significand.
        """
        low, high = self._range or (0, 0)
        scale = self._scale
        if self._kind == "f" and (low or high):
            scale = max(scale, math.frexp(max(abs(low), abs(high)))[1] - _BITS)
        while self._place(high, scale) - self._place(low, scale) >= BINS:
            scale += 1
        bins: Counter[int] = Counter()
        for place, count in self._bins.items():
            bins[place >> (scale - self._scale)] += count
        first = self._place(low, scale)
        places = np.floor(np.ldexp(values, -scale)) - first if self._kind == "f" else (values >> scale) - first
        for place, count in enumerate(np.bincount(places.astype(np.int64), counts).tolist(), first):
            bins[place] += int(count)
        self._scale = scale
        self._bins = bins

    def _place(self, value: Number, scale: int) -> int:
        return math.floor(math.ldexp(value, -scale)) if self._kind == "f" else int(value) >> scale

    def result(self) -> NumberStats:
        has_mean = self._finite > 0 and self._kind not in "Mm"
        variance = self._squares / self._finite if has_mean else math.nan
        low = None if self._range is None else self._shown(self._range[0])
        high = None if self._range is None else self._shown(self._range[1])
        values = [(self._shown(value), count) for value, count in sorted((self._values or {}).items())]
        return NumberStats(
            self._count,
            self._nans,
            self._count - self._nans - self._finite,
            low,
            high,
            self._mean if has_mean and math.isfinite(self._mean) else None,
            math.sqrt(variance) if math.isfinite(variance) else None,
            tuple(values) or None,
            self._histogram() if self._range else None,
        )

    def _histogram(self) -> Histogram:
        places = range(min(self._bins), max(self._bins) + 1)
        edges = [self._edge(place) for place in (*places, places.stop)]
        return Histogram(tuple(edges), tuple(self._bins[place] for place in places))

    def _edge(self, place: int) -> Number | str:
        if self._kind == "f":
            most = sys.float_info.max
            with np.errstate(over="ignore"):
                return float(np.clip(np.ldexp(float(place), self._scale), -most, most))
        edge = place << self._scale
        # The lowest integer of 64 bits stands for NaT, and is no edge.
        return self._shown(min(max(edge, 1 - (1 << 63)), (1 << 63) - 1)) if self._kind in "Mm" else edge

    def _shown(self, value: Number) -> Any:
        if self._kind in "Mm":
            return str(dtypes.plain_scalar(np.array(value, np.int64).view(self._dtype)))
        return bool(value) if self._kind == "b" else value


def _counted(values: NDArray[Any], kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct values, ascending, with their counts; floats, which seldom repeat, each with a count of 1."""
    if kind == "f":
        return values, np.ones(len(values))
    if values.dtype.itemsize > 1:
        return np.unique(values, return_counts=True)
    small = np.int8 if kind == "i" else np.uint8
    counts = np.bincount(values.astype(small).view(np.uint8), minlength=256)
    distinct = np.flatnonzero(counts)
    return distinct.astype(np.uint8).view(small), counts[distinct]
