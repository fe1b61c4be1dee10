"""Choose the elements that stand in for those that fail; docs/order.md specifies which."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order.exact import Ordering
from cachelayer.streams.order.permutation import MASK, mix, round_keys

GROUP = 64
"""The number of places of an epoch, one of which stands in for another."""
# No stream has so many epochs, and no split so many segments.
_EPOCH = 3 << 62


def stand_ins(order: Ordering, epoch_records: int, position: int) -> Iterator[int]:
    """Yield the records that may stand in at a global position, in the order in which they are tried.

    They are the other records of an aligned group of places of the epoch; the last group ends with the epoch. A hash of
    seed and position chooses the first, and the others follow in cyclic order.

    Args:
        order: the order of the stream.
        epoch_records: the number of positions of an epoch.
        position: the global position.
    """
    epoch, place = divmod(position, epoch_records)
    end = min(place - place % GROUP + GROUP, epoch_records)
    begin = max(0, end - GROUP)
    records = order(epoch, begin, end).tolist()
    first, second, *_ = round_keys(order.seed or 0, _EPOCH)
    start = mix(mix(position + first & MASK) ^ second) * len(records) >> 64
    others = dict.fromkeys(records[start:] + records[:start])
    del others[records[place - begin]]
    yield from others


def one(number: int) -> NDArray[np.int64]:
    return np.array([number], np.int64)
