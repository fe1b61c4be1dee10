"""Read ahead in the background: a queue of futures of a thread or two."""

from __future__ import annotations

import os
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Generic

from cachelayer.protocols import T
from cachelayer.streams.ahead.background import Background
from cachelayer.streams.ahead.block_feed import feed_of
from cachelayer.streams.ahead.chunks import Chunk, ChunkPlan, steps_at_once
from cachelayer.streams.reading.step_reader import StepReader


class Prefetcher(Generic[T]):
    """Reads the chunks of a stream, some of them ahead, in threads that end with this object. For one caller at a time.

    A caller asks for a chunk by its position. If it asks again it gets the same chunk, so a caller that was interrupted
    asks again and loses nothing. A forked child continues with its own threads.

    Args:
        reader: reads the steps. ``prefetch`` of its options is the number of chunks ahead; 0 reads in the caller's
            thread.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._depth = reader.options.prefetch
        self._steps_at_once = steps_at_once(reader)
        self._feed = feed_of(reader)
        # Records are read in several threads, as far as Python lets them; the functions of the user in one.
        self._threads = 1 if reader.is_mapped or reader.records.facts.reading_cost != "stored" else 2
        self._ahead: deque[tuple[ChunkPlan, Future[Chunk[T]]]] = deque()
        self._background: Background | None = None
        self._pid = os.getpid()

    def forget(self) -> None:
        """Drop what was read ahead."""
        while self._ahead:
            self._ahead.pop()[1].cancel()

    def chunk(self, position: int) -> Chunk[T] | None:
        """Return the chunk at a position; None at the end."""
        if self._pid != os.getpid():
            # The parent's threads do not exist here, so their chunks would never come.
            self._background, self._pid = None, os.getpid()
            self._ahead.clear()
        if self._feed is not None:
            self._feed.reached(position)
        if self._depth == 0:
            plan = self._plan(position, self._steps_at_once)
            return None if plan is None else plan.load()
        while self._ahead and self._ahead[0][0].begin != position:
            self._ahead.popleft()[1].cancel()
        # Nobody who begins waits for more than one step.
        if not self._ahead and not self._submit(position, 1):
            return None
        while len(self._ahead) <= self._depth and self._submit(self._ahead[-1][0].end, self._steps_at_once):
            pass
        try:
            return self._ahead[0][1].result()
        except CancelledError:
            # The program ends, or another thread called forget().
            self.forget()
            return Chunk(position)

    def _plan(self, position: int, most: int) -> ChunkPlan | None:
        steps = self._reader.options.steps.several(position, most)
        return None if steps is None else ChunkPlan(self._reader, position, steps, self._feed)

    def _submit(self, position: int, most: int) -> bool:
        """Have the chunk at a position read; return False at the end."""
        plan = self._plan(position, most)
        if plan is None:
            return False
        if self._background is None:
            self._background = Background("cachelayer-prefetch", self._threads)
            weakref.finalize(self, self._background.close)
        self._ahead.append((plan, self._background.submit(partial(plan.load, self._background.closed))))
        return True
