"""Show progress on stderr: a bar in terminals and notebooks, lines in logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

_NO_SIZE = {"ncols": 80, "nrows": 24}
"""The size to assume if a terminal reports none: tqdm would draw nothing there."""

# As tqdm's own, but always with units a second: it turns rates below one around.
_WITH_TOTAL = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
_WITHOUT_TOTAL = "{desc}: {n_fmt}{unit} [{elapsed}, {rate_noinv_fmt}{postfix}]"


@dataclass(frozen=True)
class Status:
    """The progress of some work at one moment.

    Args:
        title: the name of the work.
        unit: what is counted, in the singular.
        done: number of units done, including skipped ones.
        total: number of units, if it is known.
        skipped: number of units that were done before this run.
        nbytes: bytes of the units done in this run.
        seconds: duration of this run.
        parts: how many parts are done, in words; empty if the work has no parts.
        stall: what to say if the work stands still; empty if it moves.
    """

    title: str
    unit: str
    done: int
    total: int | None
    skipped: int
    nbytes: int
    seconds: float
    parts: str = ""
    stall: str = ""

    @property
    def line(self) -> str:
        """The line for a log while the work goes on."""
        share = f" ({_percent(self.done, self.total)})" if self.total else ""
        facts = [f"{self._counted}{share}", self.parts, *self._amounts, self._left]
        return f"{self.title}: {', '.join(filter(None, facts))}{self.stall and '; '}{self.stall}"

    @property
    def first_line(self) -> str:
        """The line for a log when the work begins."""
        return f"{self.title}: started" + (f", {self.total:,} {self.unit}s to do" if self.total is not None else "")

    def last_line(self, *, is_done: bool) -> str:
        """Return the line for a log when the work has ended."""
        if not is_done:
            return f"{self.title}: stopped after {self._counted} in {clock(self.seconds)}"
        facts = [_number(self.done, self.unit), *self._amounts, f"in {clock(self.seconds)}"]
        return f"{self.title}: done: {', '.join(facts)}"

    @property
    def bar_text(self) -> str:
        """The text behind the bar."""
        megabytes = f"{self.nbytes / max(self.seconds, 1e-9) / 1e6:.1f} MB/s" if self.nbytes else ""
        return ", ".join(filter(None, [megabytes, self.parts, self.stall]))

    @property
    def _counted(self) -> str:
        return (
            f"{self.done:,} of {self.total:,} {self.unit}s" if self.total is not None else _number(self.done, self.unit)
        )

    @property
    def _amounts(self) -> list[str]:
        now, seconds = self.done - self.skipped, max(self.seconds, 1e-9)
        megabytes = [f"{self.nbytes / 1e6:,.1f} MB"] if self.nbytes else []
        rates = [f"{_rate(now / seconds)} {self.unit}s/s"] if now else []
        return [*megabytes, *rates, *([f"{self.nbytes / seconds / 1e6:,.1f} MB/s"] if self.nbytes else [])]

    @property
    def _left(self) -> str:
        now = self.done - self.skipped
        if not self.total or not now or self.done >= self.total:
            return ""
        return f"{clock(max(1.0, self.seconds / now * (self.total - self.done)))} left"


class Display(Protocol):
    """Shows a status."""

    is_live: bool
    """True for a bar, which is redrawn in place; False for lines."""

    def show(self, status: Status) -> None: ...

    def close(self, status: Status, *, is_done: bool) -> None: ...


class _Bar:
    """A bar that is redrawn in place."""

    is_live = True

    def __init__(self, make: Callable[..., Any], stream: IO[str], status: Status) -> None:
        self._bar = make(
            desc=status.title,
            total=status.total,
            unit=f" {status.unit}s",
            unit_scale=True,
            file=stream,
            bar_format=_WITHOUT_TOTAL if status.total is None else _WITH_TOTAL,
            **({"dynamic_ncols": True} if _has_size(stream) else _NO_SIZE),
        )

    def show(self, status: Status) -> None:
        # Set n instead of calling update(): tqdm then shows the rate of the whole run, without the initial units.
        self._bar.n, self._bar.initial = status.done, status.skipped
        self._bar.set_postfix_str(status.bar_text, refresh=False)
        self._bar.refresh()

    def close(self, status: Status, *, is_done: bool) -> None:
        self.show(status)
        self._bar.close()
        # A notebook's bar is green if it does not know its total, also after a failure.
        if not is_done and hasattr(self._bar, "disp"):
            self._bar.disp(bar_style="danger")


class _Lines:
    """Lines for a log."""

    is_live = False

    def __init__(self, stream: IO[str], status: Status, *, at_once: bool) -> None:
        self._stream = stream
        self._has_shown = at_once
        if at_once:
            with harmless():
                write(stream, status.first_line)

    def show(self, status: Status) -> None:
        write(self._stream, status.line)
        self._has_shown = True

    def close(self, status: Status, *, is_done: bool) -> None:
        if self._has_shown:
            write(self._stream, status.last_line(is_done=is_done))


def clock(seconds: float) -> str:
    """Return a duration as ``1:05`` or ``2:00:10``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def display_for(enabled: bool | None, status: Status) -> Display | None:
    """Return the display that the argument ``progress`` asks for; None to show nothing."""
    stream = stderr()
    if enabled is False or stream is None:
        return None
    with harmless():
        if _is_notebook():
            return _Bar(_notebook_bar(), stream, status)
        if stream.isatty():
            return _Bar(_text_bar(), stream, status)
    return _Lines(stream, status, at_once=enabled is True)


def _is_notebook() -> bool:
    """Return whether output goes to a notebook. Like tqdm, look for a kernel that runs the program."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def _notebook_bar() -> Callable[..., Any]:
    from tqdm import notebook

    if notebook.IProgress is None:
        # Without ipywidgets a notebook still shows a bar of text.
        return _text_bar()
    bar: Callable[..., Any] = notebook.tqdm_notebook
    return bar


def _text_bar() -> Callable[..., Any]:
    from tqdm import tqdm

    bar: Callable[..., Any] = tqdm
    return bar


def _has_size(stream: IO[str]) -> bool:
    """Return whether a terminal reports its size: those of containers and CI may report 0."""
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):
        return False


def stderr() -> IO[str] | None:
    """Return stderr; None if there is none, as in a daemon, or it is closed."""
    stream = sys.stderr
    return None if stream is None or getattr(stream, "closed", False) else stream


def write(stream: IO[str], line: str) -> None:
    """Write a line in one call: other processes may write to the same log."""
    stream.write(f"{line}\n")
    stream.flush()


def harmless() -> suppress:
    """Return a context that ignores every error of stderr, so that none ends the work.

    stderr may be full or closed, or an object of the user's program that lacks other methods of a file than ``write``.
    """
    return suppress(Exception)


def _percent(done: int, total: int) -> str:
    """Return a share as text. What is not done is never called 100%."""
    rounded = round(100 * done / total)
    return f"{min(rounded, 99) if done < total else rounded}%"


def _number(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
