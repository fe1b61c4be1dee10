"""What is told of numbers: range, mean, deviation, NaNs, and how they are distributed."""

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
# Integers that lie so close together are counted in a table.
_CLOSE = 1 << 16


@dataclass(frozen=True)
class NumberStats:
    """Numbers of a leaf. NaN, NaT and the infinities are counted, and left out of all else.

    Args:
        count: how many numbers there are, all told.
        nans, infinities: how many of these are NaN (or NaT), and infinite.
        minimum, maximum: the range; None where there is no number. Dates and durations as text.
        mean, std: mean and standard deviation of the population; None for dates and durations.
        values: each integer or bool with how often it came, in ascending order, where there are few different ones.
        histogram: None for dates and durations, and where there is no number.
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
    """Whether values of a dtype have an order and a range: complex numbers and strings have none."""
    return isinstance(dtype, np.dtype) and dtypes.number_kind(dtype) in "biufMm"


class NumberSummary:
    """Numbers of one dtype, batch by batch.

    Args:
        dtype: any for which :func:`are_numbers` is true. Floats of more than 64 bits are taken as float64.
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
        """Take in an array of shape ``[n]``."""
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
        """What was found. Nothing can be added after it."""
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
    """Integers of 8 bits or less, and bools, as bytes of their own."""
    return np.ascontiguousarray(values.astype(np.int8 if kind == "i" else np.uint8))


def _counted(values: NDArray[Any], weights: NDArray[np.int64] | None) -> dict[int, int]:
    """How often each integer came, or some of them where they are more than ``VALUES``."""
    if weights is not None:
        return dict(zip(values.tolist(), weights.tolist(), strict=True))
    low, high = values.min().item(), values.max().item()
    if high - low < _CLOSE and values.dtype.itemsize > 2:
        table = np.bincount((values - low).astype(np.int64))
        seen = np.flatnonzero(table)[: VALUES + 1]
        return {low + place: count for place, count in zip(seen.tolist(), table[seen].tolist(), strict=True)}
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found[: VALUES + 1].tolist(), counts[: VALUES + 1].tolist(), strict=True))
