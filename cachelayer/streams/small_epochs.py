"""The orders of many epochs of few records at once, as a mixture reads a small part that comes round often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order import Order
from cachelayer.streams.permutation import epoch_hashes

_MOST_RECORDS = 1 << 11


def are_small(order: Order, places: int) -> bool:
    """Return whether so many places in a row hold several epochs that are best computed at once."""
    return order.records <= min(_MOST_RECORDS, places // 2)


def across_epochs(order: Order, start: int, stop: int) -> NDArray[np.int64]:
    """Return the record numbers at places ``start`` to ``stop``, counted through all epochs of few records."""
    first, skipped = divmod(start, order.records)
    epochs = -(-stop // order.records) - first
    if not order.shuffle or not order.reshuffle:
        found = np.tile(order(0, 0, order.records), epochs)
    else:
        # Few records are sorted by their hashes; of equal ones, the lower number comes first.
        hashes = epoch_hashes(order.records, order.seed or 0, np.arange(first, first + epochs))
        found = np.argsort(hashes, axis=1, kind="stable").reshape(-1)
    return found[skipped : skipped + stop - start]
