"""An order in blocks that is simple to understand: windows of blocks one after another, each shuffled whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cachelayer.streams.order.exact import BlockSpans
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
    def _epoch(self, epoch: int) -> tuple[Indices, BlockSpans]:
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
        return numbers, BlockSpans(begin, end, lasts[begin])

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        return self.at(epoch, np.arange(start, stop))

    def at(self, epoch: int, places: Indices) -> Indices:
        return self._epoch(epoch)[0][places]

    @property
    def described(self) -> Mapping[str, Any]:
        return {"version": 0, "seed": self.seed, "shuffle": True, "reshuffle": True}

    def ranks(self, epoch: int, start: int, stop: int) -> None:
        return None

    def arranged(self, epoch: int, start: int, stop: int) -> None:
        return None

    def blocks(self, epoch: int, start: int, stop: int) -> BlockSpans:
        return self.blocks_at(epoch, np.arange(start, stop))

    def blocks_at(self, epoch: int, places: Indices) -> BlockSpans:
        spans = self._epoch(epoch)[1]
        return BlockSpans(spans.begin[places], spans.end[places], spans.last[places])
