"""Warn of stalls, waits that last long.

A thread that waits for another one wakes now and then, and warns by itself: :func:`wait_until`. A thread in a call of a
store's client, or of a user's source, cannot: another one looks at such calls while there are any, see :class:`Wait`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

from cachelayer.arguments import seconds_of_environment
from cachelayer.counting import count
from cachelayer.errors import StorageError
from cachelayer.logs import LoggerName, logger_of
from cachelayer.system_threads import start

SECONDS = 10.0
"""A wait is a stall after so many seconds, unless ``CACHELAYER_STALL_SECONDS`` says otherwise."""
PAUSE = 60.0
"""Seconds between two warnings of one logger."""
_LOOKS_PER_STALL = 4


def stall_seconds() -> float:
    """Return the seconds after which a wait is a stall.

    Raises:
        InvalidArgumentError: if ``CACHELAYER_STALL_SECONDS`` is not a number above 0.
    """
    return seconds_of_environment("CACHELAYER_STALL_SECONDS", SECONDS)


def wait_until(has_come: Callable[[float], bool], logger: LoggerName, what: Callable[[], str]) -> None:
    """Wait for what another thread makes, and warn if that lasts long.

    Args:
        has_come: waits for at most so many seconds, and returns whether it is here.
        logger: the logger that warns.
        what: returns what is awaited, called only if the wait lasts long.
    """
    since = time.monotonic()
    while not has_come(stall_seconds()):
        _warn(logger, since, what())


class Wait:
    """A call that may last long, in the thread that enters it: ``with Wait("stores", "gs://bucket/name"): ...``.

    Args:
        logger: the logger that warns of it.
        what: what the call waits for.
    """

    __slots__ = ("logger", "since", "what")

    def __init__(self, logger: LoggerName, what: str) -> None:
        self.logger: LoggerName = logger
        self.what = what
        self.since = 0.0

    def __enter__(self) -> None:
        self.since = time.monotonic()
        _waits[id(self)] = self
        if _watch is None:
            try:
                _begin()
            except BaseException:
                del _waits[id(self)]
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _waits.pop(id(self), None)


def _warn(logger: LoggerName, since: float, what: str, waits: int = 1) -> None:
    """Warn of the longest of some waits, unless their logger has warned not long ago."""
    now = time.monotonic()
    if now - _warned.get(logger, -math.inf) >= PAUSE:
        _warned[logger] = now
        others = f", and {waits - 1} more waits" if waits > 1 else ""
        count(stalls=waits)
        logger_of(logger).warning("waiting for %.0f s: %s%s", now - since, what, others)


_waits: dict[int, Wait] = {}
_warned: dict[LoggerName, float] = {}
"""The time of the last warning of each logger."""
_lock = threading.Lock()
_watch: threading.Thread | None = None
_ended = threading.Event()
"""Tells the thread to end."""


def _look(seconds: float) -> None:
    """Look at the calls until there are none, or until the thread is told to end."""
    global _watch
    while not _ended.wait(seconds / _LOOKS_PER_STALL):
        with _lock:
            # Either a call that begins now sees that there is no thread, or this thread sees the call.
            if not _waits:
                _watch = None
                return
        late: dict[LoggerName, list[Wait]] = {}
        for wait in sorted(_waits.values(), key=lambda wait: wait.since):
            if time.monotonic() - wait.since >= seconds:
                late.setdefault(wait.logger, []).append(wait)
        for logger, waits in late.items():
            _warn(logger, waits[0].since, waits[0].what, len(waits))


def _begin() -> None:
    """Start the thread. If the system refuses one, there are no warnings."""
    global _watch
    seconds = stall_seconds()
    with _lock:
        if _watch is None:
            _ended.clear()
            _watch = threading.Thread(target=_look, args=(seconds,), name="cachelayer-stalls", daemon=True)
            try:
                start(_watch, "to watch for stalls")
            except StorageError as error:
                _watch = None
                logger_of("streams").debug("nobody warns of stalls: %s", error)


def _end() -> None:
    """End the thread: a process that forks should have as few as possible."""
    global _watch
    watch = _watch
    if watch is not None and watch is not threading.current_thread():
        _ended.set()
        watch.join()
        _watch = None


def _after_fork() -> None:
    global _lock, _watch, _ended
    _lock = threading.Lock()
    _watch = None
    _ended = threading.Event()
    _waits.clear()


os.register_at_fork(before=_end, after_in_parent=lambda: _begin() if _waits else None, after_in_child=_after_fork)
