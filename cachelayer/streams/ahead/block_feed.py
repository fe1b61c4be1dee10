"""Fetch the blocks that the next steps of an iterator need, ahead of need, and hold each until its last record is out.

What the order in blocks says of each record identifies a *use* of a block: the position of the last record that is read
of it. A block that a later epoch needs again is another use.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.host_memory import memory_nbytes
from cachelayer.locks import ProcessLock
from cachelayer.protocols import BlockHolder
from cachelayer.streams.ahead.background import Background, is_lost
from cachelayer.streams.ahead.block_rows import BlockRows, Fetch
from cachelayer.streams.order.exact import BlockSpans
from cachelayer.streams.steps import Step
from cachelayer.user_warnings import warn

Indices = NDArray[np.int64]

AHEAD_NBYTES = 128 << 20
"""Bytes of blocks that are fetched before a step needs them, beside those that replace blocks no longer needed."""
REQUESTS = 48
"""Blocks that are fetched at once."""
MOST_AHEAD = 1 << 17
"""Steps are looked at ahead of need up to so many records of the shard."""


class Feed(Protocol):
    """Loads the blocks that steps need, ahead of need. For one thread at a time.

    If a method is interrupted at any point, the next call makes up for it.
    """

    def reached(self, position: int) -> None:
        """Let go of what is needed only before a position: the caller has all records up to there."""

    def load(self, steps: Sequence[Step]) -> Mapping[int, BlockRows] | None:
        """Load the blocks of some steps, and those that come after them.

        Returns:
            For the begin of each step, the blocks that its records are read from; None to read them where they lie.
        """

    def pending(self, steps: Sequence[Step]) -> Future[Any] | None:
        """Return what should end before some steps are read; None if they may be read at any time."""


@dataclass(frozen=True)
class FeedSteps:
    """The steps of an iterator that reads blocks.

    Args:
        at: returns the step from a position, or a few at once; None at the end.
        after: returns the position after a step.
        spans: returns the block of each row of a step; ``last`` counts from the epoch of the step.
        records: number of records of an epoch.
        record_nbytes: approximate bytes of a record.
        share: the fraction of the records of a step that the iterator reads.
        most_ahead: the most positions to look ahead for blocks; 0 to load only what a step needs.
    """

    at: Callable[[int], Step | None]
    after: Callable[[Step], int]
    spans: Callable[[Step], BlockSpans]
    records: int
    record_nbytes: int
    share: float
    most_ahead: int

    def blocks(self, step: Step) -> BlockSpans:
        """Return the block of each row of a step; ``last`` is a global position."""
        spans = self.spans(step)
        return BlockSpans(spans.begin, spans.end, spans.last + (step.begin - step.begin % self.records))


@dataclass(frozen=True, eq=False, slots=True)
class _Use:
    """A block that steps need.

    Args:
        fetch: the request that brings it.
        shift: what to add to the number of a record for its row in what comes.
        nbytes: approximate bytes of the block.
        first: the position of the first step that needs it.
    """

    fetch: Fetch
    shift: int
    nbytes: int
    first: int


@dataclass(frozen=True, eq=False)
class _Needs:
    """The blocks that a step needs.

    Args:
        lasts: the global position of the last record that is read of each.
        begins, ends: the records of each.
        owner: for each row of the step, the number of its block.
    """

    lasts: Indices
    begins: Indices
    ends: Indices
    owner: Indices

    @classmethod
    def of(cls, spans: BlockSpans) -> _Needs:
        lasts, firsts, owner = np.unique(spans.last, return_index=True, return_inverse=True)
        return cls(lasts, spans.begin[firsts], spans.end[firsts], owner)


class BlockFeed:
    """Fetches blocks in threads that end with this object; a :class:`Feed`.

    It holds the blocks whose last record has not been handed out (the windows of this shard), and those that come next:
    together as many bytes as its windows ever held at a time, and :data:`AHEAD_NBYTES` more, and the blocks of a step.

    Args:
        holder: fetches blocks.
        steps: the steps that are read.
    """

    def __init__(self, holder: BlockHolder[Any], steps: FeedSteps) -> None:
        self._holder = holder
        self._steps = steps
        self._worker: Background | None = None
        # Several threads may share an iterator.
        self._lock = ProcessLock()
        self._pid = os.getpid()
        self._has_warned = False
        self._begin_at(0)

    def _begin_at(self, position: int) -> None:
        # By the global position of the last record of the block.
        self._uses: dict[int, _Use] = {}
        # Of the same blocks, because to sum up what the blocks themselves say would be to look at each in every step;
        # and a heap of the positions of their last records, some of which may be gone.
        self._nbytes: dict[int, int] = {}
        self._lasts: list[int] = []
        # Of steps ahead.
        self._needs: dict[tuple[int, int], _Needs] = {}
        self._reached = self._horizon = position
        self._most_live = 0
        # The epoch whose blocks are fetched, and what fetches them.

    @property
    def held_nbytes(self) -> int:
        """Approximate bytes of the blocks that are held or on the way."""
        return sum(self._nbytes.values())

    def reached(self, position: int) -> None:
        """Drop the blocks of which no record from a position on is needed."""
        with self._lock:
            if self._pid != os.getpid():
                # The threads of the parent do not exist here.
                self._worker = None
                self._begin_at(position)
                self._pid = os.getpid()
            if not self._reached <= position <= self._horizon:
                for last in list(self._uses):
                    self._drop(last)
                self._begin_at(position)
            self._reached = position
            while self._lasts and self._lasts[0] < position:
                self._drop(self._lasts[0])
                heappop(self._lasts)
            for key in [key for key in self._needs if key[1] <= position]:
                del self._needs[key]
            # Blocks are fetched in the order in which they are needed: the last ones are ahead.
            ahead = sum(
                [use.nbytes for use in takewhile(lambda use: use.first >= position, reversed(self._uses.values()))]
            )
            self._most_live = max(self._most_live, self.held_nbytes - ahead)
            if self._most_live > memory_nbytes() // 2 and not self._has_warned:
                self._has_warned = True
                warn(
                    f"the windows of this shard hold {self._most_live / 2**30:.3g} GiB of blocks, more than half of "
                    "the memory here: pass shuffle=cachelayer.Blocks(window=...) with fewer blocks, or use more shards"
                )

    def _drop(self, last: int) -> None:
        use = self._uses.pop(last, None)
        self._nbytes.pop(last, None)
        if use is not None:
            use.fetch.outcome.cancel()

    def _keep(self, last: int, use: _Use) -> None:
        heappush(self._lasts, last)
        self._nbytes[last] = use.nbytes
        self._uses[last] = use

    def load(self, steps: Sequence[Step]) -> Mapping[int, BlockRows]:
        """Return the blocks of the rows of some steps; fetch those that are not on the way, and the next ones."""
        with self._lock:
            rows = {step.begin: self._rows(step) for step in steps}
            self._fetch_ahead()
            return rows

    def pending(self, steps: Sequence[Step]) -> None:
        """Return None: a step waits for each of its blocks."""

    def _rows(self, step: Step) -> BlockRows:
        """Return the blocks of the rows of a step; fetch those that are not on the way."""
        needs = self._needs.pop((step.begin, step.end), None) or _Needs.of(self._steps.blocks(step))
        lasts = needs.lasts.tolist()
        known = self._uses
        # There are hundreds of blocks, nearly all of which have come.
        uses: list[_Use] = [known.get(last) for last in lasts]  # type: ignore[misc]
        missing = [row for row, use in enumerate(uses) if use is None or is_lost(use.fetch.outcome)]
        if missing:
            self._fetch(step, needs, missing)
            uses = [known[last] for last in lasts]
        shifts = np.array([use.shift for use in uses], np.int64)
        self._horizon = max(self._horizon, self._steps.after(step))
        return BlockRows(self._holder, [use.fetch for use in uses], needs.owner, shifts[needs.owner])

    def _fetch_ahead(self) -> None:
        """Fetch the blocks that come next, as far as there is room."""
        end = self._reached + self._steps.most_ahead
        if self._horizon >= end or self._steps.at(self._horizon) is None:
            return
        known = self._uses
        room = self._most_live + AHEAD_NBYTES - self.held_nbytes
        while room > 0 and self._horizon < end and (step := self._steps.at(self._horizon)) is not None:
            needs = self._needs[step.begin, step.end] = _Needs.of(self._steps.blocks(step))
            # Those that are lost are fetched again by the steps that need them.
            room -= self._fetch(
                step, needs, [row for row, last in enumerate(needs.lasts.tolist()) if last not in known]
            )
            self._horizon = self._steps.after(step)

    def _fetch(self, step: Step, needs: _Needs, rows: Sequence[int]) -> int:
        """Fetch some of the blocks that a step needs; return their approximate bytes."""
        nbytes = 0
        single: list[tuple[int, int]] = []
        for row in rows:
            last, begin, end = needs.lasts.item(row), needs.begins.item(row), needs.ends.item(row)
            if end - begin == 1:
                single.append((last, begin))
                continue
            nbytes += (size := (end - begin) * self._steps.record_nbytes)
            fetch = self._submit(np.arange(begin, end))
            self._keep(last, _Use(fetch, -begin, size, step.begin))
        if single:
            fetch = self._submit(np.array([number for _, number in single], np.int64))
            for row, (last, number) in enumerate(single):
                self._keep(last, _Use(fetch, row - number, self._steps.record_nbytes, step.begin))
        return nbytes + len(single) * self._steps.record_nbytes

    def _submit(self, numbers: Indices) -> Fetch:
        if self._worker is None:
            worker = Background("cachelayer-blocks", REQUESTS)
            weakref.finalize(self, worker.close)
            self._worker = worker
        fetch = partial(self._holder.fetch, numbers)
        return Fetch(self._worker.submit(fetch), fetch)
