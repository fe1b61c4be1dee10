"""What it costs a stream to measure itself.

Its clocks and counters cannot be switched off, and they take less time than one pass differs from the next. So this
counts their calls in a pass, measures each of them alone, and compares the sum with the pass. All of it is processor
time of one thread (``prefetch=0``): what else the machine does has no part in it. Among other work a call takes longer
than alone, because less of it is in the processor's caches: counted in instructions, it is up to three times as much.

Run: ``python benchmarks/sampling_stats.py``.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from harness import machine, table

import cachelayer
from cachelayer import tally
from cachelayer.access import local_shards, record_base
from cachelayer.records.record_buffers import RecordBuffer
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.stream_meter import Meter

BATCH, PASSES, CALLS = 256, 9, 20_000
# The bytes of a record, and how many there are.
SIZES = ((3072, 16_384), (8, 65_536))
MAPPED = 8192
# What measures, by the place from which it is called.
MEASURING = (
    (Meter, "resume"),
    (tally.Tally, "turn"),
    (tally.Tally, "end"),
    (StepReader, "_timed"),
    (record_base, "turn_to"),
    (local_shards, "add_records"),
)


@contextmanager
def counting(counts: Counter[str]) -> Iterator[None]:
    """Count the calls of all that measures."""

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **options)

        return call

    with ExitStack() as stack:
        for place, name in MEASURING:
            stack.enter_context(patch.object(place, name, counted(name, getattr(place, name))))
        yield


def fastest(work: Callable[[], Any], times: int) -> float:
    """The processor seconds of the fastest call."""
    found = []
    for _ in range(times):
        begun = time.thread_time()
        work()
        found.append(time.thread_time() - begun)
    return min(found)


def seconds_of_calls() -> dict[str, float]:
    """The seconds of one call of each of them."""
    meter, records = Meter(), RecordBuffer.of([b"record"] * BATCH)
    mine = meter.ahead
    kinds = itertools.cycle((tally.READING, tally.DECODING))
    calls: dict[str, Callable[[], Any]] = {
        "resume": lambda: meter.resume(0.0, ended=False),
        # Each call begins with other work, as it does seldom: this is the most that it costs.
        "turn": lambda: mine.turn(next(kinds)),
        "turn_to": lambda: tally.turn_to(next(kinds)),
        "end": mine.end,
        "_timed": lambda: tally.counted(mine, nothing),
        "add_records": lambda: tally.add_records("memory_map", records),
    }

    def repeated(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(CALLS):
                call()

        return run

    return {name: tally.counted(mine, fastest, repeated(call), PASSES) / CALLS for name, call in calls.items()}


def nothing() -> None:
    """Do what is measured without its cost."""


def drain(stream: Any) -> None:
    """Read all of a stream."""
    for _ in stream:
        pass


def streams(folder: Path) -> Iterator[tuple[str, int, Any]]:
    """What is streamed, how many records it has, and the stream."""
    for nbytes, records in SIZES:
        ref = cachelayer.Storage(folder).submit({"x": np.zeros((records, nbytes), np.uint8)}, f"of-{nbytes}", "v1")
        options = {"shuffle": True, "seed": 1, "reshuffle": False, "prefetch": 0}
        yield f"{nbytes:,} bytes, batches of {BATCH}", records, ref.stream(BATCH, **options)
        yield f"{nbytes:,} bytes, elements", records, ref.stream(**options)
        mapped = ref[:MAPPED].stream(BATCH, **options).map(lambda element: element)
        yield f"{nbytes:,} bytes, batches of {BATCH}, mapped", MAPPED, mapped


def rows() -> list[tuple[str, ...]]:
    """What is streamed, the microseconds that 1,024 records take, those of them for stats, and the speed with stats."""
    each, found = seconds_of_calls(), []
    with tempfile.TemporaryDirectory() as folder:
        for name, records, stream in streams(Path(folder)):
            counts: Counter[str] = Counter()
            with counting(counts):
                drain(stream)
            whole = fastest(lambda stream=stream: drain(stream), PASSES)
            stats = sum(each[called] * count for called, count in counts.items())
            micros = 1024 * 1e6 / records
            found.append((name, f"{whole * micros:,.0f}", f"{stats * micros:.1f}", f"{1 - stats / whole:.4f}", "0.99"))
    return found


def main() -> None:
    """Print the table."""
    head = ("what", "µs for 1,024 records", "of these for stats", "with stats / without", "aim")
    print(table(f"Streams that measure themselves ({machine()})", head, rows()))


if __name__ == "__main__":
    main()
