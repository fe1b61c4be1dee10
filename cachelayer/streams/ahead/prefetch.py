"""Read ahead in the background: a queue of futures of a thread or two."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Generic

from cachelayer.protocols import T
from cachelayer.streams.ahead.background import Background
from cachelayer.streams.ahead.block_plan import Chunk, ReadPlan

_QUICK_SECONDS = 0.01


class Prefetcher(Generic[T]):
    """Reads blocks, some of them ahead, in threads that end with this object. For one caller at a time.

    A caller asks for a block by its position. If it asks again it gets the same block, so a caller that was interrupted
    asks again and loses nothing. A forked child continues with its own threads.

    Args:
        plan: plans the block at a position, with at most a number of items; returns None at the end. Called in the
            caller's thread.
        depth: number of blocks ahead; 0 reads in the caller's thread.
        sizes: the fewest and the most items of a block. The first block has few: nobody who begins waits for later
            items. The next ones have twice as many each time, while a block takes no longer than 10 ms.
        threads: number of blocks that are read at once.
        reached: called with the position that the caller has reached, before anything is planned.
    """

    def __init__(
        self,
        plan: Callable[[int, int], ReadPlan[T] | None],
        depth: int,
        sizes: tuple[int, int],
        threads: int = 1,
        reached: Callable[[int], None] | None = None,
    ) -> None:
        self._plan = plan
        self._depth = depth
        self._first_size, self._most = sizes
        self._size = self._first_size
        self._threads = threads
        self._reached = reached
        self._ahead: deque[tuple[ReadPlan[T], Future[Chunk[T]]]] = deque()
        self._background: Background | None = None
        self._pid = os.getpid()

    def forget(self) -> None:
        """Drop what was read ahead."""
        while self._ahead:
            self._ahead.pop()[1].cancel()

    def block(self, position: int) -> Chunk[T] | None:
        """Return the block at a position; None at the end."""
        if self._pid != os.getpid():
            # The parent's threads do not exist here, so their blocks would never come.
            self._background, self._pid = None, os.getpid()
            self._ahead.clear()
        if self._reached is not None:
            self._reached(position)
        if self._depth == 0:
            plan = self._plan(position, self._size)
            return None if plan is None else self._measured(plan.load())
        while self._ahead and self._ahead[0][0].begin != position:
            self._ahead.popleft()[1].cancel()
        # The block that is waited for comes first.
        if not self._ahead and not self._submit(position, self._first_size):
            return None
        self._fill()
        try:
            return self._measured(self._ahead[0][1].result())
        except CancelledError:
            # The program ends, or another thread called forget().
            self.forget()
            return Chunk(position)

    def _measured(self, block: Chunk[T]) -> Chunk[T]:
        if block.seconds < _QUICK_SECONDS:
            self._size = min(2 * self._size, self._most)
        return block

    def _fill(self) -> None:
        while len(self._ahead) <= self._depth and self._submit(self._ahead[-1][0].end, self._size):
            pass

    def _submit(self, position: int, size: int) -> bool:
        """Have the block at a position read; return False at the end."""
        plan = self._plan(position, size)
        if plan is None:
            return False
        if self._background is None:
            self._background = Background("cachelayer-prefetch", self._threads)
            weakref.finalize(self, self._background.close)
        self._ahead.append((plan, self._background.submit(partial(plan.load, self._background.closed))))
        return True
