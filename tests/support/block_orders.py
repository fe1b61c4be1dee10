"""An order in blocks that is simple to understand: windows of blocks one after another, each shuffled whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cachelayer.streams.order.orders import Edges, Places, Spans, describe
from cachelayer.streams.order.permutation import Indices


@dataclass(frozen=True)
class WindowOrder:
    """Blocks in a permuted order, and records shuffled over ``window`` blocks; a rest comes last, alone."""

    records: int
    block: int
    window: int
    seed: int = 0
    shuffle: bool = True
    reshuffle: bool = True

    @lru_cache(16)  # noqa: B019
    def _epoch(self, epoch: int) -> tuple[Indices, Indices]:
        """The record numbers, and the begins, ends and last places of their blocks."""
        rng = np.random.default_rng([self.seed, epoch])
        whole = self.records // self.block * self.block
        blocks = rng.permutation(whole // self.block)
        numbers = (blocks[:, None] * self.block + np.arange(self.block)).reshape(-1)
        for start in range(0, whole, self.block * self.window):
            rng.shuffle(numbers[start : start + self.block * self.window])
        numbers = np.concatenate([numbers, whole + rng.permutation(self.records - whole)])
        begin = np.where(numbers < whole, numbers // self.block * self.block, numbers)
        end = np.where(numbers < whole, begin + self.block, numbers + 1)
        lasts = np.zeros(self.records, np.int64)
        np.maximum.at(lasts, begin, np.arange(self.records))
        return numbers, np.stack([begin, end, lasts[begin]])

    def at(self, epoch: int, places: Places) -> Indices:
        return self._epoch(epoch)[0][np.asarray(places)]

    def spans(self, epoch: int, places: Indices) -> Spans:
        return Spans(np.zeros(len(places), np.int64), lambda: Edges(*self._epoch(epoch)[1][:, places]))

    @property
    def described(self) -> Mapping[str, Any]:
        return describe("windows", 0, self)
