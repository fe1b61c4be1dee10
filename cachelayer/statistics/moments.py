"""Mean and standard deviation in one pass, for numbers of any magnitude."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
