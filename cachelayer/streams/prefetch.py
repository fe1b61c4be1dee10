"""Read ahead in the background."""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, takewhile
from typing import Generic

from cachelayer.protocols import T
from cachelayer.streams.block_plan import Block, Plan
from cachelayer.streams.interruptible_future import CancelledError, Outcome
from cachelayer.streams.pace import Pace, nbytes_of
from cachelayer.streams.prefetch_worker import Worker
from cachelayer.streams.stream_meter import Meter


@dataclass(eq=False)
class _Ahead(Generic[T]):
    """A block that the thread has been asked to read."""

    plan: Plan[T]
    outcome: Outcome[Block[T]]


class Prefetcher(Generic[T]):
    """Reads blocks, some of them ahead, in one thread that ends with this object.

    A caller asks for a block by its position. If it asks again it gets the same block, so a caller that was interrupted
    at any point asks again and loses nothing. A forked child continues with its own thread.

    Args:
        plan: plans the block at a position, with at most a number of items; returns None at the end. Called in the
            caller's thread.
        depth: number of blocks ahead; 0 reads in the caller's thread.
        pace: how many items a block has.
        reached: called with the position that the caller has reached, before anything is planned.
        helps: whether the caller, instead of waiting for a block, reads blocks that the thread has not begun. False if
            the user's functions are called: a slow later block would keep the caller from an earlier one that is ready.
        meter: measures the reading.
    """

    def __init__(
        self,
        plan: Callable[[int, int], Plan[T] | None],
        depth: int,
        pace: Pace,
        reached: Callable[[int], None] | None = None,
        *,
        helps: bool = False,
        meter: Meter | None = None,
    ) -> None:
        self._plan = plan
        self._depth = depth
        self._pace = pace
        self._reached = reached
        self._helps = helps
        self._meter = Meter() if meter is None else meter
        # Always replaced as a whole.
        self._ahead: tuple[_Ahead[T], ...] = ()
        self._worker: Worker | None = None
        self._pid = os.getpid()

    def forget(self) -> None:
        """Drop what was read ahead."""
        ahead, self._ahead = self._ahead, ()
        for dropped in ahead:
            dropped.outcome.cancel()

    def block(self, position: int) -> Block[T] | None:
        """Return the block at a position; None at the end. It may be empty if another thread called :meth:`forget`."""
        if self._reached is not None:
            self._reached(position)
        if self._depth == 0:
            plan = self._plan(position, self._pace.size)
            return None if plan is None else plan.load(None, Exception, self._meter)
        self._notice_fork()
        # The first block of all is small, and read alone: nobody who begins waits for later batches.
        begins = self._helps and all(each.plan.begin != position for each in self._ahead)
        ahead = self._read_ahead(position, 1 if begins else self._depth)
        if not ahead:
            return None
        if self._helps:
            _help(ahead, self._meter)
        try:
            block = ahead[0].outcome.result()
        except CancelledError:
            return Block(position)
        self._learn(block)
        if block.failure is None:
            self._read_ahead(position, self._depth + 1)
        return block

    def ready(self, position: int) -> int:
        """Return how many items are ready from a position on."""
        following = dropwhile(lambda each: each.plan.begin != position, self._ahead)
        done = (each.outcome for each in following if each.outcome.done() and not each.outcome.failed())
        return sum(len(outcome.result().items) for outcome in done)

    def _read_ahead(self, position: int, count: int) -> tuple[_Ahead[T], ...]:
        """Have ``count`` blocks read from a position on, and return them; cancel all others."""
        following = dropwhile(lambda each: each.plan.begin != position, self._ahead)
        ahead = tuple(takewhile(lambda each: not each.outcome.cancelled(), following))
        for each in self._ahead:
            if each not in ahead:
                each.outcome.cancel()
        self._ahead = ahead
        end = ahead[-1].plan.end if ahead else position
        while len(ahead) < count:
            plan = self._plan(end, self._pace.size if ahead else self._pace.least)
            if plan is None:
                break
            loading = self._thread().submit(partial(plan.load, caught=BaseException, meter=self._meter))
            self._ahead = ahead = (*ahead, _Ahead(plan, loading))
            end = plan.end
        return ahead

    def _learn(self, block: Block[T]) -> None:
        if block.items:
            nbytes = max(map(nbytes_of, (block.items[0], block.items[-1])))
            self._pace = self._pace.learnt(len(block.items), block.seconds, nbytes)

    def _thread(self) -> Worker:
        if self._worker is None:
            worker = Worker("cachelayer-prefetch")
            weakref.finalize(self, worker.close)
            self._worker = worker
        return self._worker

    def _notice_fork(self) -> None:
        """Begin anew in a forked child: the parent's thread does not exist there, so its blocks would never come."""
        if self._pid != os.getpid():
            self._worker = None
            self._ahead = ()
            self._meter.notice_fork()
            self._pid = os.getpid()


def _help(ahead: tuple[_Ahead[T], ...], meter: Meter) -> None:
    """Read blocks that the thread has not begun, instead of waiting for the first."""
    for each in ahead:
        # While this thread waited for the records of a later block, the first might come.
        if ahead[0].outcome.done() or not each.plan.is_here:
            return
        if each.outcome.cancel():
            here: Outcome[Block[T]] = Outcome()
            here.begin()
            block = each.plan.load(None, Exception, meter)
            here.set_result(block)
            each.outcome = here
            if block.failure is not None:
                # If a store is away, the first block fails too: its error must not wait for those of further blocks.
                return
