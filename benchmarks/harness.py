"""What the benchmarks share: rounds in which all contenders take turns, medians, a table."""

from __future__ import annotations

import gc
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROUNDS = 3
"""Unless a benchmark needs more."""
_SPREADS: list[float] = []
"""Of each median since the last table: how far its rounds were apart."""


def medians(
    contenders: Mapping[str, Callable[[], int]], rounds: int = ROUNDS, *, warm_up: bool = True
) -> dict[str, float]:
    """Items a second of each contender: the median over rounds in which they take turns.

    Args:
        contenders: each does its work and returns the number of items that it did.
        warm_up: whether there is one more round before, which does not count.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(not warm_up, rounds + 1):
        for name, work in contenders.items():
            gc.collect()
            started = time.perf_counter()
            items = work()
            elapsed = time.perf_counter() - started
            if number:
                rates[name].append(items / elapsed)
    return {name: median(each) for name, each in rates.items()}


def median(values: Iterable[float]) -> float:
    """The median of what rounds gave, whose spread the next table tells."""
    each = list(values)
    found = statistics.median(each)
    note_spread((max(each) - min(each)) / found if found else 0.0)
    return found


def spread() -> float:
    """The largest spread of a contender since the last table: its best round less its worst, over its median."""
    worst = max(_SPREADS, default=0.0)
    _SPREADS.clear()
    return worst


def note_spread(found: float) -> None:
    """Count a spread that another process measured."""
    _SPREADS.append(found)


@contextmanager
def named_folder(place: int = 1) -> Iterator[Path]:
    """The folder that the argument at a place names, which is made if it is not there; else a temporary one."""
    if sys.argv[place:]:
        folder = Path(sys.argv[place])
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)


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
    """Peak resident memory of this process, or of the largest of those that it started and that ended, in MB."""
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(used) / 1024


def table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table, and below it the spread of what it shows, and the peak memory up to now."""
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    worst = spread()
    rounds = f"Rounds spread over {worst:.0%} of their median at most. " if worst else ""
    below = f"{rounds}Peak memory: {peak_mb():,.0f} MB."
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), "", below])


def bars(title: str, rows: list[tuple[str, dict[str, float]]], *, shared: bool = False) -> str:
    """An SVG of horizontal bars: a group for each row, scaled to its own longest bar, or to the longest of all."""
    most = max((rate for _, rates in rows for rate in rates.values()), default=1.0)
    colours = ("#58a6ff", "#9da7b3", "#6e7681")
    parts, top = [], 40
    for name, rates in rows:
        parts.append(f'<text x="16" y="{top}" font-weight="600">{_escaped(name)}</text>')
        longest = most if shared else max(rates.values())
        for place, (contender, rate) in enumerate(rates.items()):
            y = top + 8 + 18 * place
            width = max(2.0, 380 * rate / longest)
            parts.append(
                f'<rect x="120" y="{y}" width="{width:.0f}" height="13" rx="2" fill="{colours[min(place, 2)]}"/>'
            )
            parts.append(f'<text x="112" y="{y + 11}" text-anchor="end">{_escaped(contender)}</text>')
            parts.append(f'<text x="{126 + width:.0f}" y="{y + 11}">{rate:,.0f}</text>')
        top += 34 + 18 * len(rates)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{top}" font-family="sans-serif" '
        # Dark on pages of either colour, as the pictures of terminals are.
        'font-size="12" fill="#e6edf3">\n'
        '<rect width="100%" height="100%" rx="8" fill="#292929"/>\n'
        f'<text x="16" y="20" font-size="14">{_escaped(title)}</text>\n'
        f"{body}\n</svg>\n"
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
