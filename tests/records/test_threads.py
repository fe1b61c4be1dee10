"""Threads share the work of a read, and nothing else changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from cachelayer.records import threads
from cachelayer.records.threads import each


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "cores", lambda: 3)
    threads._pool.cache_clear()
    yield
    threads._pool.cache_clear()


def test_all_calls_are_made_and_another_thread_helps() -> None:
    done: list[int] = []
    helped = threading.Event()

    def do(number: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert helped.wait(30)
        helped.set()
        done.append(number)

    each(20, do)
    assert sorted(done) == list(range(20))
    each(0, do)


def test_without_another_thread_the_one_that_reads_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    each(5, done.append)
    assert done == list(range(5))


def test_the_error_of_the_least_number_is_raised() -> None:
    both = threading.Barrier(3)

    def fail(number: int) -> None:
        both.wait(30)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        each(3, fail)


def test_an_interrupted_read_leaves_other_calls_undone_and_the_next_read_works() -> None:
    interrupted = threading.Event()

    def interrupt(_: int) -> None:
        if threading.current_thread() is threading.main_thread():
            interrupted.set()
            raise KeyboardInterrupt
        assert interrupted.wait(30)

    with pytest.raises(KeyboardInterrupt):
        each(4, interrupt)
    done: list[int] = []
    each(5, done.append)
    assert sorted(done) == list(range(5))


def test_a_forked_child_starts_its_own_threads() -> None:
    each(9, lambda _: None)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        each(9, done.append)
        os._exit(sorted(done) != list(range(9)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
