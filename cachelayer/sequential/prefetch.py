"""Reading ahead in the background."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chunk:
    """Something to be read.

    Args:
        after: the position after each step of it; there may be an item less than steps.
        load: reads the items one after the other.
    """

    after: Sequence[int]
    load: Callable[[], Iterator[Any]]

    @property
    def end(self) -> int:
        """The position where the next chunk begins."""
        return self.after[-1]

    def load_into(self, items: list[Any]) -> None:
        """Read the items; where one fails, those before it are there."""
        items.extend(self.load())


# A chunk, its items up to the first that failed, and the error.
Loaded = tuple[Chunk, list[Any], BaseException | None]


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
        # Each with the position that it was planned from, and the items that its future fills in.
        self._pending: deque[tuple[int, Chunk, list[Any], Future[None]]] = deque()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._position = 0

    def go_to(self, position: int) -> None:
        """Go on from a position; what was read ahead is dropped."""
        self._notice_fork()
        for *_, future in self._pending:
            future.cancel()
        self._pending.clear()
        self._position = position

    def next_chunk(self) -> Loaded | None:
        """The next chunk; None at the end. After one that failed, say with :meth:`go_to` where to go on."""
        if self._depth == 0:
            return self._load_here()
        self._notice_fork()
        self._read_ahead()
        if not self._pending:
            return None
        self._help()
        _, chunk, items, future = self._pending.popleft()
        failure = future.exception()
        if failure is None:
            self._read_ahead()
        return chunk, items, failure

    def _load_here(self) -> Loaded | None:
        chunk = self._plan(self._position)
        if chunk is None:
            return None
        items: list[Any] = []
        try:
            chunk.load_into(items)
        except Exception as error:  # noqa: BLE001 - raised in its place, after these items
            return chunk, items, error
        self._position = chunk.end
        return chunk, items, None

    def _read_ahead(self) -> None:
        while len(self._pending) < self._depth:
            chunk = self._plan(self._position)
            if chunk is None:
                return
            items: list[Any] = []
            self._pending.append((self._position, chunk, items, self._threads().submit(chunk.load_into, items)))
            self._position = chunk.end

    def _help(self) -> None:
        """Rather than wait for the next chunk, load some that the thread has not come to."""
        for place, (position, chunk, items, future) in enumerate(self._pending):
            if self._pending[0][3].done():
                return
            if not future.cancel():
                continue
            here: Future[None] = Future()
            try:
                chunk.load_into(items)
                here.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised in its place, after these items
                here.set_exception(error)
            except BaseException:
                self.go_to(self._pending[0][0])
                raise
            self._pending[place] = position, chunk, items, here

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "cachelayer-prefetch")
            weakref.finalize(self, self._executor.shutdown, wait=False, cancel_futures=True)
        return self._executor

    def _notice_fork(self) -> None:
        """The parent's thread does not exist in a child, so what it was to load never comes."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._executor = None
        if self._pending:
            self._position = self._pending[0][0]
            self._pending.clear()
