"""Show the progress of work on stderr: as a bar in a terminal or a notebook, elsewhere as a line every half minute.

Work counts in plain attributes, which costs next to nothing. A thread shows them at fixed intervals, also when the work
stands still, and warns if it waits long for its source.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from cachelayer.errors import StorageError
from cachelayer.support.logs import logger_of
from cachelayer.support.system_threads import program_ends, start
from cachelayer.support.waits import Wait, stall_seconds, wait_of

_log = logger_of("builds")
_LOOKS_PER_STALL = 4
HARMLESS = suppress(Exception)
"""A context that ignores every error of stderr, which may be closed, full, or an object of the user."""
R = TypeVar("R")


class Progress:
    """Shows the progress of the work in its ``with`` block.

    ``enabled`` shows the progress from the start. None shows a bar in a terminal or a notebook, and elsewhere lines,
    the first after :attr:`line_seconds`, so that short work writes nothing to logs.
    """

    line_seconds: ClassVar[float] = 30.0
    """Seconds between two lines."""
    bar_seconds: ClassVar[float] = 0.5
    """Seconds between two updates of the bar."""
    quiet_seconds: ClassVar[float] = 60.0
    """Seconds without progress after which the line says what the work is waiting for."""

    def __init__(self, title: str, total: int | None, enabled: bool | None, *, unit: str = "record") -> None:
        self.drawn = 0
        """Units taken from the source, also those that are not written yet. Sources add to it."""
        self._stall_seconds = stall_seconds()
        self._title = title
        self.total = total
        """Units of the whole work; None if that is not known."""
        self._enabled = enabled
        self._unit = f" {unit}s"
        self._skipped = self._written = self._nbytes = 0
        self.parts: tuple[int, int] | None = None
        """How many parts of the work are done, and how many there are; None if it has none."""
        self._of_parts = (0, 0)
        self._bar: Any = None
        self._has_line = False
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._began = self._moved = time.monotonic()
        self._seen = 0
        self._token: Token[Progress | None] | None = None

    def update(self, records: int, nbytes: int) -> None:
        """Count units that were just written, and their bytes."""
        self._written += records
        self._nbytes += nbytes

    def skip(self, records: int) -> None:
        """Count units that were done before this run. They do not count for the rate."""
        self._skipped += records

    def part_done(self, records: int, nbytes: int) -> None:
        """Count a finished part, whose units may have been counted before, while it was made: none counts twice."""
        if self.parts is not None:
            self.parts = (self.parts[0] + 1, self.parts[1])
        self._of_parts = (self._of_parts[0] + records, self._of_parts[1] + nbytes)

    def waiting_for(self, who: str, items: Iterator[R]) -> Iterator[R]:
        """Yield items, and show that the work waits for ``who`` while the next item is made."""
        if self._thread is None and self._token is not None:
            self._start_thread()
        while True:
            with Wait(who, "builds", self):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    @property
    def counts(self) -> tuple[int, int]:
        """Units and bytes done in this run."""
        return max(self.drawn, self._written, self._of_parts[0]), max(self._nbytes, self._of_parts[1])

    @property
    def done(self) -> int:
        """Units that are done, also those from before this run."""
        return self._skipped + self.counts[0]

    def __str__(self) -> str:
        total = "" if self.total is None else f" of {self.total:,}"
        return f"{self.done:,}{total}{self._unit}"

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        self._began = self._moved = time.monotonic()
        if self._enabled is False or sys.stderr is None:
            return self
        with HARMLESS:
            in_notebook = "ipykernel" in sys.modules
            if in_notebook or sys.stderr.isatty():
                # tqdm draws nothing in a terminal that reports no size, such as those of containers and CI.
                columns, rows = shutil.get_terminal_size()
                shape = {} if in_notebook else {"ncols": columns, "nrows": rows}
                # With a delay, tqdm draws nothing before it is asked to.
                self._bar = tqdm_of_process()(
                    desc=self._title, total=self.total, unit=self._unit, unit_scale=True, delay=1e-9, **shape
                )
        if self._bar is None and self._enabled:
            self._write("started")
        self._start_thread()
        return self

    def _start_thread(self) -> None:
        if not program_ends():
            name = "cachelayer-progress"
            thread = threading.Thread(target=self.show_until, args=(self._ended,), name=name, daemon=True)
            try:
                start(thread, "to show the progress")
            except StorageError as error:
                _log.warning("%(work)s: %(error)s", {"work": self._title, "error": error})
            else:
                self._thread = thread

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._token is not None:
            _CURRENT.reset(self._token)
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._bar is not None or self._has_line:
            self._show("done" if kind is None else "stopped")
        with HARMLESS:
            if self._bar is not None:
                self._bar.close()

    def show_until(self, ended: threading.Event, done: Callable[[], int] | None = None) -> None:
        """Show the progress in this thread until something has ended; ``done`` counts units that nothing else does."""
        pause = self.line_seconds if self._bar is None else self.bar_seconds
        shows_next = time.monotonic() + pause
        while not ended.wait(min(pause, self._stall_seconds / _LOOKS_PER_STALL)):
            now = time.monotonic()
            wait = wait_of(self)
            if wait is not None:
                wait.look(f"{self._title or 'a part'}: ")
            if now >= shows_next:
                shows_next += pause
                if done is not None:
                    self.drawn = done()
                if self._enabled is not False:
                    self._show()

    def _show(self, end: str = "") -> None:
        now = time.monotonic()
        records, nbytes = self.counts
        if records + nbytes != self._seen:
            self._seen = records + nbytes
            self._moved = now
        seconds = now - self._began
        quiet = now - self._moved
        done = self._skipped + records
        notes = [end]
        if nbytes:
            notes += [size(nbytes), f"{nbytes / max(seconds, 1e-9) / 1e6:.1f} MB/s"]
        if self.parts is not None:
            notes.append(f"{self.parts[0]:,} of {self.parts[1]:,} parts")
        if quiet >= self.quiet_seconds:
            wait = wait_of(self)
            reason = "" if wait is None else f": waiting for {wait}"
            notes.append(f"nothing for {quiet:.0f} s{reason}")
        text = ", ".join(filter(None, notes))
        with HARMLESS:
            if self._bar is None:
                self._write(_meter(done, self.total, seconds, self._unit, self._skipped, text))
            else:
                # Set n instead of calling update(): tqdm then shows the rate of the whole run.
                self._bar.n = done
                self._bar.initial = self._skipped
                self._bar.set_postfix_str(text, refresh=False)
                # tqdm itself keeps its lock if stderr fails, and every bar of the process would stand still.
                with self._bar.get_lock():
                    self._bar.refresh(nolock=True)

    def _write(self, text: str) -> None:
        self._has_line = True
        notice(f"{self._title}: {text}", enabled=True)


def _meter(done: int, total: int | None, seconds: float, unit: str, skipped: int, text: str) -> str:
    from tqdm import tqdm

    # A width of 0 leaves the bar out.
    line = tqdm.format_meter(
        done, total, seconds, ncols=0, unit=unit, unit_scale=True, initial=skipped, postfix=text or None
    )
    return str(line).strip()


def size(nbytes: int) -> str:
    """Format a number of bytes in powers of 1000, such as ``1.5 GB``."""
    number = float(nbytes)
    unit = "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if number < 999.5 or unit == "PB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 99.95 else f"{number:.1f} {unit}"


def unless_short(enabled: bool | None, pieces: int) -> bool | None:
    """Return whether work of so many pieces shows its progress: work of one piece does only if a user asks for it."""
    return False if enabled is None and pieces < 2 else enabled


_CURRENT: ContextVar[Progress | None] = ContextVar("cachelayer_progress", default=None)


def current() -> Progress:
    """Return the progress of the work that the caller is part of; if there is none, a progress that is not shown."""
    return _CURRENT.get() or Progress("", None, enabled=False)


class Waiting:
    """Says every half minute for whom some work is waiting: in the log, and unless ``enabled`` is False on stderr."""

    def __init__(self, title: str, enabled: bool | None) -> None:
        self._title = title
        self._enabled = enabled
        self.over()

    def over(self) -> None:
        """Begin anew: the work does not wait any more."""
        self._since = self._next = time.monotonic()

    def wait_for(self, who: str) -> Wait:
        """Return the wait, and say for whom it is, if it is time to. Call this whenever the work has looked in vain."""
        wait = Wait(who, "builds", _CURRENT.get(), self._since)
        now = time.monotonic()
        if now >= self._next:
            _log.info("%(work)s: waiting for %(awaited)s", {"work": self._title, "awaited": who})
            notice(f"{self._title}: waiting for {who}", self._enabled)
            self._next = now + Progress.line_seconds
        wait.look(f"{self._title}: ")
        return wait


def notice(text: str, enabled: bool | None) -> None:
    """Write a line on stderr, unless ``enabled`` is False."""
    if enabled is False or sys.stderr is None:
        return
    with HARMLESS:
        if "tqdm" not in sys.modules:
            # One call: other processes may write to the same log.
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        else:
            # tqdm keeps the line out of its bars.
            tqdm_of_process().write(text, file=sys.stderr)


@cache
def tqdm_of_process() -> Any:
    """Return tqdm with a lock of this process.

    tqdm's own lock is shared with forked processes: if one is killed while it draws, the lock stays taken for ever.
    """
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        pass

    def renew_lock() -> None:
        Bar.set_lock(threading.RLock())

    renew_lock()
    os.register_at_fork(after_in_child=renew_lock)
    return Bar
