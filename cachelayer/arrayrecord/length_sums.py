"""The running sums of the lengths of whole shards, held in memory once they cost less than reading pages of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import PAGE, Table
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Ints, splits_of

_MOST_NBYTES = 1 << 24


class HeldSums:
    """The running sums of the lengths of shards: those of as many shards as fit. Thread-safe.

    A shard's sums are held once as many pages have been read as it has. They are never let go of, so that no lengths
    are summed again and again, whichever shards come next.

    Args:
        most_nbytes: the most memory that the sums may take.
    """

    def __init__(self, most_nbytes: int = _MOST_NBYTES) -> None:
        self._left = most_nbytes
        self._held: dict[tuple[int, int], Ints] = {}
        # The pages of a shard that are still to be read before its sums are held; None if they never are.
        self._until: dict[tuple[int, int], int | None] = {}
        self._lock = ProcessLock()

    def of(self, shard: int, extra: int, pages: int, table: Table, lengths: NDArray[np.uint32]) -> Ints | None:
        """Return where each record of a shard begins, and where the last ends; None if that is not held.

        Args:
            shard: the shard.
            extra: how much longer each record is taken to be.
            pages: the number of pages that the caller reads if the sums are not held.
            table: what is known of the pages of the shard.
            lengths: the lengths of the shard.
        """
        key = shard, extra
        found = self._held.get(key)
        return self._noticed(key, pages, table, lengths) if found is None else found

    def _noticed(self, key: tuple[int, int], pages: int, table: Table, lengths: NDArray[np.uint32]) -> Ints | None:
        with self._lock:
            until = self._until.setdefault(key, len(table.checksums))
            if until is None:
                return self._held.get(key)
            if until > pages:
                self._until[key] = until - pages
                return None
            self._until[key] = None
            nbytes = (len(lengths) + 1) * np.dtype(np.int64).itemsize
            sums = _summed(table, lengths) if nbytes <= self._left else None
            if sums is None:
                return None
            if key[1]:
                sums += np.arange(len(sums)) * key[1]
            self._left -= nbytes
            self._held[key] = sums
            return sums


def _summed(table: Table, lengths: NDArray[np.uint32]) -> Ints | None:
    """Return the running sums from 0 on; None if they contradict the table: reading the damaged page raises that."""
    sums = splits_of(lengths)
    ends = np.minimum(np.arange(len(table.sums)) * PAGE, len(lengths))
    return sums if np.array_equal(sums[ends], table.sums) else None
