"""Memory of batches that is used again when the last array over it is gone.

A large batch costs as much to allocate as to read: the kernel zeroes its pages, and takes them back when the batch is
freed. So large memory comes from a pool of the process::

    empty((256, 3072))           np.asarray(lease) ── batch ── image ── torch.from_numpy(image)
         │                                                                 │ the last of these is freed
    pool of free memory <─────────────────────────────────────── lease ────┘

Who keeps a batch keeps its memory, and the pool allocates other memory.
"""

from __future__ import annotations

from collections import deque
from math import prod

import numpy as np
from numpy.typing import NDArray

from cachelayer.support.locks import ProcessLock

_LEAST_NBYTES = 1 << 20
"""Smaller memory is left to malloc."""
_MOST_FREE_NBYTES = 128 << 20
_ALIGNMENT = 64
"""JAX shares memory that begins at a multiple of this, and copies other memory."""


class MemoryPool:
    """Memory that is used again and again. Threads may share it."""

    def __init__(self) -> None:
        # Reentrant: garbage may be collected, and so a lease end, while this thread has the lock.
        self._lock = ProcessLock()
        self._free: deque[NDArray[np.uint8]] = deque()
        self._free_nbytes = 0

    def lease(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of a size, whose bytes are anything."""
        memory = self._take(nbytes)
        if memory is None:
            raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
            begin = -raw.__array_interface__["data"][0] % _ALIGNMENT
            memory = raw[begin : begin + nbytes]
        return np.asarray(_Lease(self, memory))[:nbytes]

    def _take(self, nbytes: int) -> NDArray[np.uint8] | None:
        with self._lock.of_process():
            for _ in range(len(self._free)):
                # What was freed last is most likely still in the processor's cache.
                memory = self._free.pop()
                # Batches differ a little in size. Much larger memory is better used for a larger batch.
                if nbytes <= len(memory) <= 2 * nbytes:
                    self._free_nbytes -= len(memory)
                    return memory
                self._free.appendleft(memory)
        return None

    def take_back(self, memory: NDArray[np.uint8]) -> None:
        """Keep memory that no array uses any more for the next lease, in place of what was free for longest."""
        with self._lock.of_process():
            self._free.append(memory)
            self._free_nbytes += len(memory)
            while self._free_nbytes > _MOST_FREE_NBYTES:
                self._free_nbytes -= len(self._free.popleft())


class _Lease:
    """Memory that goes back to its pool when no array uses it any more."""

    def __init__(self, pool: MemoryPool, memory: NDArray[np.uint8]) -> None:
        self._pool = pool
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._pool.take_back(self._memory)


_pool = MemoryPool()


def empty(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array of uint8 whose bytes are anything: a large one uses memory of earlier ones."""
    nbytes = prod(shape)
    return np.empty(shape, np.uint8) if nbytes < _LEAST_NBYTES else _pool.lease(nbytes).reshape(shape)
