"""One reading of some steps: whether anybody still waits for it, and which elements others stand in for."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

from cachelayer.streams.reading.failures import Failure


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class ReadContext:
    """A reading of some steps.

    Args:
        closed: set when nobody waits any longer; None if the consumer itself reads, to whom an interrupt is raised at
            once.
    """

    __slots__ = ("closed", "failures")

    def __init__(self, closed: Event | None = None) -> None:
        self.closed = closed
        self.failures: list[Failure] = []
        """The elements that others stand in for."""

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function."""
        if self.closed is not None and self.closed.is_set():
            raise Dropped

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
        """Return what a function returns and None, or None and the error that comes in place of an item."""
        try:
            return function(*arguments), None
        except StopIteration as error:
            return None, _stopped(error)
        except BaseException as error:
            if isinstance(error, Dropped) or (self.closed is None and not isinstance(error, Exception)):
                raise
            return None, error


def _stopped(error: StopIteration) -> RuntimeError:
    """Return the error for a StopIteration, which would end loops of callers without a word."""
    failure = RuntimeError(f"a function of the stream, or what it reads, raised StopIteration({error})")
    failure.__cause__ = error
    return failure
