"""Reading ahead in the background."""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, takewhile
from typing import Generic

from cachelayer.protocols import T
from cachelayer.streams.outcome import CancelledError, Outcome
from cachelayer.streams.pace import Pace, nbytes_of
from cachelayer.streams.prefetch_worker import Worker
from cachelayer.streams.reads import Block, Plan


@dataclass(eq=False)
class _Ahead(Generic[T]):
    """A block that is read, or will be."""

    plan: Plan[T]
    outcome: Outcome[Block[T]]


class Prefetcher(Generic[T]):
    """Reads blocks, some of them ahead, in one thread that ends with it.

    A block is asked for by its position, and asked for again it is the same block: a caller that was interrupted at any
    place asks again, and nothing is lost. After a fork the child goes on with a thread of its own.

    Args:
        plan: the block of at most so many items at a position, None at the end; called in the caller's thread.
        depth: number of blocks ahead; 0 reads in the caller's thread.
        pace: how many items a block has.
        helps: whether the caller, before it waits for a block, reads one that the thread has not come to. Not where
            the user's functions are called: a later one would keep the caller from an earlier block that is ready.
    """

    def __init__(
        self, plan: Callable[[int, int], Plan[T] | None], depth: int, pace: Pace, *, helps: bool = False
    ) -> None:
        self._plan = plan
        self._depth = depth
        self._pace = pace
        self._helps = helps
        # Replaced, never changed.
        self._ahead: tuple[_Ahead[T], ...] = ()
        self._worker: Worker | None = None
        self._pid = os.getpid()

    def forget(self) -> None:
        """Drop what was read ahead."""
        ahead, self._ahead = self._ahead, ()
        for dropped in ahead:
            dropped.outcome.cancel()

    def block(self, position: int) -> Block[T] | None:
        """The block at a position; None at the end. It may be empty if another thread called :meth:`forget`."""
        if self._depth == 0:
            plan = self._plan(position, self._pace.size)
            return None if plan is None else plan.load(None, Exception)
        self._notice_fork()
        ahead = self._read_ahead(position, self._depth)
        if not ahead:
            return None
        if self._helps:
            _help(ahead)
        try:
            block = ahead[0].outcome.result()
        except CancelledError:
            return Block(position)
        self._learn(block)
        if block.failure is None:
            self._read_ahead(position, self._depth + 1)
        return block

    def _read_ahead(self, position: int, count: int) -> tuple[_Ahead[T], ...]:
        """The blocks from a position on, so many of them that are read or will be; the first may be read already."""
        following = dropwhile(lambda each: each.plan.begin != position, self._ahead)
        ahead = tuple(takewhile(lambda each: not each.outcome.cancelled(), following))
        for each in self._ahead:
            if each not in ahead:
                each.outcome.cancel()
        self._ahead = ahead
        end = ahead[-1].plan.end if ahead else position
        while len(ahead) < count and (plan := self._plan(end, self._pace.size)) is not None:
            loading = self._thread().submit(partial(plan.load, caught=BaseException))
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
        """The parent's thread does not exist in a child, so what it was to read never comes."""
        if self._pid != os.getpid():
            self._worker = None
            self._ahead = ()
            self._pid = os.getpid()


def _help(ahead: tuple[_Ahead[T], ...]) -> None:
    """Rather than wait for the first block, read some that the thread has not come to."""
    for each in ahead:
        if ahead[0].outcome.done():
            return
        if each.outcome.cancel():
            here: Outcome[Block[T]] = Outcome()
            here.begin()
            here.set_result(each.plan.load(None, Exception))
            each.outcome = here
