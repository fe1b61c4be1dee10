"""The reading of one block of items: whether anybody still waits for it, and what comes of it beside the items."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cachelayer.streams.block_rows import BlockRows
from cachelayer.streams.failures import Failure
from cachelayer.streams.interruptible_future import Flag
from cachelayer.tally import Tally

U = TypeVar("U")


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class Reading:
    """The reading of one block: whether anybody still waits for it, and how long the user's functions took.

    Args:
        stops: flags, one of which is set when nobody waits any longer.
        tally: counts the reading; None if nobody asks.

    Attributes:
        rows: number of records in each item, in order; empty for elements.
        failures: the elements that others stand in for.
        blocks: for the begin of each step, the blocks that its records are read from; None to read them where they lie.
    """

    __slots__ = ("blocks", "failures", "rows", "seconds", "stops", "tally")

    def __init__(self, *stops: Flag, tally: Tally | None = None) -> None:
        self.stops = stops
        self.tally = Tally() if tally is None else tally
        self.rows: list[int] = []
        self.seconds = 0.0
        self.failures: list[Failure] = []
        self.blocks: Mapping[int, BlockRows] | None = None

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function, and during long waits."""
        for stop in self.stops:
            if stop.is_set():
                raise Dropped

    def timed(self, work: Callable[..., U], *arguments: Any) -> U:
        """Return what a function returns, and count its time as that of the user's functions."""
        begun = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            self.seconds += time.perf_counter() - begun

    def tried(self, read: Callable[[], U]) -> tuple[U | None, Exception | None]:
        """Return what is read at once, or else the error: it comes again when the records are read one by one."""
        try:
            return read(), None
        except Exception as error:  # noqa: BLE001
            self.failures.clear()
            return None, error


def raise_unrepeated(failure: Exception | None) -> None:
    """Raise an error that did not come again when records were read one by one, if a signal handler may have raised it.

    Such an error comes only once, and must not be lost.
    """
    if failure is not None and threading.current_thread() is threading.main_thread():
        raise failure
