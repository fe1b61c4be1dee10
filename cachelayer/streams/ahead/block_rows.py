"""Rows of steps, and the fetched blocks in which their records lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.protocols import BlockHolder, HeldBlock, RecordReads

Indices = NDArray[np.int64]


# With slots, because the steps look at hundreds of these that are no longer in the cache of the processor.
@dataclass(frozen=True, eq=False, slots=True)
class Fetch:
    """A request of blocks that is under way or has been answered.

    Args:
        outcome: what a thread makes of it.
        again: fetches the same blocks.
    """

    outcome: Future[HeldBlock]
    again: Callable[[], HeldBlock]

    def block(self, check: Callable[[], None]) -> HeldBlock:
        """Wait for the block, and return it; call ``check`` during the wait."""
        while not self.outcome.done():
            # Nobody may fetch it any more.
            check()
            wait([self.outcome], 0.2)
        # Another thread that shares the iterator may have gone elsewhere.
        return self.again() if self.outcome.cancelled() else self.outcome.result()


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The rows of some steps, and the blocks in which their records lie.

    Args:
        holder: what fetched the blocks.
        fetches: the requests of the blocks, each of some row.
        owner: for each row, the request that brings its block.
        shift: for each row, what to add to the number of its record for its row in there.
    """

    holder: BlockHolder[Any]
    fetches: Sequence[Fetch]
    owner: Indices
    shift: Indices

    def __getitem__(self, rows: slice) -> BlockRows:
        used, owner = np.unique(self.owner[rows], return_inverse=True)
        return BlockRows(self.holder, [self.fetches[each] for each in used.tolist()], owner, self.shift[rows])

    def reads(self, numbers: Indices, check: Callable[[], None]) -> RecordReads[Any]:
        """Wait for the blocks, and return what reads some records.

        Args:
            numbers: the number of the record of each row.
            check: called during the wait; raises if nobody waits any longer.
        """
        blocks = [fetch.block(check) for fetch in self.fetches]
        if True in [block.damaged for block in blocks]:
            # The object may have been mended since.
            blocks = [
                fetch.again() if block.damaged else block for fetch, block in zip(self.fetches, blocks, strict=True)
            ]
        return self.holder.reads(blocks, self.owner, numbers + self.shift)


def joined(parts: Sequence[BlockRows]) -> BlockRows:
    """Return the rows of several steps as those of one."""
    if len(parts) == 1:
        return parts[0]
    fetches = [fetch for part in parts for fetch in part.fetches]
    firsts = np.cumsum([0, *(len(part.fetches) for part in parts)])
    owner = np.concatenate([part.owner + first for part, first in zip(parts, firsts.tolist(), strict=False)])
    return BlockRows(parts[0].holder, fetches, owner, np.concatenate([part.shift for part in parts]))
