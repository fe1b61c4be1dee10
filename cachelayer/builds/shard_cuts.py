"""Where one shard ends and the next begins: a function of the sizes of records alone.

So the same records get the same cuts on every host, with any compression, however they are batched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cachelayer.records.memory import Ints

RECORD_OVERHEAD = 64
"""Bytes that a record is counted with beside its own: about what it takes in an ArrayRecord file and its index."""


@dataclass
class ShardCutter:
    """Cuts a sequence of records into shards of at most ``shard_nbytes``, and of one record at least.

    Args:
        shard_nbytes: bytes of records, and their overhead, in a shard.
    """

    shard_nbytes: int
    _filled: int = 0

    def cut(self, lengths: Ints) -> Iterator[tuple[bool, slice]]:
        """Yield the pieces of a batch of records of these lengths: whether a new shard begins with it, and its rows."""
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
