"""Threads share the work of a read, and nothing else changes."""

from __future__ import annotations

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


def test_the_error_of_the_least_number_is_raised() -> None:
    both = threading.Barrier(3)

    def fail(number: int) -> None:
        both.wait(30)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        each(3, fail)
