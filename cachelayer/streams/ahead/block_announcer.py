"""Have the system load blocks from a local disk before they are read, unless they are in memory already."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.ahead.background import Background, is_lost
from cachelayer.streams.ahead.block_feed import FeedSteps
from cachelayer.streams.steps import Step

Indices = NDArray[np.int64]

AHEAD_NBYTES = 64 << 20
"""Bytes of records that are looked at ahead of need, to find the blocks that they lie in."""
# Records of blocks that are announced at once.
_MOST_RECORDS = 1 << 16
# If the blocks that came next were in memory, look again after so many calls; twice as many each time, up to this.
_MOST_PAUSES = 64


class BlockAnnouncer:
    """Announces the blocks that come next in a thread that ends with this object; a :class:`block_feed.Feed`.

    Args:
        announce: starts to load records; returns whether any was not in memory.
        steps: the steps that are read.
        numbers: returns the records of a step.
    """

    def __init__(
        self, announce: Callable[[Indices], bool], steps: FeedSteps, numbers: Callable[[Step], Indices]
    ) -> None:
        self._announce = announce
        self._steps = steps
        self._numbers_of = numbers
        self._pid = os.getpid()
        self._worker: Background | None = None
        self._under_way: Future[bool] | None = None
        # The positions of some steps, the records of their blocks, and what ends when these have been announced.
        self._parts: Sequence[tuple[range, Indices, Future[None]]] = ()
        # Up to which position blocks were announced, and, by the position of their last record, which.
        self._horizon = 0
        self._announced: set[int] = set()
        self._pauses = self._pauses_left = 0

    def reached(self, position: int) -> None:
        """Forget what was announced for positions before this one."""
        if self._pid != os.getpid():
            # The thread of the parent does not exist here.
            self._worker, self._under_way, self._parts = None, None, ()
            self._pid = os.getpid()
        if len(self._announced) > _MOST_RECORDS:
            self._announced = {last for last in self._announced if last >= position}

    def load(self, steps: Sequence[Step]) -> None:
        """Announce the blocks that come after some steps."""
        if self._pauses_left:
            self._pauses_left -= 1
            return
        if not self._steps.most_ahead or not self._is_answered():
            return
        begin = self._steps.after(steps[-1])
        new = [(range(0), self._sample(begin))] if self._pauses else self._new(begin)
        if any(len(numbers) for _, numbers in new):
            parts = [(covered, numbers, Future[None]()) for covered, numbers in new]
            self._under_way = self._submit(parts)
            # Only now: nobody may wait for what an interrupt has kept from being submitted.
            self._parts = parts

    def pending(self, steps: Sequence[Step]) -> Future[None] | None:
        """Return what ends when the blocks of some steps have been announced, if they are going to be.

        To read the steps before would be to ask the disk for each of their records, before the blocks.
        """
        return next((part for covered, _, part in self._parts if steps[0].begin in covered), None)

    def _is_answered(self) -> bool:
        """Return whether no announcement is under way; if the last one found nothing to load, pause for longer."""
        outcome = self._under_way
        if outcome is None:
            return True
        if not outcome.done():
            return False
        self._under_way, self._parts = None, ()
        if is_lost(outcome) or outcome.result():
            if self._pauses:
                # A sample has left the memory, and so may all that was found there.
                self._horizon = -1
            self._pauses = 0
            return True
        self._pauses = self._pauses_left = min(max(1, 2 * self._pauses), _MOST_PAUSES)
        return False

    def _sample(self, position: int) -> Indices:
        """Return the records of the step from a position on.

        While everything is in memory they are enough, and their blocks take many times as long to find out.
        """
        step = self._steps.at(position)
        return np.empty(0, np.int64) if step is None else self._numbers_of(step)

    def _new(self, begin: int) -> list[tuple[range, Indices]]:
        """Return what was not announced yet, for each step from a position on: its positions, and records of blocks."""
        ahead = min(int(AHEAD_NBYTES / self._steps.record_nbytes / self._steps.share), self._steps.most_ahead)
        end = begin + ahead
        if not begin <= self._horizon <= end:
            self._horizon = begin
            self._announced = set()
        found, count = list[tuple[range, Indices]](), 0
        while self._horizon < end and count < _MOST_RECORDS and (step := self._steps.at(self._horizon)) is not None:
            spans = self._steps.blocks(step)
            lasts, firsts = np.unique(spans.last, return_index=True)
            blocks = zip(lasts.tolist(), spans.begin[firsts].tolist(), spans.end[firsts].tolist(), strict=True)
            new = [np.arange(begin, stop) for last, begin, stop in blocks if last not in self._announced]
            count += sum(map(len, new))
            self._announced.update(lasts.tolist())
            self._horizon = self._steps.after(step)
            found.append((range(step.begin, self._horizon), np.concatenate([np.empty(0, np.int64), *new])))
        return found

    def _submit(self, parts: Sequence[tuple[range, Indices, Future[None]]]) -> Future[bool]:
        """Announce the records of some steps, one step after another, and end the outcome of each."""
        if self._worker is None:
            worker = Background("cachelayer-announce")
            weakref.finalize(self, worker.close)
            self._worker = worker
        announce, closed = self._announce, self._worker.closed

        def work() -> bool:
            try:
                for _, numbers, part in parts:
                    # If some are in memory, so are the others, as far as a sample shows.
                    if closed.is_set() or (len(numbers) and not announce(numbers)):
                        return False
                    part.set_result(None)
            finally:
                for *_, part in parts:
                    if not part.done():
                        part.set_result(None)
            return True

        return self._worker.submit(work)
