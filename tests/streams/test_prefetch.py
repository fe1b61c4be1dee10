"""Reading ahead: threads that end, errors that arrive in their place, forks that go on."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import in_a_fork
from threads_denied import no_threads

import cachelayer
from cachelayer import SourceError, StorageError
from cachelayer.streams.ahead.background import Background

DEPTHS = pytest.mark.parametrize("prefetch", [0, 1, 3])


def prefetch_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("cachelayer-prefetch")}


class Threads:
    """The threads that read ahead since this was made: other tests may still hold iterators."""

    def __init__(self) -> None:
        gc.collect()
        self.others = prefetch_threads()

    def assert_they_end(self, threads: set[threading.Thread]) -> None:
        assert threads
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def now(self) -> set[threading.Thread]:
        return prefetch_threads() - self.others


@pytest.fixture
def threads() -> Threads:
    return Threads()


class Records:
    """Records that fail, and that know who read them."""

    def __init__(self, n: int, fail_at: int | None = None, error: type[BaseException] = OSError) -> None:
        self.n = n
        self.fail_at = fail_at
        self.error = error
        self.readers: list[str] = []
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.readers.append(threading.current_thread().name)
        self.read.append(index)
        if index == self.fail_at:
            raise self.error(f"record {index} is gone")
        return index

    def stream(self, batch: int | None = None, **arguments: Any) -> Any:
        return cachelayer.wrap(self, identity="records").stream(batch, **arguments)


def test_only_with_prefetch_another_thread_reads_ahead(threads: Threads) -> None:
    records = Records(10_000)
    assert len(list(records.stream(1000, prefetch=0))) == 10
    assert set(records.readers) == {threading.current_thread().name}
    assert not threads.now()
    records = Records(10_000)
    iterator = iter(records.stream(1000, prefetch=3))
    assert not records.read
    next(iterator)
    assert threads.now()
    assert len(list(iterator)) == 9
    assert any(name.startswith("cachelayer-prefetch") for name in records.readers)
    assert sorted(records.read) == list(range(10_000))


def test_objects_that_are_wrapped_and_functions_without_threads_are_called_by_one_at_a_time() -> None:
    class Exclusive(Records):
        busy = False

        def __getitem__(self, index: int) -> int:
            assert not self.busy
            self.busy = True
            os.sched_yield()
            self.busy = False
            return index

    function = Exclusive(20_000)
    assert list(Exclusive(20_000).stream(prefetch=4).map(function.__getitem__)) == list(range(20_000))


def test_the_next_records_are_read_while_functions_are_called_in_threads() -> None:
    ahead = threading.Event()

    class Watched(Records):
        def __getitem__(self, index: int) -> int:
            if index >= 8:
                ahead.set()
            return super().__getitem__(index)

    def waits(row: int) -> int:
        assert ahead.wait(60)
        return row

    assert list(Watched(200).stream(8).map(waits, threads=2).map(int, threads=3))[1].tolist() == list(range(8, 16))


@pytest.mark.parametrize("batch", [None, 1, 7])
def test_no_more_threads_than_asked_for_call_a_function_at_once(batch: int | None) -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def fails_at_times(element: Any) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(1e-3)
        with lock:
            running[0] -= 1
        if element["x"] % 50 == 3:
            raise ValueError("not this one")
        return element

    rows = cachelayer.wrap([{"x": number, "text": "a" * (number % 5)} for number in range(500)], identity="rows")
    stream = rows.stream(batch, start=70, prefetch=4).map(fails_at_times, threads=2, on_error="replace")
    with pytest.warns(cachelayer.CacheLayerWarning, match="not this one"):
        assert sum(1 if batch is None else len(item["x"]) for item in stream) == 430
    assert most[0] == 2


@pytest.mark.parametrize("depth", [1, 5])
def test_reading_ahead_has_a_limit(threads: Threads, depth: int) -> None:
    records = Records(100_000)
    iterator = iter(records.stream(2000, prefetch=depth))
    next(iterator)
    begun = threads.now()
    del iterator
    threads.assert_they_end(begun)
    assert len(records.read) <= (1 + depth) * 2000


def test_the_thread_of_an_iterator_in_a_cycle_ends_with_it(threads: Threads) -> None:
    cycle: list[Any] = [iter(Records(10_000).stream(10))]
    cycle.append(cycle)
    next(cycle[0])
    begun = threads.now()
    del cycle
    gc.collect()
    threads.assert_they_end(begun)


def test_the_thread_ends_after_an_error_without_a_collection(threads: Threads) -> None:
    iterator = iter(Records(100, fail_at=0).stream(10))
    gc.disable()
    try:
        # Not with pytest.raises, which keeps the traceback and thereby the iterator.
        try:
            next(iterator)
        except OSError:
            begun = threads.now()
        del iterator
        threads.assert_they_end(begun)
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [OSError, StopIteration])
@DEPTHS
@pytest.mark.parametrize("batch", [None, 10])
def test_an_error_comes_in_its_place_and_the_iterator_goes_on_there_or_behind(
    prefetch: int, batch: int | None, error: type[Exception]
) -> None:
    records, size = Records(2000, 1555, error), batch or 1
    iterator = iter(records.stream(batch, prefetch=prefetch))
    seen: list[int] = []
    for _ in range(3):
        with pytest.raises((OSError, RuntimeError)):
            seen.extend(record for item in iterator for record in np.ravel(item).tolist())
        assert iterator.get_state()["position"] == len(seen) == 1555 // size * size
    behind = pickle.loads(pickle.dumps(iterator))
    behind.set_state({**iterator.get_state(), "position": len(seen) + size})
    assert [record for item in behind for record in np.ravel(item).tolist()] == [*range(len(seen) + size, 2000)]
    records.fail_at = None
    seen += [record for item in iterator for record in np.ravel(item).tolist()]
    assert seen == list(range(2000))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_too_few_items_are_an_error(prefetch: int) -> None:
    class Forgetful(Records):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return indices[:-1]

    with pytest.raises(SourceError, match="getitems__"):
        list(Forgetful(100).stream(prefetch=prefetch))


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["", "del iterator", "raise SystemExit(0)"])
def test_the_interpreter_ends_with_an_iterator_open(leave: str, tmp_path: Path) -> None:
    cachelayer.Storage(tmp_path).submit(range(10_000), "numbers@v1")
    script = f"""
import sys
import cachelayer
ref = cachelayer.Storage(sys.argv[1]).fetch("numbers@v1")
iterator = iter(ref.stream(100, shuffle=True, seed=0, num_epochs=None, prefetch=4))
print(len(next(iterator)))
{leave}
"""
    done = run(script, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "100\n", "")


@pytest.mark.parametrize("kind", ["wrapped", "cached"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_forked_child_and_its_parent_both_go_on(tmp_path: Path, kind: str, prefetch: int) -> None:
    cached = cachelayer.Storage(tmp_path).submit(range(5000), "numbers@v1", shard_bytes=4000)
    stream = (Records(5000) if kind == "wrapped" else cached).stream(100, shuffle=True, seed=2, prefetch=prefetch)
    iterator, expected = iter(stream), [stream.record_numbers(step).tolist() for step in range(50)]
    for step in range(3):
        assert next(iterator).tolist() == expected[step]
    assert in_a_fork(lambda: [batch.tolist() for batch in iterator]) == expected[3:]
    assert [batch.tolist() for batch in iterator] == expected[3:]


def test_a_forked_child_ends_as_usual() -> None:
    script = """
import os, sys, warnings
import cachelayer

warnings.simplefilter("ignore")
iterator = iter(cachelayer.wrap(range(10_000), identity="numbers").stream(100, num_epochs=None))
next(iterator)
child = os.fork()
next(iterator)
if child == 0:
    sys.exit(3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(script)
    assert (done.returncode, done.stderr) == (3, "")


@DEPTHS
def test_a_copy_of_an_iterator_goes_its_own_way(prefetch: int) -> None:
    iterator = iter(cachelayer.wrap(list(range(100)), identity="n").stream(5, prefetch=prefetch))
    next(iterator)
    other, third = copy.copy(iterator), pickle.loads(pickle.dumps(iterator))
    assert next(other).tolist() == next(iterator).tolist() == next(third).tolist() == [5, 6, 7, 8, 9]
    assert len(list(other)) == len(list(iterator)) == 18


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("batch", [None, 5])
def test_threads_that_share_an_iterator_get_each_item_once(prefetch: int, batch: int | None) -> None:
    iterator = iter(Records(3000).stream(batch, prefetch=prefetch))
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: list(iterator), range(4)))
    assert sorted(int(record) for items in taken for item in items for record in np.ravel(item)) == list(range(3000))


@pytest.mark.parametrize("error", [OSError, StopIteration])
@DEPTHS
def test_a_function_of_batches_that_fails_is_called_again_and_nothing_is_lost(
    prefetch: int, error: type[Exception]
) -> None:
    failures = [12, 12, 44]

    def fails_at_times(batch: Any) -> Any:
        if failures and batch[0] == failures[0]:
            failures.pop(0)
            raise error("not now")
        return batch

    iterator = iter(Records(100).stream(4, prefetch=prefetch).map_batches(fails_at_times))
    seen: list[int] = []
    raised = 0
    while len(seen) < 100:
        try:
            seen += next(iterator).tolist()
        except (OSError, RuntimeError):
            raised += 1
            assert iterator.position == len(seen)
    assert seen == list(range(100))
    # What failed ahead of an error that came before it is read again.
    assert raised >= 2


def test_without_any_thread_reading_ahead_is_an_error_and_goes_on_when_there_are_threads(tmp_path: Path) -> None:
    ref = cachelayer.Storage(tmp_path).submit([bytes([number]) for number in range(20)], "d@v1")
    iterator, found = iter(ref.stream(prefetch=2)), []
    with no_threads(), pytest.raises(StorageError, match="no thread to read in: can't start new thread"):
        found.extend(iterator)
    assert [*found, *iterator] == [bytes([number]) for number in range(20)]


def test_a_task_that_comes_after_the_threads_were_told_to_end_is_dropped() -> None:
    background = Background("cachelayer-late", 2)
    assert [background.submit(int).result(60) for _ in range(2)] == [0, 0]
    background.close()
    with pytest.raises(CancelledError):
        background.submit(int).result(60)


LEFT_EARLY = """
import time
import cachelayer

rows = cachelayer.wrap(list(range(10_000)), identity="rows")
for _ in range(20):
    next(iter(rows.stream(8).map(lambda row: time.sleep(1e-4) or row, threads=4)))
"""


def test_a_program_ends_that_left_streams_early_whose_functions_have_threads() -> None:
    subprocess.run([sys.executable, "-c", LEFT_EARLY], check=True, timeout=120)


READ_AT_THE_END = """
import atexit

atexit.register(lambda: print(sum(len(batch) for batch in iterator)))
import cachelayer

iterator = iter(cachelayer.wrap(list(range(10_000)), identity="rows").stream(100, prefetch=4))
next(iterator)
"""


def test_an_iterator_is_read_to_its_end_when_the_program_has_ended_its_threads() -> None:
    assert run(READ_AT_THE_END).stdout == "9900\n"


def test_a_task_runs_once_in_a_thread_or_where_it_is_awaited() -> None:
    background, ran = Background("cachelayer-claims", 2), []
    tasks = [background.submit(partial(ran.append, number)) for number in range(5000)]
    for task in reversed(tasks):
        if task.claim(here=True):
            # As after an interrupt between the two.
            assert task.claim(here=True)
            task.run_here()
    assert [task.result(60) for task in tasks] == [None] * 5000
    assert sorted(ran) == list(range(5000))
    background.close()
