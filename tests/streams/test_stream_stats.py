"""How long the consumer of an iterator waited, and what its verdict says."""

import dataclasses
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ReadingStats, StreamStats, counters


def parts(stats: StreamStats) -> float:
    return stats.reading.seconds + stats.functions + stats.hand_over


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize(("batch", "prefetch"), [(20, 0), (20, 2), (None, 0)])
def test_the_parts_sum_to_the_time_and_another_thread_sees_that_an_iterator_waits_while_it_waits(
    batch: int | None, prefetch: int
) -> None:
    entered, free = threading.Event(), threading.Event()

    def stuck(element: int) -> int:
        if element == 0:
            entered.set()
            assert free.wait(60)
        return element

    stream = cachelayer.wrap(list(range(100)), identity="numbers").stream(batch, prefetch=prefetch).map(stuck)
    iterator = iter(stream)

    def consume() -> None:
        for _ in iterator:
            busy(0.001)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert entered.wait(60)
    first = iterator.stats()
    busy(0.02)
    later = iterator.stats()
    free.set()
    consumer.join()
    assert later.waited - first.waited >= 0.02
    stats = iterator.stats()
    assert stats.waited + stats.own == pytest.approx(stats.seconds)
    for each in (first, later, stats):
        assert parts(each) == pytest.approx(each.waited)
    assert stats.functions >= 0.02
    assert later.waited <= stats.waited < stats.seconds
    assert stats.own >= 0.001 * len(stream)
    assert stats.is_mapped
    assert not iter(cachelayer.wrap([1], identity="one").stream()).stats().is_mapped
    assert json.loads(json.dumps(dataclasses.asdict(stats)))["seconds"] == stats.seconds


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_process_counts_what_its_iterators_count(prefetch: int, tmp_path: Path) -> None:
    ref = cachelayer.Storage(tmp_path).cache({"x": np.zeros((2000, 100))}, "zeros@v1")
    before = counters()
    iterators = [iter(ref.stream(100, prefetch=prefetch).map(slow)), iter(ref.stream(100, prefetch=prefetch))]
    mapped, plain = [[sum(1 for _ in iterator), iterator.stats()][1] for iterator in iterators]
    after = {name: number - before[name] for name, number in counters().items()}
    assert mapped.functions >= 0.9 * 0.02
    assert plain.functions == 0
    assert plain.reading.seconds > 0
    assert mapped.reading.bytes == plain.reading.bytes >= 2000 * 800
    assert after["bytes_from_disk"] == mapped.reading.bytes + plain.reading.bytes
    assert after["waited_seconds"] == pytest.approx(mapped.waited + plain.waited, abs=0.01)
    assert after["functions_seconds"] == pytest.approx(mapped.functions, abs=0.01)
    assert not after["requests"]


def slow(element: Any) -> Any:
    busy(0.00001)
    return element


@pytest.mark.parametrize(
    ("stats", "verdict"),
    [
        (StreamStats(0, 0, 0), "nothing read yet"),
        (StreamStats(100.0, 5.0, 95.0), "waited for data 5 % of the time (5 of 100 s)"),
        (StreamStats(100.0, 50.0, 50.0), "waited for data 50 % of the time (50 of 100 s)"),
        (
            StreamStats(9.0, 9.0, 0.0, functions=8.5, hand_over=0.5),
            ".*: functions 8.5 s, hand-over 0.5 s; .* threads= ",
        ),
        (
            StreamStats(9.0, 9.0, 0.0, hand_over=9.0),
            ".*: hand-over 9 s; pass larger batches or, if worker processes read, more workers",
        ),
        (
            StreamStats(9.0, 9.0, 0.0, reading=ReadingStats(9.0, 2000, 40, 1)),
            ".*: reading 9 s (2.0 kB in 40 requests, 1 of them again); .* mirror",
        ),
        (StreamStats(9.0, 9.0, 0.0, reading=ReadingStats(9.0, 2000, 40, 9)), ".*; the store often fails"),
        (
            StreamStats(9.0, 9.0, 0.0, reading=ReadingStats(9.0, 2000)),
            ".*: reading 9 s (2.0 kB); leave fields out .* not in memory",
        ),
    ],
)
def test_the_verdict_says_what_to_do(stats: StreamStats, verdict: str) -> None:
    assert re.fullmatch(verdict.replace("(", r"\(").replace(")", r"\)") + ".*", str(stats))
