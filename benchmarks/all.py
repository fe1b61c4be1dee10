"""Run the benchmarks one after another, each in a fresh process, and write what they print to ``docs/performance.md``.

Run: ``python benchmarks/all.py [--only NAME ...] [--python NAME=PYTHON ...] [--quick] [--charts]`` on a machine that
does nothing else. ``--only`` runs some of them. ``--python`` runs one of them in another Python, which has packages
that this one does not have. ``--quick`` takes less than ten minutes: it leaves out the long ones, makes others smaller,
stops when the time is over, and writes nothing. ``--charts`` only draws the charts again from the page.

Each benchmark owns the part of the page between ``<!-- benchmark: NAME -->`` and ``<!-- end of NAME -->``. The part
named "all" says whether all others are from one run.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness import bars, machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
QUICK_SECONDS = 540
MOST_SECONDS = 480
"""A benchmark that takes longer is ended, and counts as failed."""


@dataclass(frozen=True)
class Benchmark:
    """How a script is run.

    Args:
        arguments: what it is given.
        quick: what it is given to be quick; None to leave it out then.
    """

    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None


BENCHMARKS = {
    "build": Benchmark(quick=()),
    "read": Benchmark(quick=("images", "stream", "single", "elements")),
    "read_grid": Benchmark(quick=("zstd",)),
    "order": Benchmark(quick=()),
    "locality": Benchmark(),
    "language": Benchmark(("200", "2000000"), quick=("20", "100000")),
    "train": Benchmark(quick=()),
    "train_jax": Benchmark(quick=()),
}
WHOLE = "all"
"""The part of the page that says whether the others are from one run."""


def run(name: str, arguments: Sequence[str], seconds: float = MOST_SECONDS, python: str = sys.executable) -> str:
    """Run a benchmark in a process of its own, and return what it printed and what it took.

    Raises:
        subprocess.SubprocessError: if it fails, or takes longer than ``seconds``.
    """
    started = time.perf_counter()
    command = [python, str(HERE / f"{name}.py"), *arguments]
    # Another Python may have another version of this library, or none.
    paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # Servers and workers that a benchmark started are to end with it: they share its session.
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return f"{printed.strip()}\n\nMeasured in {time.perf_counter() - started:,.0f} s ({machine()})."


def marks(name: str) -> tuple[str, str]:
    """Return what comes before and after the part of a benchmark in the page."""
    return f"<!-- benchmark: {name} -->", f"<!-- end of {name} -->"


def part(page: str, name: str) -> str:
    """Return the part of a benchmark in the page."""
    begin, end = marks(name)
    return page[page.index(begin) + len(begin) : page.index(end)].strip()


def with_part(page: str, name: str, printed: str) -> str:
    """Return the page with another part of a benchmark."""
    begin, end = marks(name)
    start, stop = page.index(begin) + len(begin), page.index(end)
    return f"{page[:start]}\n{printed}\n{page[stop:]}"


def rows(markdown: str) -> list[list[str]]:
    """Return the cells of the first table in a text, without its head."""
    found: list[list[str]] = []
    for line in markdown.splitlines():
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found:
            break
    return found[2:]


def number(text: str) -> float:
    """Return the first number in a cell."""
    return float(re.findall(r"\d[\d,]*\.?\d*", text)[0].replace(",", ""))


def charts(page: str) -> dict[str, str]:
    """Return the charts, each drawn from a table of the page."""
    reading, building, order = (rows(part(page, name)) for name in ("read", "build", "order"))
    read = []
    for work, ours, others, *_ in reading:
        rates = {"cachelayer": number(ours)}
        rates |= {name: number(rate) for name, rate in re.findall(r"([\w.]+) (\d[\d,]*)", others)}
        read.append((work.replace("`", ""), rates))
    built = [
        (source.replace("`", ""), {"cachelayer": number(ours), "a plain loop": number(loop)})
        for source, ours, loop, *_ in building
    ]
    scale = [(kind, {"numbers": number(rate) * 1e6}) for kind, rate, *_ in order]
    return {
        "read.svg": bars("Records a second, hot page cache, one process", read),
        "build.svg": bars("Records a second that are built", built),
        "scale.svg": bars("Record numbers a second on one core", scale, shared=True),
    }


def write(page: str) -> None:
    """Write the page and its charts."""
    PAGE.write_text(page)
    for name, svg in charts(page).items():
        (DOCS / name).write_text(svg)


def main(names: Sequence[str], pythons: Mapping[str, str], *, quick: bool) -> None:
    """Run benchmarks, print what they print, and write it to the page unless they were quick."""
    started, load, failed = time.perf_counter(), os.getloadavg()[0], []
    for name in names:
        benchmark, left = BENCHMARKS[name], QUICK_SECONDS - (time.perf_counter() - started)
        arguments = benchmark.quick if quick else benchmark.arguments
        if arguments is None or (quick and left <= 0):
            print(f"{name}: left out, to be quick", file=sys.stderr)
            continue
        begun = time.perf_counter()
        try:
            printed = run(name, arguments, left if quick else MOST_SECONDS, pythons.get(name, sys.executable))
        except subprocess.SubprocessError as error:
            # The others are worth their time all the same.
            printed = f"Not measured in the last run: {type(error).__name__}."
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
        print(printed, end="\n\n", flush=True)
        print(f"{name}: {time.perf_counter() - begun:,.0f} s", file=sys.stderr)
        if not quick:
            write(with_part(PAGE.read_text(), name, printed))
    took = f"{(time.perf_counter() - started) / 60:,.0f} minutes ({machine()}; load before it {load:.1f})."
    print(f"All of it took {took}", file=sys.stderr)
    if not quick:
        whole = set(names) == set(BENCHMARKS)
        head = f"All tables are from one run, which took {took}" if whole else "The tables are from several runs."
        write(with_part(PAGE.read_text(), WHOLE, head))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def named_python(text: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=PYTHON``."""
    name, _, python = text.partition("=")
    if name not in BENCHMARKS or not Path(python).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a benchmark, '=' and the path of a Python")
    return name, python


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=[*BENCHMARKS], metavar="NAME")
    parser.add_argument("--python", nargs="+", type=named_python, default=[], metavar="NAME=PYTHON")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--charts", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # What is running ends with this, as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if given.charts:
        write(PAGE.read_text())
    else:
        main(given.only, dict(given.python), quick=given.quick)
