"""What the benchmarks share: contenders that take turns, records to read, a table."""

from __future__ import annotations

import argparse
import gc
import io
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

LOAD = os.getloadavg()[0]
"""What else ran on the machine in the minute before."""
SIDE = 32
"""Pixels of a side of `images`."""


def arguments(docstring: str | None, **defaults: int) -> argparse.Namespace:
    """The sizes that the command line gives, or else these."""
    parser = argparse.ArgumentParser(description=(docstring or "").splitlines()[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{default:,} by default")
    return parser.parse_args()


def rounds(contenders: Mapping[str, Callable[[], int]], count: int) -> dict[str, list[float]]:
    """Items a second of each contender in rounds in which they take turns, after one that does not count.

    Args:
        contenders: each does its work and returns the number of items that it did.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count + 1):
        for name, work in contenders.items():
            gc.collect()
            started = time.perf_counter()
            items = work()
            elapsed = time.perf_counter() - started
            if number:
                rates[name].append(items / elapsed)
    return rates


class Comparison:
    """The rows of a table of two sides that do the same work."""

    def __init__(self, unit: str, count: int) -> None:
        self.unit, self.count = unit, count
        self.rows: list[tuple[str, ...]] = []

    def add(self, work: str, ours: Callable[[], int], other: str, theirs: Callable[[], int]) -> None:
        """Measure both sides by turns: the median rate of each, and the median of the ratios of neighbouring rounds."""
        rates = rounds({"ours": ours, "theirs": theirs}, self.count)
        ratio = median(one / another for one, another in zip(rates["ours"], rates["theirs"], strict=True))
        row = work, f"{median(rates['ours']):,.0f}", f"{other} {median(rates['theirs']):,.0f}", f"{ratio:.2f}"
        print("|", " | ".join(row), "|", file=sys.stderr, flush=True)
        self.rows.append(row)

    def print(self, *packages: str) -> None:
        """Print the table, with the versions of the packages that were compared."""
        title = f"{self.unit} read in a second, medians of {self.count} rounds ({machine(*packages)})"
        print(table(title, ("work", "cachelayer", "other", "ratio"), self.rows))


def check_same(ours: Any, theirs: Any) -> None:
    """Refuse to compare the speed of sides that do not give the same.

    Raises:
        ValueError: if they differ.
    """
    if isinstance(ours, dict):
        if ours.keys() != theirs.keys():
            raise ValueError(f"the fields are {sorted(ours)} here, {sorted(theirs)} there")
        for name in ours:
            check_same(ours[name], theirs[name])
    elif not np.array_equal(ours, theirs):
        raise ValueError("the two sides give different records")


def images(records: int) -> dict[str, np.ndarray]:
    """Records of 3 KB: a picture and its number."""
    values = np.random.default_rng(0).integers(0, 256, (records, SIDE, SIDE, 3), dtype=np.uint8)
    return {"image": values, "label": np.arange(records, dtype=np.int64)}


def encoded(arrays: dict[str, np.ndarray]) -> Iterator[bytes]:
    """Such records as a hand-written pipeline stores them: the label, then the picture."""
    for image, label in zip(arrays["image"], arrays["label"], strict=True):
        yield label.tobytes() + image.tobytes()


def decode(raw: bytes) -> dict[str, Any]:
    """One of them, as a hand-written pipeline decodes it."""
    image = np.frombuffer(raw, np.uint8, SIDE * SIDE * 3, 8).reshape(SIDE, SIDE, 3)
    return {"image": image, "label": np.frombuffer(raw, np.int64, 1)[0]}


def decoded_batch(rows: Iterable[bytes]) -> dict[str, np.ndarray]:
    """A batch of them, as a hand-written pipeline stacks it."""
    elements = [decode(raw) for raw in rows]
    return {name: np.stack([element[name] for element in elements]) for name in elements[0]}


def jpegs(count: int) -> list[bytes]:
    """Different files of 500 x 400 pixels: smooth shapes with some noise, about as long as those of photographs."""
    from PIL import Image

    rng = np.random.default_rng(0)
    noise = rng.normal(0, 6, (400, 500, 3))
    files = []
    for _ in range(count):
        shapes = Image.fromarray(rng.integers(0, 256, (25, 31, 3), np.uint8))
        smooth = np.asarray(shapes.resize((500, 400), Image.Resampling.BICUBIC)) + noise
        file = io.BytesIO()
        Image.fromarray(smooth.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def shuffled_batches(records: int, size: int, most: int = 40_000) -> list[np.ndarray]:
    """Record numbers in random order, in batches."""
    order = np.random.default_rng(5).permutation(records)[:most]
    return [order[start : start + size] for start in range(0, len(order), size)]


def reading(read: Callable[[Any], Any], wanted: Sequence[Any]) -> Callable[[], int]:
    """A contender that reads one number, or one batch of them, after the other, and counts records."""

    def run() -> int:
        for numbers in wanted:
            read(numbers)
        return sum(map(np.size, wanted))

    return run


def machine(*packages: str) -> str:
    """The machine, its load before, and the versions of some packages, for the title of a table."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    hardware = f"{os.cpu_count()} cores, {model}, load {LOAD:.1f} before"
    versions = [f"{name} {version(name)}" for name in packages]
    return ", ".join([hardware, f"Python {platform.python_version()}", *versions])


def peak_mb() -> float:
    """Peak resident memory of this process, or of the largest of those that it started and that ended, in MB."""
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(used) / 1024


def table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table below a title."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
    return "\n".join([f"{title}:", "", *lines])


def bars(title: str, rows: list[tuple[str, dict[str, float]]]) -> str:
    """An SVG of horizontal bars: a group for each row, scaled to its own longest bar."""
    colours = ("#58a6ff", "#9da7b3", "#6e7681")
    parts, top = [], 40
    for name, rates in rows:
        parts.append(f'<text x="16" y="{top}" font-weight="600">{_escaped(name)}</text>')
        for place, (contender, rate) in enumerate(rates.items()):
            y = top + 8 + 18 * place
            width = max(2.0, 380 * rate / max(rates.values()))
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
