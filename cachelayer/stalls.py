"""Warn of stalls, waits that last long: a thread looks now and then at what the other threads wait for.

The first wait starts the thread. It ends when no thread waits, and before a fork.
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


class Wait:
    """A wait of the thread that enters it: ``with Wait("stores", "gs://bucket/name"): ...``.

    Args:
        logger: the logger that warns of it.
        what: what it waits for, or a function that returns that, called only if the wait lasts long.
    """

    __slots__ = ("logger", "since", "what")

    def __init__(self, logger: LoggerName, what: str | Callable[[], str]) -> None:
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

    def __str__(self) -> str:
        return self.what if isinstance(self.what, str) else self.what()


def stall_seconds() -> float:
    """Return the seconds after which a wait is a stall.

    Raises:
        InvalidArgumentError: if ``CACHELAYER_STALL_SECONDS`` is not a number above 0.
    """
    return seconds_of_environment("CACHELAYER_STALL_SECONDS", SECONDS)


class _Watch(threading.Thread):
    """Looks at the waits until there are none, or until it is told to end."""

    def __init__(self) -> None:
        super().__init__(name="cachelayer-stalls", daemon=True)
        self.ended = threading.Event()
        self._seconds = stall_seconds()

    def run(self) -> None:
        global _watch
        while not self.ended.wait(self._seconds / _LOOKS_PER_STALL):
            with _lock:
                # Either a thread that begins to wait now sees that there is no watch, or this thread sees its wait.
                _watch = None
                if not _waits:
                    return
                _watch = self
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        late: dict[LoggerName, list[Wait]] = {}
        for wait in list(_waits.values()):
            if now - wait.since >= self._seconds:
                late.setdefault(wait.logger, []).append(wait)
        for logger, waits in late.items():
            if now - _warned.get(logger, -math.inf) >= PAUSE:
                _warned[logger] = now
                longest = min(waits, key=lambda wait: wait.since)
                others = f", and {len(waits) - 1} more waits" if len(waits) > 1 else ""
                count(stalls=len(waits))
                logger_of(logger).warning("waiting for %.0f s: %s%s", now - longest.since, longest, others)


_waits: dict[int, Wait] = {}
_warned: dict[LoggerName, float] = {}
"""The time of the last warning of each logger."""
_lock = threading.Lock()
_watch: _Watch | None = None


def _begin() -> None:
    """Start the thread that watches the waits. If the system refuses a thread, there are no warnings."""
    global _watch
    with _lock:
        if _watch is None:
            watch = _Watch()
            try:
                start(watch, "to watch for stalls")
            except StorageError as error:
                logger_of("streams").debug("nobody warns of stalls: %s", error)
                return
            _watch = watch


def _end() -> None:
    """End the thread: a process that forks should have as few as possible."""
    global _watch
    watch = _watch
    if watch is not None and watch is not threading.current_thread():
        watch.ended.set()
        watch.join()
        _watch = None


def _go_on() -> None:
    if _waits:
        _begin()


def _after_fork() -> None:
    global _lock, _watch
    _lock = threading.Lock()
    _watch = None
    _waits.clear()


os.register_at_fork(before=_end, after_in_parent=_go_on, after_in_child=_after_fork)
