"""Memory of batches is used again when no array uses it any more, and never before."""

from __future__ import annotations

import gc
import threading

import numpy as np

from cachelayer.leases import MemoryPool, empty

LARGE = (3, 1 << 20)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    pool = MemoryPool()
    with pool.in_use():
        first = empty(LARGE)
        place = address(first)
        view = first[1:].view(np.int32)[:, ::2]
        del first
        second = empty(LARGE)
        assert not np.shares_memory(view, second)
        del view
        gc.collect()
        assert address(empty(LARGE)) == place


def test_a_batch_that_is_kept_is_never_overwritten() -> None:
    pool = MemoryPool()
    kept = []
    with pool.in_use():
        for number in range(40):
            batch = empty((2 << 20,))
            batch[:] = number
            if number % 3 == 0:
                kept.append((number, batch[5:100]))
            del batch
    assert all((view == number).all() for number, view in kept)


def test_memory_is_aligned_writable_and_of_the_size_that_was_asked_for() -> None:
    pool = MemoryPool()
    with pool.in_use():
        for nbytes in (1 << 20, (1 << 20) + 1, 3 << 20, (2 << 20) - 7, 1 << 20):
            memory = empty((nbytes,))
            assert memory.shape == (nbytes,)
            assert address(memory) % 64 == 0
            memory[:] = 1
            del memory


def test_small_memory_other_threads_and_code_without_a_pool_take_new_memory() -> None:
    pool = MemoryPool()
    others = []
    with pool.in_use():
        small = empty((1000,))
        thread = threading.Thread(target=lambda: others.append(empty(LARGE)))
        thread.start()
        thread.join()
    others.append(empty(LARGE))
    assert small.base is None
    assert [other.base for other in others] == [None, None]
