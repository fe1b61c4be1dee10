"""Memory of batches is used again when no array uses it any more, and never before."""

import gc
import os
import threading

import numpy as np
import pytest

from cachelayer.support.leases import MemoryPool, empty

LARGE = (3, 1 << 20)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    first = empty(LARGE)
    place = address(first)
    view = first[1:].view(np.int32)[:, ::2]
    del first
    second = empty(LARGE)
    assert not np.shares_memory(view, second)
    del view
    gc.collect()
    assert address(empty(LARGE)) == place


def test_a_batch_that_is_kept_is_never_overwritten_by_any_thread() -> None:
    def fill(first: int) -> None:
        for number in range(first, first + 40):
            batch = empty((2 << 20,))
            batch[:] = number
            if number % 3 == 0:
                kept.append((number, batch[5:100]))
            del batch

    kept: list[tuple[int, np.ndarray]] = []
    threads = [threading.Thread(target=fill, args=(100 * number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) >= 26
    assert all((view == number % 256).all() for number, view in kept)


def test_memory_is_aligned_writable_and_of_the_size_that_was_asked_for() -> None:
    for nbytes in (1 << 20, (1 << 20) + 1, 3 << 20, (2 << 20) - 7, 1 << 20):
        memory = empty((nbytes,))
        assert memory.shape == (nbytes,)
        assert address(memory) % 64 == 0
        memory[:] = 1
        del memory


def test_small_memory_is_left_to_malloc() -> None:
    assert empty((1000,)).base is None


def test_a_pool_keeps_a_bounded_number_of_free_bytes() -> None:
    pool = MemoryPool()
    memory = [pool.lease(40 << 20) for _ in range(5)]
    places = [address(each) for each in memory]
    while memory:
        memory.pop(0)
    again = [pool.lease(40 << 20) for _ in range(5)]
    assert [address(each) for each in again[:3]] == places[:1:-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_takes_memory_while_a_thread_of_the_parent_does() -> None:
    is_done = threading.Event()

    def churn() -> None:
        while not is_done.is_set():
            empty(LARGE)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                empty(LARGE)[:] = 1
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        is_done.set()
        thread.join()
