"""How much is read ahead of functions that are slow, or make much of little."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ElementError
from cachelayer.streams.pace import Pace, nbytes_of


def numbers(n: int) -> Any:
    return cachelayer.wrap(range(n), identity="numbers")


class Counted:
    """A function that counts its calls, and waits before some of them."""

    def __init__(self, waits_from: int | None = None) -> None:
        self.calls: list[int] = []
        self.waits_from = waits_from
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def __call__(self, n: int) -> Any:
        self.calls.append(n)
        self.begun.set()
        if self.waits_from is not None and n >= self.waits_from:
            assert self.go_on.wait(60)
        return self.made(n)

    def made(self, n: int) -> Any:
        return n


class Large(Counted):
    """Makes 3 MB of each number."""

    def made(self, n: int) -> Any:
        return np.full(3 << 20, n, np.uint8)


def everything_ahead(iterator: Any) -> None:
    """Wait until all is read that is read ahead."""
    for ahead in iterator._blocks._ahead:
        ahead.outcome.result()


@pytest.mark.parametrize(("batch", "first"), [(4, 4), (None, 1)])
@pytest.mark.parametrize("threads", [0, 2])
def test_the_first_batch_comes_after_the_calls_for_its_own_records(batch: int | None, first: int, threads: int) -> None:
    fn = Counted(waits_from=max(first, threads if batch is None else 0))
    iterator = iter(numbers(1000).stream(batch, prefetch=3).map(fn, threads=threads))
    assert np.ravel(next(iterator)).tolist() == list(range(first))
    fn.go_on.set()


@pytest.mark.parametrize("batch", [None, 4])
def test_without_prefetch_exactly_the_calls_that_are_needed_are_made(batch: int | None) -> None:
    fn = Counted()
    iterator = iter(numbers(1000).stream(batch, prefetch=0).map(fn))
    for step in range(1, 20):
        next(iterator)
        assert fn.calls == list(range(step * (batch or 1)))


@pytest.mark.parametrize(
    ("kind", "batch"), [("mapped", None), ("mapped", 2), ("wrapped", None), ("wrapped", 2), ("batches mapped", 2)]
)
def test_what_functions_make_is_held_for_no_more_batches_than_are_asked_for(kind: str, batch: int | None) -> None:
    fn, size = Large(), batch or 1
    if kind == "mapped":
        stream = numbers(1000).stream(batch, prefetch=2).map(fn)
    elif kind == "wrapped":
        made = type("Made", (), {"__len__": lambda _: 1000, "__getitem__": lambda _, n: fn(n)})
        stream = cachelayer.wrap(made(), identity="made").stream(batch, prefetch=2)
    else:
        stream = numbers(1000).stream(batch, prefetch=2).map_batches(lambda rows: [fn(n) for n in rows.tolist()])
    iterator = iter(stream)
    for step in range(4):
        next(iterator)
        everything_ahead(iterator)
        assert len(fn.calls) <= (step + 1 + 2) * size


def test_small_and_quick_elements_are_mapped_together() -> None:
    fn = Counted()
    iterator = iter(numbers(100_000).stream(prefetch=2).map(fn))
    for _ in range(20_000):
        next(iterator)
    assert max(len(ahead.plan.after) for ahead in iterator._blocks._ahead) > 50


def test_the_pace_grows_while_items_are_quick_and_small_and_falls_when_they_are_not() -> None:
    pace = Pace(1, 1, 128)
    for size in (2, 4, 8, 16, 32, 64, 128, 128):
        pace = pace.learnt(pace.size, 0.001, 1000)
        assert pace.size == size
    assert pace.learnt(128, 0.001, 1 << 20).size == 4
    assert pace.learnt(128, 0.001, 1 << 30).size == 1
    assert pace.learnt(128, 1.28, 1000).size == 1
    assert pace.learnt(3, 0.001, 1000).size == 128
    assert pace.learnt(1, 0.001, float("inf")).size == 1


def test_bytes_are_those_of_arrays_and_text_and_unknown_for_other_objects() -> None:
    assert nbytes_of({"x": np.zeros(1000), "y": [b"a" * 500, ("b" * 500, None, 1)]}) >= 9000
    assert nbytes_of(np.array([b"a" * 1000] * 3, object)) >= 3000
    assert nbytes_of([np.zeros(1000)] * 100) >= 800_000
    assert nbytes_of(object()) == float("inf")


def test_a_thread_whose_iterator_is_dropped_ends_after_the_call_that_runs() -> None:
    for threads in (0, 2):
        fn = Counted(waits_from=0)
        stream = numbers(10_000).stream(1000).map(fn, threads=threads)
        iterator = iter(stream)
        iterator._blocks._read_ahead(0, 1)
        assert fn.begun.wait(60)
        worker = iterator._blocks._worker
        thread = worker._threads[0]
        del iterator, worker
        fn.go_on.set()
        thread.join(60)
        assert not thread.is_alive()
        assert len(fn.calls) <= 4


SCRIPT = """
import os, sys, threading, time
import cachelayer

begun = threading.Event()

def slow(n):
    os.write(1, b"x")
    begun.set()
    time.sleep(0.05)
    return n

iterator = iter(cachelayer.wrap(range(10_000), identity="n").stream(1000).map(slow, threads=THREADS))
iterator._blocks._read_ahead(0, 2)
begun.wait()
LEAVE
"""


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "leave"), [(0, ""), (2, "sys.exit()"), (0, "raise ValueError")])
def test_leaving_the_program_waits_for_no_more_than_the_call_that_runs(threads: int, leave: str) -> None:
    script = SCRIPT.replace("THREADS", str(threads)).replace("LEAVE", leave)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == (leave == "raise ValueError")
    assert len(done.stdout) < 100
    assert done.stderr == "" or "ValueError" in done.stderr


@pytest.mark.parametrize("batch", [None, 3])
def test_a_function_that_returns_nothing_is_refused_where_it_does(batch: int | None) -> None:
    iterator = iter(numbers(10).stream(batch).map(lambda n: n if n != 7 else None))
    seen: list[Any] = []
    with pytest.raises(ElementError, match=r"record 7: .*map\(\), at global position 7, got None\. Did the function f"):
        seen.extend(n for item in iterator for n in np.ravel(item).tolist())
    assert seen == list(range(7 if batch is None else 6))
    with pytest.raises(ElementError, match=r"map_batches\(\), of the batch at global position 0, got None"):
        next(iter(numbers(10).stream(5).map_batches(lambda batch: None)))
    nothing = cachelayer.wrap([None, 1, None], identity="some are None")
    assert list(nothing.stream().map(lambda item: item)) == [None, 1, None]


def test_a_mixture_says_that_it_has_no_length(tmp_path: Any) -> None:
    ref = cachelayer.Storage(tmp_path).cache([1, 2, 3], "numbers", "v1")
    with pytest.raises(TypeError, match="a mixture has no end, and so no length"):
        len(cachelayer.mix([(ref, 1)]).stream(2))
