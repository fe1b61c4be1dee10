"""Statistics of numbers: range, mean, deviation, NaNs and distribution."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes

VALUES = 32
BINS = 32
# Bits of a float's significand, and the exponent of the smallest float: no bin is narrower than floats are.
_BITS, _NARROWEST = 52, -1074
Number = int | float


@dataclass(frozen=True)
class Histogram:
    """The counts of numbers in ranges of one width.

    Args:
        edges: where each range begins, and where the last one ends: range i is ``edges[i] <= x < edges[i + 1]``;
            text for dates and durations.
        counts: how many numbers lie in each range.
    """

    edges: tuple[Number | str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class NumberStats:
    """The statistics of a leaf of numbers. NaN, NaT and infinities count only in the first three.

    Args:
        count: how many numbers there are.
        nans, infinities: how many of these are NaN or NaT, and how many are infinite.
        minimum, maximum: the range, as text for dates and durations; None if there are no numbers.
        mean, std: the mean and the standard deviation of the population; None for dates and durations, if there are
            no numbers, and if they are too large for a float.
        values: each integer or bool with its count, in ascending order, if at most 32 differ; else None.
        histogram: None if there are no numbers.
    """

    count: int
    nans: int
    infinities: int
    minimum: Number | str | None
    maximum: Number | str | None
    mean: float | None
    std: float | None
    values: tuple[tuple[int | bool, int], ...] | None
    histogram: Histogram | None

    def bins(self) -> list[tuple[Number | str, Number | str | None, int]]:
        """Return the bars of a chart: a value with its count if few differ, else the ends of a range with its count."""
        if self.values:
            return [(value, None, count) for value, count in self.values]
        if self.histogram is None:
            return []
        edges = self.histogram.edges
        return list(zip(edges[:-1], edges[1:], self.histogram.counts, strict=True))


def are_numbers(dtype: dtypes.DType) -> bool:
    """Return whether values of a dtype have an order and a range, unlike complex numbers and strings."""
    return isinstance(dtype, np.dtype) and dtypes.number_kind(dtype) in "biufMm"


class NumberSummary:
    """Collects statistics of numbers of one dtype, batch by batch.

    The mean and the deviation of batches are combined as by Chan, Golub and LeVeque. Bins of the histogram are
    ``2**scale`` wide and begin at multiples of that, so that wider ones hold whole ones of before.

    Args:
        dtype: one for which :func:`are_numbers` is True. Floats of more than 64 bits are rounded to float64.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._kind = dtypes.number_kind(dtype)
        self._count = self._nans = self._infinities = self._finite = 0
        self._range: tuple[Number, Number] | None = None
        self._mean = self._squares = 0.0
        self._values: Counter[int] | None = Counter() if self._kind in "biu" else None
        self._scale = _NARROWEST if self._kind == "f" else 0
        self._bins: Counter[int] = Counter()

    def add(self, values: NDArray[Any]) -> None:
        """Add an array of shape ``[n]``."""
        self._count += len(values)
        if self._kind in "Mm":
            times = values[~np.isnat(values)].view(np.int64)
            self._nans += len(values) - len(times)
            self._widen(times)
            if len(times):
                self._add_bins(times, np.ones(len(times)))
        elif self._kind == "f":
            # A signaling NaN is an invalid value to convert.
            with np.errstate(over="ignore", invalid="ignore"):
                wide = values.astype(np.float64)
            finite = wide[np.isfinite(wide)]
            nans = int(np.isnan(wide).sum())
            self._nans += nans
            self._infinities += len(wide) - len(finite) - nans
            self._add(finite, np.ones(len(finite)))
        elif self._kind == "b" or self._dtype.itemsize == 1:
            small = np.int8 if self._kind == "i" else np.uint8
            counts = np.bincount(values.astype(small).view(np.uint8), minlength=256)
            distinct = np.flatnonzero(counts)
            self._add(distinct.astype(np.uint8).view(small), counts[distinct].astype(np.float64))
        else:
            self._add(values, np.ones(len(values)))

    def _add(self, values: NDArray[Any], weights: NDArray[np.float64]) -> None:
        """Add finite numbers, each as often as its weight says."""
        if len(values) == 0:
            return
        self._widen(values)
        if self._values is not None:
            distinct, inverse = np.unique(values, return_inverse=True)
            counts = np.bincount(inverse, weights).astype(np.int64)
            self._values.update(dict(zip(distinct[: VALUES + 1].tolist(), counts.tolist(), strict=False)))
            self._values = self._values if len(self._values) <= VALUES else None
        wide = values.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            self._add_moments(wide, weights)
        self._add_bins(values, weights)

    def _widen(self, values: NDArray[Any]) -> None:
        if len(values):
            low, high = values.min().item(), values.max().item()
            known = self._range or (low, high)
            self._range = min(low, known[0]), max(high, known[1])

    def _add_moments(self, wide: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        before, count = self._finite, int(weights.sum())
        self._finite += count
        mean = float(np.average(wide, weights=weights))
        apart = mean - self._mean
        self._mean += apart * count / self._finite
        self._squares += float((np.square(wide - mean) * weights).sum()) + apart * apart * before * count / self._finite

    def _add_bins(self, values: NDArray[Any], weights: NDArray[np.float64]) -> None:
        low, high = self._range or (0, 0)
        scale = self._scale
        if self._kind == "f" and (low or high):
            scale = max(scale, math.frexp(max(abs(low), abs(high)))[1] - _BITS)
        while self._place(high, scale) - self._place(low, scale) >= BINS:
            scale += 1
        merged: Counter[int] = Counter()
        for place, count in self._bins.items():
            merged[place >> (scale - self._scale)] += count
        self._scale, self._bins = scale, merged
        first = self._place(values.min().item(), scale)
        places = np.floor(np.ldexp(values, -scale)) - first if self._kind == "f" else (values >> scale) - first
        for place, count in enumerate(np.bincount(places.astype(np.int64), weights).tolist(), first):
            merged[place] += int(count)

    def _place(self, value: Number, scale: int) -> int:
        return math.floor(math.ldexp(value, -scale)) if self._kind == "f" else int(value) >> scale

    def result(self) -> NumberStats:
        minimum, maximum = (None, None) if self._range is None else map(self._shown, self._range)
        variance = self._squares / self._finite if self._finite else math.nan
        values = None
        if self._values:
            values = tuple(sorted((bool(each) if self._kind == "b" else each, n) for each, n in self._values.items()))
        return NumberStats(
            self._count,
            self._nans,
            self._infinities,
            minimum,
            maximum,
            self._mean if self._finite and math.isfinite(self._mean) else None,
            math.sqrt(variance) if math.isfinite(variance) else None,
            values,
            self._histogram(),
        )

    def _histogram(self) -> Histogram | None:
        if not self._bins:
            return None
        places = range(min(self._bins), max(self._bins) + 1)
        if self._kind != "f":
            starts = [place << self._scale for place in range(places.start, places.stop + 1)]
            is_time = self._kind in "Mm"
            # The lowest integer stands for NaT.
            edges: tuple[Number | str, ...] = tuple(
                self._shown(min(max(start, 1 - (1 << 63)), (1 << 63) - 1)) if is_time else start for start in starts
            )
        else:
            with np.errstate(over="ignore"):
                ends = np.ldexp(np.arange(places.start, places.stop + 1, dtype=np.float64), self._scale)
            edges = tuple(np.clip(ends, -sys.float_info.max, sys.float_info.max).tolist())
        return Histogram(edges, tuple(self._bins[place] for place in places))

    def _shown(self, value: Number) -> Number | str:
        if self._kind in "Mm":
            return str(dtypes.plain_scalar(np.array(value, np.int64).view(self._dtype)))
        return bool(value) if self._kind == "b" else value
