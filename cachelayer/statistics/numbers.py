"""Statistics of numbers: range, mean, deviation, NaNs and distribution."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes

VALUES = 32
# Integers whose range is smaller than this are counted in a table.
_CLOSE = 1 << 16


@dataclass(frozen=True)
class NumberStats:
    """The statistics of a leaf of numbers. NaN, NaT and infinities count only in the first three.

    Args:
        count: how many numbers there are.
        nans, infinities: how many of these are NaN or NaT, and how many are infinite.
        minimum, maximum: the range, as text for dates and durations; None if there are no numbers.
        mean, std: the mean and the standard deviation of the population; None for dates and durations.
        values: each integer or bool with its count, in ascending order, if at most 32 differ; else None.
        histogram: None for dates and durations, and if there are no numbers.
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


def are_numbers(dtype: dtypes.DType) -> bool:
    """Return whether values of a dtype have an order and a range, unlike complex numbers and strings."""
    return isinstance(dtype, np.dtype) and dtypes.number_kind(dtype) in "biufMm"


class NumberSummary:
    """Collects statistics of numbers of one dtype, batch by batch.

    Args:
        dtype: one for which :func:`are_numbers` is True. Floats of more than 64 bits are rounded to float64.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._kind = dtypes.number_kind(dtype)
        self._is_small = self._kind == "b" or (self._kind in "iu" and dtype.itemsize == 1)
        self._table = np.zeros(256, np.int64)
        self._count = self._nans = self._infinities = 0
        self._range: tuple[Number, Number] | None = None
        self._values: Counter[int] | None = Counter() if self._kind in "biu" else None
        self._moments = Moments()
        self._histogram = GrowingHistogram(whole=self._kind != "f")

    def add(self, values: NDArray[Any]) -> None:
        """Add an array of shape ``[n]``."""
        self._count += len(values)
        if self._is_small:
            self._table += np.bincount(_small(values, self._kind).view(np.uint8), minlength=256)
        elif self._kind in "Mm":
            self._nans += int(np.isnat(values).sum())
            self._widen(values[~np.isnat(values)].view(np.int64))
        elif self._kind == "f":
            self._add_floats(values)
        else:
            self._add(values)

    def _add_floats(self, values: NDArray[Any]) -> None:
        with np.errstate(over="ignore"):
            wide = values.astype(np.float64)
        finite = np.isfinite(wide)
        if not finite.all():
            nans = int(np.isnan(wide).sum())
            self._nans += nans
            self._infinities += len(wide) - int(finite.sum()) - nans
            wide = wide[finite]
        self._add(wide)

    def _add(self, values: NDArray[Any], weights: NDArray[np.int64] | None = None) -> None:
        if len(values) == 0:
            return
        self._widen(values)
        if self._values is not None:
            self._values.update(_counted(values, weights))
            if len(self._values) > VALUES:
                self._values = None
        self._moments.add(values.astype(np.float64), weights)
        self._histogram.add(values, weights)

    def _widen(self, values: NDArray[Any]) -> None:
        if len(values):
            low, high = values.min().item(), values.max().item()
            known = self._range or (low, high)
            self._range = min(low, known[0]), max(high, known[1])

    def result(self) -> NumberStats:
        """Return the statistics. Nothing may be added afterwards."""
        if self._is_small:
            seen = np.flatnonzero(self._table)
            signed = seen.astype(np.uint8).view(np.int8 if self._kind == "i" else np.uint8)
            self._add(signed.astype(np.int64), self._table[seen])
        minimum, maximum = (None, None) if self._range is None else map(self._shown, self._range)
        values = None
        if self._values:
            values = tuple(
                (bool(value) if self._kind == "b" else value, self._values[value]) for value in sorted(self._values)
            )
        return NumberStats(
            self._count,
            self._nans,
            self._infinities,
            minimum,
            maximum,
            self._moments.mean,
            self._moments.std,
            values,
            self._histogram.result(),
        )

    def _shown(self, value: Number) -> Number | str:
        if self._kind == "b":
            return bool(value)
        if self._kind not in "Mm":
            return value
        has_unit = np.datetime_data(self._dtype)[0] != "generic"
        return str(np.int64(value).view(self._dtype)) if has_unit else str(value)


def _small(values: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return bools, or integers of at most 8 bits, as integers of one byte each."""
    return np.ascontiguousarray(values.astype(np.int8 if kind == "i" else np.uint8))


def _counted(values: NDArray[Any], weights: NDArray[np.int64] | None) -> dict[int, int]:
    """Return the count of each integer, or of ``VALUES + 1`` of them if more differ."""
    if weights is not None:
        return dict(zip(values.tolist(), weights.tolist(), strict=True))
    low, high = values.min().item(), values.max().item()
    if high - low < _CLOSE and values.dtype.itemsize > 2:
        table = np.bincount((values - low).astype(np.int64))
        seen = np.flatnonzero(table)[: VALUES + 1]
        return {low + place: count for place, count in zip(seen.tolist(), table[seen].tolist(), strict=True)}
    different, counts = np.unique(values, return_counts=True)
    return dict(zip(different[: VALUES + 1].tolist(), counts[: VALUES + 1].tolist(), strict=True))


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


Floats = NDArray[np.float64]


class Moments:
    """The mean and standard deviation of all values that were added.

    Each batch is scaled to [-1, 1] and centred, and batches are combined in exact arithmetic. So nothing overflows, and
    no precision is lost if the mean is much larger than the deviation.
    """

    def __init__(self) -> None:
        self._count = 0
        self._sum = Fraction(0)
        self._means_squared = Fraction(0)
        self._within = Fraction(0)

    def add(self, values: NDArray[Any], weights: NDArray[np.int64] | None = None) -> None:
        """Add finite numbers, float64 ``[n]``, each as often as its weight says; once by default."""
        count = len(values) if weights is None else int(weights.sum())
        if count == 0:
            return
        exponent = math.frexp(max(abs(float(values.max())), abs(float(values.min()))))[1]
        scaled = np.ldexp(values, -exponent)
        middle = float(np.average(scaled, weights=weights))
        scaled -= middle
        np.square(scaled, out=scaled)
        unit = Fraction(2) ** exponent
        mean = Fraction(middle) * unit
        self._count += count
        self._sum += mean * count
        self._means_squared += mean**2 * count
        self._within += Fraction(float(np.average(scaled, weights=weights))) * count * unit**2

    @property
    def mean(self) -> float | None:
        """The mean; None if there are no values."""
        return float(self._sum / self._count) if self._count else None

    @property
    def std(self) -> float | None:
        """The standard deviation of the population; None if there are no values."""
        if not self._count:
            return None
        between = self._means_squared - self._sum**2 / self._count
        return _root((self._within + between) / self._count)


def _root(number: Fraction) -> float:
    """Return the square root of a number that may be out of range for a float."""
    if number <= 0:
        return 0.0
    half = (number.numerator.bit_length() - number.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(number / Fraction(4) ** half), half)
