"""The order of a weighted sample: at each position a record that is drawn by its weight, with replacement.

Version 4 of the order, which docs/order.md specifies. It never changes under its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.streams.alias_table import drawn
from cachelayer.streams.order import Draws, Order
from cachelayer.streams.permutation import mixed, round_keys
from cachelayer.streams.steps import MOST_POSITIONS

SAMPLED_ORDER_VERSION = 4
# No stream has so many epochs, and neither splits nor mixtures use this one.
_EPOCH = (1 << 63) - 1
# Draws that are made at a time, and how many times as many are kept.
_BLOCK = 1 << 13
_BLOCKS = 64

Indices = NDArray[np.int64]


class WeightTable(Protocol):
    """The alias table of the records. Picklable."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def digest(self) -> str:
        """SHA-256 of the columns as little-endian int64, in hexadecimal."""

    @property
    def columns(self) -> Indices:
        """The table; see :func:`cachelayer.streams.alias_table.alias_table`."""


@dataclass(frozen=True, kw_only=True)
class SampledOrder(Order):
    """The records of a weighted sample: an :class:`~cachelayer.streams.order.Ordering` without an end.

    Args:
        weights: the digest of the table.
        table: draws the records.
    """

    weights: str
    table: WeightTable = field(compare=False)
    shuffle: bool = True
    seed: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: self.__dict__[each.name] for each in fields(self)}

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of the order."""
        return {"version": SAMPLED_ORDER_VERSION, "seed": self.seed, "weights": self.weights}

    @cached_property
    def _block(self) -> Callable[[int], Indices]:
        """Returns a block of draws by its number; some are kept, because the next batch usually lies in the same."""
        return lru_cache(_BLOCKS)(self._drawn_block)

    def _drawn_block(self, number: int) -> Indices:
        block = self._drawn(np.arange(number * _BLOCK, (number + 1) * _BLOCK))
        block.setflags(write=False)
        return block

    def __call__(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the record numbers at positions ``start`` to ``stop``: int64 of shape ``[stop - start]``."""
        position, last = epoch * MOST_POSITIONS + start, epoch * MOST_POSITIONS + stop
        found = [np.empty(0, np.int64)]
        while position < last:
            number, offset = divmod(position, _BLOCK)
            found.append(self._block(number)[offset : offset + last - position])
            position += len(found[-1])
        return np.concatenate(found)

    def at(self, epoch: int, places: Indices) -> Indices:
        """Return the record numbers at positions."""
        return self._drawn(places + epoch * MOST_POSITIONS)

    def stand_ins(self, epoch: int, places: Indices, draws: Draws) -> Indices:  # noqa: ARG002
        """Return for each position a record that its word draws by the weights: one of weight 0 never comes."""
        return self._of_words(np.array(draws.words, np.uint64))

    def _drawn(self, positions: Indices) -> Indices:
        first, second = self._keys
        return self._of_words(mixed(mixed(positions.view(np.uint64) + np.uint64(first)) ^ np.uint64(second)))

    def _of_words(self, words: NDArray[np.uint64]) -> Indices:
        records = drawn(self.table.columns, self.records, words)
        if len(records) and int(records.view(np.uint64).max()) >= self.records:
            raise CorruptionError(
                f"{self.table.name}: it names a record that does not exist: delete it to have it anew"
            )
        return records

    @cached_property
    def _keys(self) -> Sequence[int]:
        return round_keys(self.seed, _EPOCH)[:2]
