"""What the benchmarks share: rounds in which all contenders take turns, medians, a table."""

from __future__ import annotations

import gc
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def medians(contenders: Mapping[str, Callable[[], int]], rounds: int = 5) -> dict[str, float]:
    """Items a second of each contender: the median over rounds in which they take turns, after one warm-up round.

    Args:
        contenders: each does its work and returns the number of items that it did.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            gc.collect()
            started = time.perf_counter()
            items = work()
            elapsed = time.perf_counter() - started
            if number:
                rates[name].append(items / elapsed)
    return {name: statistics.median(found) for name, found in rates.items()}


def machine() -> str:
    """The machine, for the head of a table."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


def peak_mb() -> float:
    """Peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
