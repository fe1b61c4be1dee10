"""Statistics of numbers: range, mean, deviation, NaNs and distribution."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.statistics.histogram import GrowingHistogram, Histogram, Number
from cachelayer.statistics.moments import Moments

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
