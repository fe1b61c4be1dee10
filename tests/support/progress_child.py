"""Work that shows its progress, for tests of what a process writes: ``progress_child.py NAME...``.

The stderr of each is a file ``<name>.log`` in the folder that the process runs in; that of ``terminal`` is a terminal,
and what it shows is copied to the file.
"""

from __future__ import annotations

import os
import pty
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import cachelayer
from cachelayer.progress import Progress, Waiting

QUICK = 0.02
"""Seconds between two signs of life."""
FEW = 20
PATIENCE = 30.0


class Stage:
    """Lets a source go on when the process has written something, to a file or a terminal that is copied to one."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def until(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.log.read_text():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text!r} was not written: {self.log.read_text()!r}")
            threading.Event().wait(QUICK / 2)


def rows(stage: Stage) -> Iterator[dict[str, Any]]:
    """Far fewer rows than make a batch, one at a time."""
    for number in range(FEW):
        yield {"number": number, "payload": np.zeros(1000, np.uint8)}
        if number == 6:
            stage.until("7.00/20.0")


def slow_source(stage: Stage) -> None:
    class Rows:
        def __len__(self) -> int:
            return FEW

        def __iter__(self) -> Iterator[Any]:
            return rows(stage)

    cachelayer.Storage(stage.log.with_suffix(".cache")).submit(Rows(), "rows", "v1")


def terminal(stage: Stage) -> None:
    class Rows:
        def __len__(self) -> int:
            return FEW

        def __iter__(self) -> Iterator[Any]:
            for number in range(FEW):
                yield {"number": number}
                if number == 6:
                    stage.until("7.00/20.0")

    cachelayer.Storage(stage.log.with_suffix(".cache")).submit(Rows(), "rows", "v1")
    stage.until("100%")


def hanging_source(stage: Stage) -> None:
    Progress.quiet_seconds = 2 * QUICK

    def source() -> Iterator[int]:
        yield 1
        stage.until(": waiting for the source")
        yield 2

    cachelayer.Storage(stage.log.with_suffix(".cache")).submit(source, "rows", "v1")


def parts(stage: Stage) -> None:
    def part(index: int, count: int) -> Iterator[int]:
        yield from range(3 * index, 3 * index + 3)

    cachelayer.Storage(stage.log.with_suffix(".cache")).submit(cachelayer.sharded(part, 2), "rows", "v1", workers=2)


class Slow(Sequence[int]):
    """A sequence that processes encode."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: Any) -> int:
        if number >= 40:
            raise IndexError(number)
        if number == 18:
            self.stage.until("/40.0 [")
        return number


def workers(stage: Stage) -> None:
    cachelayer.Storage(stage.log.with_suffix(".cache")).submit(Slow(stage), "rows", "v1", workers=2)


def fails(stage: Stage) -> None:
    def source() -> Iterator[int]:
        yield 1
        stage.until(": 1.00 records")
        raise OSError("no more")

    with suppress(cachelayer.SourceError):
        cachelayer.Storage(stage.log.with_suffix(".cache")).submit(source, "rows", "v1")


def quick(stage: Stage) -> None:
    Progress.line_seconds = 30.0
    cachelayer.Storage(stage.log.with_suffix(".cache")).submit([1, 2], "rows", "v1")


def asked_for(stage: Stage) -> None:
    Progress.line_seconds = 30.0
    cachelayer.Storage(stage.log.with_suffix(".cache")).submit([1, 2], "rows", "v1", progress=True)


def unwanted(stage: Stage) -> None:
    with Progress("rows", None, enabled=False):
        Waiting("rows", enabled=False).wait_for("nobody")


def ends_in_the_middle(stage: Stage) -> None:
    Progress("rows", 10, enabled=True).__enter__()


def waits(stage: Stage) -> None:
    waiting = Waiting("rows@v1", None)
    while stage.log.read_text().count("waiting for another process") < 2:
        waiting.wait_for("another process")


def _terminal(log: Path) -> int:
    """A terminal that says no size, as in a container; what it shows is copied."""
    ours, theirs = pty.openpty()

    def copy() -> None:
        with log.open("ab", buffering=0) as file:
            while True:
                file.write(os.read(ours, 1 << 16))

    threading.Thread(target=copy, daemon=True).start()
    return theirs


def main(names: list[str]) -> None:
    for name in names:
        log = Path(f"{name}.log").resolve()
        log.touch()
        os.dup2(_terminal(log) if name == "terminal" else os.open(log, os.O_WRONLY | os.O_APPEND), 2)
        Progress.line_seconds = Progress.bar_seconds = QUICK
        work: Callable[[Stage], None] = globals()[name]
        work(Stage(log))


if __name__ == "__main__":
    main(sys.argv[1:])
