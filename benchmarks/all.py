"""Run the benchmarks of docs/performance.md one after another, each in a fresh process, and write its tables.

Run: ``python benchmarks/all.py [NAME ...]`` on a machine that does nothing else, after the installs that the scripts
name. Names, such as ``against_bagz``, choose some of them. The page has a part between ``<!-- benchmark: NAME -->`` and
``<!-- end of NAME -->`` for each.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import bars

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
BENCHMARKS = ("against_marin", "against_litdata", "against_lance", "against_bagz", "against_array_record")


def run(name: str) -> str:
    """Run a benchmark in a process of its own, and return what it printed.

    Raises:
        subprocess.CalledProcessError: if it fails.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, str(HERE / f"{name}.py")]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


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


def chart(page: str) -> str:
    """Return the drawing of the tables that compare records a second with one other reader."""
    groups = []
    for name in ("against_array_record", "against_bagz"):
        for line in part(page, name).splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if rates := re.fullmatch(r"(array_record|bagz) ([\d,]+)", cells[2] if len(cells) == 4 else ""):
                group = {"cachelayer": float(cells[1].replace(",", "")), rates[1]: float(rates[2].replace(",", ""))}
                groups.append((cells[0], group))
    return bars("Records a second, hot page cache, one process", groups)


def main(names: Sequence[str]) -> None:
    """Run benchmarks, and write what they print to the page; the table of one that fails stays as it was."""
    failed = []
    for name in names:
        try:
            printed = run(name)
        except subprocess.CalledProcessError:
            # The others are worth their time all the same.
            failed.append(name)
            continue
        print(printed, end="\n\n", flush=True)
        PAGE.write_text(with_part(PAGE.read_text(), name, printed))
    (DOCS / "read.svg").write_text(chart(PAGE.read_text()))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    main(parser.parse_args().names or BENCHMARKS)
