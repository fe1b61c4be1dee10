"""How long the consumer of an iterator waited, and what its verdict says."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time

import pytest

import cachelayer
from cachelayer import StreamStats


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
    assert later.waited <= stats.waited < stats.seconds
    assert stats.own >= 0.001 * len(stream)
    assert stats.is_mapped
    assert not iter(cachelayer.wrap([1], identity="one").stream()).stats().is_mapped
    assert json.loads(json.dumps(dataclasses.asdict(stats)))["seconds"] == stats.seconds


@pytest.mark.parametrize(
    ("stats", "verdict"),
    [
        (StreamStats(0, 0, 0), "nothing read yet"),
        (StreamStats(100.0, 5.0, 95.0), "waited for data 5 % of the time (5 of 100 s)"),
        (StreamStats(10.0, 9.0, 1.0), "waited for data 90 % .* functions .* threads= .* mirror"),
        (
            StreamStats(10.0, 9.0, 1.0, False),
            "waited for data 90 % of the time (9 of 10 s): leave fields out .* mirror",
        ),
    ],
)
def test_the_verdict_says_what_to_do(stats: StreamStats, verdict: str) -> None:
    assert re.fullmatch(verdict.replace("(", r"\(").replace(")", r"\)") + ".*", str(stats))
