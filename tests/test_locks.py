"""Locks, and values that are found once, in threads, forked children and pickles."""

import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from forks import in_a_fork

from cachelayer.support.locks import ProcessLock, cached_property


def take(lock: ProcessLock) -> bool:
    with lock.of_process():
        return True


def test_a_child_of_a_fork_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.of_process():
            held.set()
            done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait(60)
        assert in_a_fork(lambda: take(lock))
        done.set()


def test_threads_of_a_child_of_a_fork_that_come_at_once_get_one_lock_which_is_not_that_of_the_parent() -> None:
    locks = [ProcessLock() for _ in range(1000)]
    of_parent = [lock.of_process() for lock in locks]

    def taken() -> tuple[bool, bool]:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        together = threading.Barrier(4)

        def take_each(_: int) -> list[threading.RLock]:
            together.wait(60)
            return [lock.of_process() for lock in locks]

        with ThreadPoolExecutor(4) as pool:
            by_thread = list(pool.map(take_each, range(4)))
        sys.setswitchinterval(interval)
        is_one = all(len({id(lock) for lock in of_threads}) == 1 for of_threads in zip(*by_thread, strict=True))
        is_new = all(lock is not old for of_thread in by_thread for lock, old in zip(of_thread, of_parent, strict=True))
        return is_one, is_new

    assert in_a_fork(taken) == (True, True)


def test_a_pickle_of_a_held_lock_is_free() -> None:
    lock = ProcessLock()
    # In another thread: this one may take a lock that it holds.
    with lock.of_process(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(take, pickle.loads(pickle.dumps(lock))).result(60)


class Slow:
    """Has a property that takes as long as its test wants."""

    def __init__(self) -> None:
        self.begun, self.done, self.times = threading.Event(), threading.Event(), 0

    @cached_property
    def value(self) -> int:
        self.begun.set()
        assert self.done.wait(60)
        self.times += 1
        return self.times


def test_an_object_that_is_slow_to_find_its_value_blocks_no_other_of_its_class() -> None:
    slow, quick = Slow(), Slow()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(lambda: slow.value)
        slow.begun.wait(60)
        second = pool.submit(lambda: slow.value)
        quick.done.set()
        assert quick.value == 1
        assert not first.done()
        slow.done.set()
        assert (first.result(), second.result(), slow.value, slow.times) == (1, 1, 1, 1)


def test_a_child_of_a_fork_finds_the_value_that_another_thread_was_about_to_find() -> None:
    slow = Slow()

    def find() -> int:
        slow.done = threading.Event()
        slow.done.set()
        return slow.value

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: slow.value)
        slow.begun.wait(60)
        assert in_a_fork(find) == 1
        slow.done.set()


def test_a_value_that_cannot_be_found_is_looked_for_again_and_pickles_without_locks() -> None:
    class Fails:
        times = 0

        @cached_property
        def value(self) -> int:
            self.times += 1
            if self.times == 1:
                raise OSError("not yet")
            return self.times

    fails = Fails()
    with pytest.raises(OSError, match="not yet"):
        _ = fails.value
    assert (fails.value, fails.value) == (2, 2)
    assert vars(fails) == {"times": 2, "value": 2}
