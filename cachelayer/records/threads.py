"""Decode the images and sounds of a read in several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import cache

from cachelayer.errors import StorageError
from cachelayer.system_threads import Pool

_MOST = 8


@cache
def cores() -> int:
    """Return how many cores this process may use, at most 8."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    return max(1, min(_MOST, count))


def each(count: int, do: Callable[[int], None]) -> None:
    """Call a function of each number below a count: each of a few threads, this one included, takes a range of them."""

    def do_range(number: int) -> None:
        for row in range(bounds[number], bounds[number + 1]):
            do(row)

    parts = max(1, min(cores(), count))
    bounds = [count * part // parts for part in range(parts + 1)]
    futures: list[Future[None]] = []
    try:
        # The system may give no threads, and at its end the program starts no more: then this thread does all.
        with suppress(RuntimeError, StorageError):
            futures.extend(_pool(os.getpid()).submit(do_range, number) for number in range(1, parts))
        do_range(0)
        for number in range(1, parts):
            if number > len(futures) or futures[number - 1].cancel():
                do_range(number)
            else:
                futures[number - 1].result()
    finally:
        for future in futures:
            future.cancel()


@cache
def _pool(pid: int) -> Pool:  # noqa: ARG001 - a forked child does not have its parent's threads
    return Pool(max(1, cores() - 1), "cachelayer-read")
