"""Reading ahead in the background."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chunk:
    """Something to be read.

    Args:
        begin: the position where it begins.
        end: the position where the next chunk begins.
        after: the position after each item.
        load: reads the items; called once, in another thread.
    """

    begin: int
    end: int
    after: Sequence[int]
    load: Callable[[], list[Any]]


class Prefetcher:
    """Loads chunks in order, some of them ahead, in one thread that ends with it.

    The thread works off a bounded number of loads and waits for nothing else, so that neither a dropped iterator nor
    the end of the interpreter leaves it hanging. After a fork the child goes on with a thread of its own.

    Args:
        plan: the chunk at a position, None at the end; called in the caller's thread.
        depth: number of chunks ahead; 0 loads in the caller's thread.
    """

    def __init__(self, plan: Callable[[int], Chunk | None], depth: int) -> None:
        self._plan = plan
        self._depth = depth
        self._pending: deque[tuple[Chunk, Future[list[Any]]]] = deque()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._position = 0

    def go_to(self, position: int) -> None:
        """Go on from a position; what was read ahead is dropped."""
        for _, future in self._pending:
            future.cancel()
        self._pending.clear()
        self._position = position

    def next_chunk(self) -> tuple[Chunk, list[Any]] | None:
        """The next chunk and its items; None at the end.

        Raises:
            Exception: what loading raised; the chunk is loaded again on the next call.
        """
        if self._depth == 0:
            chunk = self._plan(self._position)
            if chunk is None:
                return None
            items = chunk.load()
            self._position = chunk.end
            return chunk, items
        if self._pid != os.getpid():
            self._forget_parent()
        self._read_ahead()
        if not self._pending:
            return None
        chunk, future = self._pending[0]
        try:
            items = future.result()
        except Exception:
            self.go_to(chunk.begin)
            raise
        self._pending.popleft()
        self._read_ahead()
        return chunk, items

    def _read_ahead(self) -> None:
        while len(self._pending) < self._depth:
            chunk = self._plan(self._position)
            if chunk is None:
                return
            self._pending.append((chunk, self._threads().submit(chunk.load)))
            self._position = chunk.end

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "cachelayer-prefetch")
            weakref.finalize(self, self._executor.shutdown, wait=False, cancel_futures=True)
        return self._executor

    def _forget_parent(self) -> None:
        """The threads of the parent do not exist here, so what they were to load never comes."""
        self._pid = os.getpid()
        self._executor = None
        if self._pending:
            self._position = self._pending[0][0].begin
            self._pending.clear()
