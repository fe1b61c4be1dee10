"""Decide where one shard ends and the next begins, from the sizes of records alone.

So equal records have equal cuts on every host, with any compression and in batches of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cachelayer.records.memory import Ints

DEFAULT_SHARD_BYTES = 256 << 20

RECORD_OVERHEAD = 64
"""Bytes added to the size of each record: about what it takes besides in an ArrayRecord file and its index."""


@dataclass
class ShardCutter:
    """Cuts a sequence of records into shards of at most ``shard_nbytes``, but at least one record.

    Args:
        shard_nbytes: the most bytes of a shard's records, with their overhead.
    """

    shard_nbytes: int
    _filled: int = 0

    def cut(self, lengths: Ints) -> Iterator[tuple[bool, slice]]:
        """Cut a batch of records of these lengths: yield for each piece whether it begins a shard, and its rows."""
        ends = np.cumsum(lengths + RECORD_OVERHEAD)
        start = 0
        while start < len(lengths):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + self.shard_nbytes - self._filled, side="right"))
            begins = self._filled == 0
            if stop <= start:
                if not begins:
                    self._filled = 0
                    continue
                stop = start + 1
            self._filled += int(ends[stop - 1]) - before
            yield begins, slice(start, stop)
            if stop < len(lengths):
                self._filled = 0
            start = stop
