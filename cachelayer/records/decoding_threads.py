"""The threads that decode files: one for each core, at most eight."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import TypeVar

from cachelayer.support.system_threads import Pool

_MOST_THREADS = 8
_MOST_TASKS = 32
T = TypeVar("T")
S = TypeVar("S")


def in_threads(function: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Return the result of a function for each item, in order. The calling thread does a single item itself."""
    size = -(-len(items) // _MOST_TASKS) or 1
    shares = [items[start : start + size] for start in range(0, len(items), size)]
    done = map if len(shares) < 2 else _pool().map
    return list(chain.from_iterable(done(lambda share: list(map(function, share)), shares)))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> Pool:
    return Pool(min(_MOST_THREADS, cores()), "cachelayer-decode")


# A forked child does not have its parent's threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
