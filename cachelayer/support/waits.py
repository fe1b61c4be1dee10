"""Waits: what this process waits for, in one table, which the bar, the log and the warning read.

Whoever waits has an entry meanwhile. A wait that lasts long is a stall, of which a warning is logged. No thread watches
the table for that; there is always somebody who looks now and then:

* a thread that waits for another one wakes: :meth:`Wait.until`;
* a request to a store ends by the client's timeout, and looks before it is made again;
* a source is code of the user, which cannot look: the thread that shows the progress of the build does;
* a process that waits for another one looks again and again: :class:`cachelayer.support.progress.Waiting`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from cachelayer.support.arguments import seconds_of_environment
from cachelayer.support.counting import count
from cachelayer.support.logs import LoggerName, logger_of

SECONDS = 10.0
"""A wait is a stall after so many seconds, unless ``CACHELAYER_STALL_SECONDS`` says otherwise."""
PAUSE = 60.0
"""Seconds between two warnings of one logger."""
_table: list[Wait] = []
"""The waits of this process, in the order in which they began."""
_warned: dict[LoggerName, float] = {}
"""The time of the last warning of each logger."""


def stall_seconds() -> float:
    """Return the seconds after which a wait is a stall."""
    return seconds_of_environment("CACHELAYER_STALL_SECONDS", SECONDS)


@dataclass(eq=False)
class Wait:
    """A wait, which is in the table during its ``with`` block."""

    what: str | Callable[[], str]
    """What is awaited, or what tells it."""
    logger: LoggerName
    """The logger that warns."""
    work: object = None
    """The progress that shows it; None for none."""
    since: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Self:
        _table.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _table.remove(self)

    def __str__(self) -> str:
        return self.what if isinstance(self.what, str) else self.what()

    def look(self, title: str = "") -> None:
        """Warn if the wait is a stall, unless the logger has warned not long ago."""
        now = time.monotonic()
        if now - self.since >= stall_seconds() and now - _warned.get(self.logger, -math.inf) >= PAUSE:
            _warned[self.logger] = now
            count(stalls=1)
            fields = {"seconds": now - self.since, "awaited": f"{title}{self}"}
            logger_of(self.logger).warning("waiting for %(seconds).0f s: %(awaited)s", fields)

    def until(self, has_come: Callable[[float], bool]) -> None:
        """Wait for what another thread makes, given what waits for at most so many seconds, and tells if it is here."""
        while not has_come(stall_seconds()):
            self.look()


def wait_of(work: object) -> Wait | None:
    """Return the wait that began last of some work; None if it does not wait."""
    return next((wait for wait in reversed(_table) if wait.work is work), None)
