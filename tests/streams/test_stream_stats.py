"""How long the consumer of an iterator waited, and what its verdict says."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import StreamStats


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    elements = ({"x": np.full(4, number)} for number in range(520))
    return cachelayer.Storage(tmp_path_factory.mktemp("storage")).cache(elements, "d", "v1")


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def slow(element: Any) -> Any:
    busy(0.002)
    return element["x"]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch", [20, None])
def test_the_parts_sum_to_the_time(ref: Any, batch: int | None, prefetch: int) -> None:
    iterator = iter(ref[:200].stream(batch, prefetch=prefetch).map(slow))
    for _ in iterator:
        busy(0.001)
    stats = iterator.stats()
    assert stats.waited + stats.own == pytest.approx(stats.seconds)
    assert 0 < stats.waited < stats.seconds
    assert stats.own >= 0.001 * len(ref[:200].stream(batch))
    assert json.loads(json.dumps(dataclasses.asdict(stats)))["seconds"] == stats.seconds


@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_thread_sees_that_an_iterator_waits_while_it_waits(ref: Any, prefetch: int) -> None:
    entered, free = threading.Event(), threading.Event()

    def stuck(element: Any) -> Any:
        entered.set()
        assert free.wait(60)
        return element["x"]

    iterator = iter(ref.stream(50, prefetch=prefetch).map(stuck))
    consumer = threading.Thread(target=next, args=(iterator,))
    consumer.start()
    assert entered.wait(60)
    first = iterator.stats()
    busy(0.02)
    later = iterator.stats()
    free.set()
    consumer.join()
    assert later.waited - first.waited >= 0.02


@pytest.mark.parametrize(
    ("stats", "verdict"),
    [
        (StreamStats(0, 0, 0), "nothing read yet"),
        (StreamStats(100.0, 5.0, 95.0), "waited for data 5 % of the time (5 of 100 s)"),
        (StreamStats(10.0, 9.0, 1.0), "waited for data 90 % .* threads= .* mirror"),
    ],
)
def test_the_verdict_says_what_to_do(stats: StreamStats, verdict: str) -> None:
    assert re.fullmatch(verdict.replace("(", r"\(").replace(")", r"\)") + ".*", str(stats))
