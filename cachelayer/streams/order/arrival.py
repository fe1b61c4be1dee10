"""An order of arrival: epoch 0 in the order of the source, permuted within windows; later epochs in the exact order.

::

    window 3    |0 1 2|3 4 5|6 7|       records, in the order in which the source gave them
    epoch 0      0 2 1 4 3 5 6 7        each window by itself: what comes does not depend on how many records follow
    epoch 1      5 6 1 3 0 7 4 2        the exact order
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cachelayer.arguments import explains_options, integer
from cachelayer.errors import InvalidArgumentError
from cachelayer.streams.order.orders import Order, describe
from cachelayer.streams.order.permutation import Indices, permuted_at, round_keys
from cachelayer.streams.steps import MOST_POSITIONS

_KEY = 5
"""Which of the keys of seed and epoch 0 permutes the windows."""


@explains_options
@dataclass(frozen=True)
class Arrival:
    """The window of a shuffle in the order of arrival; pass it as ``shuffle=``.

    Epoch 0 goes through the records as they are stored, window after window, and shuffles those of a window. Later
    epochs are in the exact order.

    Args:
        window: number of consecutive records that are shuffled with each other, at most 2**62.

    Raises:
        InvalidArgumentError: if it is out of range.
        InvalidTypeError: if it is not an integer.

    Examples:
        >>> letters = cachelayer.wrap("abcdefgh", identity="letters")
        >>> stream = letters.stream(shuffle=cachelayer.Arrival(window=3), seed=1, num_epochs=2)
        >>> "".join(stream)[:8], sorted("".join(stream)[8:]) == sorted("abcdefgh")
        ('acbedfgh', True)
    """

    window: int = 1024

    def __post_init__(self) -> None:
        number = integer("Arrival: window", self.window, 1)
        if number > MOST_POSITIONS:
            raise InvalidArgumentError(f"Arrival: window {number}: it must be at most 2**62")
        object.__setattr__(self, "window", number)


@dataclass(frozen=True)
class ArrivalOrder(Order):
    """The order of arrival in epoch 0, permuted within windows, and the exact order in the epochs after it."""

    records: int
    window: int
    """Number of consecutive records that are permuted among themselves."""
    seed: int
    """Key of the permutations, in [0, 2**64)."""
    reshuffle: bool = True
    """False if every epoch has the order of epoch 0."""
    shuffle: ClassVar[bool] = True

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("arrival", self, arrival={"window": self.window})

    def compute(self, epoch: int, places: Indices) -> Indices:
        if epoch and self.reshuffle:
            return permuted_at(self.records, self.seed, epoch, places)
        numbers = np.empty(len(places), np.int64)
        window_of = places // self.window
        key = round_keys(self.seed, 0)[_KEY]
        for window in np.unique(window_of).tolist():
            rows = window_of == window
            first = window * self.window
            size = min(self.window, self.records - first)
            numbers[rows] = first + permuted_at(size, key, window, places[rows] - first)
        return numbers
