"""Threads share the work of a read only if that is quicker, and nothing else changes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from cachelayer.records import threads
from cachelayer.records.threads import Cost, Gain, Job, Reading, allowed, each, quickest
from cachelayer.system_threads import Pool


class AlwaysShared(Gain):
    def shares(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "_SHARED_NBYTES", 1)
    monkeypatch.setattr(threads, "_JOB_NBYTES", 1)
    with Reading(3):
        yield


def refuse() -> None:
    raise AssertionError


def shared(jobs: list[Job]) -> None:
    quickest(refuse, lambda _: jobs, 100, AlwaysShared())


def test_all_jobs_are_done_and_another_thread_helps() -> None:
    done: list[int] = []
    helped = threading.Event()

    def job(number: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert helped.wait(30)
        helped.set()
        done.append(number)

    shared([partial(job, number) for number in range(20)])
    assert sorted(done) == list(range(20))


def test_a_read_waits_for_a_thread_that_helps_although_the_system_refuses_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []
    helped, may_end = threading.Event(), threading.Event()
    begin, begun = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    def job(number: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert helped.wait(30)
            may_end.set()
        else:
            helped.set()
            assert may_end.wait(30)
            sum(range(1_000_000))
        done.append(number)

    with Pool(2, "two") as pool:
        monkeypatch.setattr(threads, "_pool", lambda _: pool)
        monkeypatch.setattr(threading.Thread, "start", start)
        shared([partial(job, number) for number in range(3)])
        assert sorted(done) == [0, 1, 2]


def test_the_error_of_the_first_failed_job_is_raised() -> None:
    both = threading.Barrier(2)

    def fail(number: int) -> None:
        both.wait(30)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        shared([partial(fail, 0), partial(fail, 1)])


def test_an_interrupted_read_leaves_its_other_jobs_undone_and_the_next_read_works() -> None:
    done: list[int] = []
    interrupted = threading.Event()

    def interrupt() -> None:
        if threading.current_thread() is threading.main_thread():
            interrupted.set()
            raise KeyboardInterrupt
        assert interrupted.wait(30)

    with pytest.raises(KeyboardInterrupt):
        shared([interrupt] * 4)
    shared([partial(done.append, number) for number in range(5)])
    assert sorted(done) == list(range(5))


def test_a_forked_child_starts_its_own_threads_and_forgets_the_reads_of_its_parent() -> None:
    shared([lambda: None] * 4)
    begun, end = threading.Event(), threading.Event()

    def read() -> None:
        with Reading(None):
            begun.set()
            end.wait(30)

    other = threading.Thread(target=read)
    other.start()
    begun.wait(30)

    try:
        assert allowed() == 1
        child = os.fork()
        if child == 0:
            # The exit code says whether all went well: pytest must not go on in the child.
            try:
                assert allowed() == 3
                test_all_jobs_are_done_and_another_thread_helps()
            except BaseException:  # noqa: BLE001
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        end.set()
        other.join()


def test_reads_share_the_cores_and_a_read_inside_another_counts_once() -> None:
    assert allowed() == 3
    with Reading(4):
        assert allowed() == 4
        with Reading(1):
            assert allowed() == 1
    assert allowed() == 3


def test_with_one_core_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with Reading(None):
        assert allowed() == 1
        quickest(lambda: None, lambda _: [refuse], 100, AlwaysShared())


def test_work_is_shared_while_that_is_quicker_and_the_slower_way_is_tried_again() -> None:
    gain = Gain()

    def calls(count: int, alone: float, together: float) -> int:
        how = []
        for _ in range(count):
            how.append(gain.shares())
            gain.learn(together if how[-1] else alone, shared=how[-1])
        return sum(how)

    assert calls(160, alone=2.0, together=1.0) >= 145
    # The other cores are busy now, and later they are free again.
    assert calls(320, alone=2.0, together=3.0) <= 60
    assert calls(320, alone=2.0, together=1.0) >= 160


def long() -> Cost:
    """Calls that have taken long so far."""
    cost = Cost()
    cost.processor = 1.0
    cost.gain.learn(1.0, shared=False)
    return cost


def test_long_calls_are_made_once_each_and_another_thread_helps() -> None:
    done: list[int] = []
    helped = threading.Event()

    def call(number: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert helped.wait(30)
        helped.set()
        done.append(number)

    each(20, call, long())
    assert sorted(done) == list(range(20))


def test_short_calls_are_made_in_order_in_the_thread_that_reads() -> None:
    done: list[int] = []

    def call(number: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        done.append(number)

    each(100, call, Cost())
    assert done == list(range(100))


def test_calls_are_shared_as_soon_as_they_are_known_to_take_long() -> None:
    begun, other = time.thread_time(), threading.Event()

    def call(number: int) -> None:
        if number == 0:
            while time.thread_time() < begun + 0.01:
                pass
        elif threading.current_thread() is threading.main_thread():
            assert other.wait(30)
        else:
            other.set()

    each(5, call, Cost())
    assert other.is_set()


def test_calls_that_turn_out_to_be_short_are_no_longer_shared() -> None:
    cost = long()
    while cost.is_long:
        each(100, lambda _: None, cost)
    callers: set[threading.Thread] = set()
    each(100, lambda _: callers.add(threading.current_thread()), cost)
    assert callers == {threading.main_thread()}


def test_long_calls_that_threads_make_no_quicker_are_no_longer_shared() -> None:
    cost, callers = long(), set[threading.Thread]()
    for _ in range(9):
        cost.gain.learn(2.0, shared=True)
    each(100, lambda _: callers.add(threading.current_thread()), cost)
    assert callers == {threading.main_thread()}


def test_the_error_of_the_least_number_is_raised_however_many_threads_help() -> None:
    def fail(number: int) -> None:
        if number >= 3:
            raise ValueError(number)

    for cost in (Cost(), long()):
        with pytest.raises(ValueError, match=r"^3$"):
            each(20, fail, cost)


def test_with_one_thread_long_calls_stay_in_it() -> None:
    callers: set[threading.Thread] = set()
    with Reading(1):
        each(20, lambda _: callers.add(threading.current_thread()), long())
    assert callers == {threading.main_thread()}
