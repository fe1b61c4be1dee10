"""Warn of stalls, waits that last long. Who waits warns itself: no thread watches.

* A thread that waits for another one wakes now and then: :func:`wait_until`.
* A request to a store ends by the client's timeout, and before it is made again, its wait may be a stall.
* A source is code of the user, which cannot warn: the thread that shows the progress of the build does.
* Who waits for another process looks again and again: :class:`cachelayer.support.progress.Waiting`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from cachelayer.support.arguments import seconds_of_environment
from cachelayer.support.counting import count
from cachelayer.support.logs import LoggerName, logger_of

SECONDS = 10.0
"""A wait is a stall after so many seconds, unless ``CACHELAYER_STALL_SECONDS`` says otherwise."""
PAUSE = 60.0
"""Seconds between two warnings of one logger."""
_warned: dict[LoggerName, float] = {}
"""The time of the last warning of each logger."""


def stall_seconds() -> float:
    """Return the seconds after which a wait is a stall."""
    return seconds_of_environment("CACHELAYER_STALL_SECONDS", SECONDS)


def warn_of_stall(logger: LoggerName, since: float, what: str) -> None:
    """Warn of a wait that is a stall, unless the logger has warned not long ago.

    ``since`` is by ``time.monotonic()``.
    """
    now = time.monotonic()
    if now - _warned.get(logger, -math.inf) >= PAUSE:
        _warned[logger] = now
        count(stalls=1)
        logger_of(logger).warning("waiting for %(seconds).0f s: %(awaited)s", {"seconds": now - since, "awaited": what})


def wait_until(has_come: Callable[[float], bool], logger: LoggerName, what: Callable[[], str]) -> None:
    """Wait for what another thread makes, and warn if that lasts long.

    ``has_come`` waits for at most so many seconds, and returns whether it is here. ``what`` is called only if the wait
    lasts long.
    """
    since = time.monotonic()
    while not has_come(stall_seconds()):
        warn_of_stall(logger, since, what())
