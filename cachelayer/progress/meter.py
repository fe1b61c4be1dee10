"""Measure progress, and show it: as a bar in terminals and notebooks, as a line every half minute in logs.

Work counts in plain attributes. A daemon thread reads and shows them at fixed intervals, so that counting costs next to
nothing, and users see when work stands still.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from cachelayer.progress.display import Display, Status, clock, display_for, harmless, stderr, write

R = TypeVar("R")


class Progress:
    """Shows on stderr the progress of the work in its ``with`` block.

    Args:
        title: the name of the work.
        total: number of units, if it is known.
        enabled: True shows it from the start, False never. None shows a bar in a terminal or a notebook, and elsewhere
            lines: the first after :attr:`line_seconds`, so that short work writes nothing to logs.
        unit: what is counted, in the singular.
    """

    line_seconds: ClassVar[float] = 30.0
    """Seconds between two lines."""
    bar_seconds: ClassVar[float] = 0.5
    """Seconds between two updates of the bar."""
    quiet_seconds: ClassVar[float] = 60.0
    """Seconds without progress after which the display says so."""

    def __init__(self, title: str, total: int | None, enabled: bool | None, *, unit: str = "record") -> None:
        self.drawn = 0
        """Units taken from the source, even if they are not written yet; sources add to it."""
        self.waits_for = ""
        """What the work is waiting for; empty if it is not."""
        self._title = title
        self._total = total
        self._enabled = enabled
        self._unit = unit
        self._skipped = self._written = self._nbytes = 0
        self._parts: tuple[int, int] | None = None
        self._of_parts = (0, 0)
        self._elsewhere: list[Callable[[], tuple[int, int]]] = []
        self._display: Display | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._process = os.getpid()
        self._began = self._moved = time.monotonic()
        self._seen = 0
        self._token: Token[Progress | None] | None = None

    def update(self, records: int, nbytes: int) -> None:
        """Count units that were just written, and their bytes."""
        self._written += records
        self._nbytes += nbytes

    def skip(self, records: int) -> None:
        """Count units that were done before this run; the rate leaves them out."""
        self._skipped += records

    def parts(self, done: int, count: int) -> None:
        """Set how many parts of the work are done."""
        self._parts = (done, count)

    def part_done(self, records: int, nbytes: int) -> None:
        """Count a finished part. Units that were counted while the part was made do not count twice."""
        if self._parts is not None:
            self._parts = (self._parts[0] + 1, self._parts[1])
        self._of_parts = (self._of_parts[0] + records, self._of_parts[1] + nbytes)

    def watch(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Add the units and bytes that another process counts."""
        self._elsewhere.append(counts)

    def waiting_for(self, who: str, items: Iterator[R]) -> Iterator[R]:
        """Yield the items; say that the work waits for ``who`` while each is made."""
        while True:
            before, self.waits_for = self.waits_for, who
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.waits_for = before
            yield item

    @property
    def counts(self) -> tuple[int, int]:
        """Units and bytes done in this run."""
        elsewhere = [counts() for counts in self._elsewhere]
        drawn = self.drawn + sum(records for records, _ in elsewhere)
        made = sum(nbytes for _, nbytes in elsewhere)
        return max(drawn, self._written, self._of_parts[0]), max(self._nbytes, made, self._of_parts[1])

    def status(self) -> Status:
        """Return the progress at this moment."""
        now = time.monotonic()
        records, nbytes = self.counts
        if records + nbytes != self._seen:
            self._seen, self._moved = records + nbytes, now
        quiet = now - self._moved
        return Status(
            title=self._title,
            unit=self._unit,
            done=self._skipped + records,
            total=self._total,
            skipped=self._skipped,
            nbytes=nbytes,
            seconds=now - self._began,
            parts="" if self._parts is None else f"{self._parts[0]:,} of {self._parts[1]:,} parts",
            stall=_stall(self._unit, quiet, self.waits_for) if quiet >= self.quiet_seconds else "",
        )

    def __str__(self) -> str:
        total = "" if self._total is None else f" of {self._total:,}"
        return f"{self._skipped + self.counts[0]:,}{total} {self._unit}s"

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        self._began = self._moved = time.monotonic()
        self._display = display_for(self._enabled, self.status())
        if self._display is not None:
            self._thread = threading.Thread(
                target=self._show, args=(self._display,), name="cachelayer-progress", daemon=True
            )
            # An interpreter that is shutting down cannot start threads.
            with suppress(RuntimeError):
                self._thread.start()
        return self

    def _show(self, display: Display) -> None:
        while not self._ended.wait(self.bar_seconds if display.is_live else self.line_seconds):
            with harmless():
                display.show(self.status())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _CURRENT.reset(self._token)
        # A forked child has no thread to end, and nothing to report.
        if self._display is None or self._thread is None or os.getpid() != self._process:
            return
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with harmless():
            self._display.close(self.status(), is_done=kind is None)


class Waiting:
    """Says on stderr whom some work is waiting for, and repeats it every half minute until that is over.

    Args:
        title: the name of the work.
        enabled: False says nothing.
        after: seconds before it says so for the first time.
    """

    def __init__(self, title: str, enabled: bool | None, *, after: float = 0.0) -> None:
        self._title = title
        self._enabled = enabled
        self._after = after
        self._who = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = 0.0

    def wait_for(self, who: str) -> None:
        """Set whom the work is waiting for."""
        self._who = who
        if self._thread is None and self._enabled is not False:
            self._began = time.monotonic()
            if not self._after:
                notice(f"{self._title}: waiting for {who}", self._enabled)
            self._thread = threading.Thread(target=self._remind, name="cachelayer-waiting", daemon=True)
            with suppress(RuntimeError):
                self._thread.start()

    def _remind(self) -> None:
        if self._after and not self._over.wait(self._after):
            notice(f"{self._title}: waiting for {self._who}", self._enabled)
        while not self._over.wait(Progress.line_seconds):
            waited = clock(time.monotonic() - self._began)
            notice(f"{self._title}: still waiting for {self._who} after {waited}", self._enabled)

    def over(self) -> None:
        """Stop: the waiting is over."""
        self._over.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over()


_CURRENT: ContextVar[Progress | None] = ContextVar("cachelayer_progress", default=None)


def current() -> Progress:
    """Return the progress of the work that the caller is part of; one that is not shown if there is none."""
    return _CURRENT.get() or Progress("", None, enabled=False)


def notice(text: str, enabled: bool | None) -> None:
    """Write a line on stderr, unless ``enabled`` is False."""
    stream = stderr()
    if enabled is False or stream is None:
        return
    with harmless():
        tqdm = sys.modules.get("tqdm")
        if tqdm is None:
            write(stream, text)
        else:
            # tqdm keeps the line out of its bars.
            tqdm.tqdm.write(text, file=stream)


def _stall(unit: str, seconds: float, who: str) -> str:
    return f"no {unit} for {seconds:.0f} s" + (f": waiting for {who}" if who else "")
