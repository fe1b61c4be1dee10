"""Memory of batches that is used again when the last array over it is gone.

A large batch costs as much to allocate as to read: the kernel zeroes its pages, and takes them back when the batch is
freed. So a reader has a pool, and whatever is read for it takes its memory from there::

    with pool.in_use():          np.asarray(lease) ── batch ── image ── torch.from_numpy(image)
        empty((256, 3072))                                                 │ the last of these is freed
                                 pool <──────────────────────────── lease ─┘

Who keeps a batch keeps its memory, and the pool allocates other memory. A pool never has more than was once in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from threading import local

import numpy as np
from numpy.typing import NDArray

_LEAST_NBYTES = 1 << 20
"""Smaller memory is left to malloc."""
_MOST_FREE = 8
_ALIGNMENT = 64
"""JAX shares memory that begins at a multiple of this, and copies other memory."""


class MemoryPool:
    """Memory that one reader uses again and again. Threads may share it."""

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_MOST_FREE)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let :func:`empty` take memory from this pool, in this thread, within the context."""
        outer = _present.pool
        _present.pool = self
        try:
            yield
        finally:
            _present.pool = outer

    def lease(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of a size, whose bytes are anything."""
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:
                break
            # Batches differ a little in size. Much larger memory is better used for a larger batch.
            if nbytes <= len(memory) <= 2 * nbytes:
                return np.asarray(_Lease(self._free, memory))[:nbytes]
            self._free.append(memory)
        raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
        begin = -raw.__array_interface__["data"][0] % _ALIGNMENT
        return np.asarray(_Lease(self._free, raw[begin : begin + nbytes]))


class _Lease:
    """Memory that goes back to its pool when no array uses it any more."""

    def __init__(self, free: deque[NDArray[np.uint8]], memory: NDArray[np.uint8]) -> None:
        self._free = free
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


class _Present(local):
    pool: MemoryPool | None = None


_present = _Present()


def empty(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array of uint8 whose bytes are anything: large ones from the pool in use, if there is one."""
    nbytes = prod(shape)
    pool = _present.pool
    if pool is None or nbytes < _LEAST_NBYTES:
        return np.empty(shape, np.uint8)
    return pool.lease(nbytes).reshape(shape)
