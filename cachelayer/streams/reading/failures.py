"""Failures: elements that others stand in for, because a function or decoding raised an error for them; and the errors
that end the reading of a chunk.

Reading hands errors on as values: they come in place of the step that they belong to, perhaps in another thread. An
error holds its traceback, whose frames hold their variables: the batch, the iterator and, if a frame has the error in a
variable, the error itself. So nobody keeps one longer than needed; see :func:`clear_callers`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from threading import Event
from types import FrameType
from typing import Any, TypeVar

from cachelayer.errors import CorruptionError, ElementError, FormatError, NotFoundError, StorageError
from cachelayer.support.counting import StageClock
from cachelayer.support.system_threads import Pool
from cachelayer.support.user_warnings import warn

R = TypeVar("R")
Submit = Callable[[Callable[[], Any]], Any]
"""Makes a call in another thread, as ``Background.submit`` does."""
E = TypeVar("E", bound=BaseException)
MOST_FAILURES = 100
"""The number of failures that an iterator replaces, unless ``map`` is given another."""
_LISTED = 100
"""The most records that an error lists."""
# Not about the element: the storage fails, or the machine, or a package is missing.
_NEVER_REPLACED = (CorruptionError, FormatError, ImportError, MemoryError, NotFoundError, StorageError)


@dataclass(frozen=True, eq=False)
class Failure:
    """An element that failed, and that another one stands in for; ``iterator.failures`` lists them.

    Examples:
        >>> stream = cachelayer.wrap(["1", "2", "three", "4"], identity="texts").stream(4)
        >>> iterator = iter(stream.map(int, on_error="replace"))
        >>> next(iterator).tolist()
        [1, 2, 2, 4]
        >>> [failure] = iterator.failures
        >>> failure.record, failure.position, failure.stand_in
        (2, 2, 1)
        >>> print(failure)
        record 2 at position 2: ValueError: invalid literal for int() with base 10: 'three'
    """

    record: int
    """The number of the record that failed, in what the stream reads: ``ref[record]``."""
    position: int
    """The position at which it failed."""
    error: Exception
    """The error that the function or decoding raised. It has no traceback, which would hold the memory of the batch."""
    stand_in: int
    """The number of the record whose element came in its place."""

    def __str__(self) -> str:
        return f"record {self.record} at position {self.position}: {error_text(self.error)}"


def warn_of_failure(failure: Failure, rest: str) -> None:
    """Warn of a failure; ``rest`` says how to see the others."""
    warn(
        f"record {failure.record} failed at position {failure.position}, and another record stands in for it: "
        f"{error_text(failure.error)}. {rest}",
        logger="streams",
    )


def picklable(failure: Failure) -> Failure:
    """Return the failure for another process: if its error cannot be pickled, with an error of the same text."""
    try:
        pickle.loads(pickle.dumps(failure.error))  # noqa: S301 - made on this line
    except Exception:  # noqa: BLE001 - whatever a class of the user raises
        error = RuntimeError(error_text(failure.error))
        for note in getattr(failure.error, "__notes__", ()):
            error.add_note(note)
        return replace(failure, error=error)
    return failure


def error_text(error: BaseException) -> str:
    """Return the last line of an error's traceback: its class and its message."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_of_element(error: BaseException) -> bool:
    """Return whether an error is about one element, so that another element can stand in for it."""
    return isinstance(error, Exception) and not isinstance(error, _NEVER_REPLACED)


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """Return what a function returns and None, or None and its error."""
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001 - it is handed on
        return None, error


def clear_callers(error: BaseException) -> None:
    """Clear the variables of the functions that have returned an error as a value.

    A traceback has the frames from where the error was raised up to where it was caught. These frames refer to their
    callers, which have returned the error, and so hold it in their variables: a cycle, which would keep the elements of
    the batch and the iterator until Python next looks for cycles.
    """
    frames: list[FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in frames:
        caller = frame.f_back
        while caller is not None:
            if caller not in frames:
                try:
                    caller.clear()
                except RuntimeError:
                    # It has not returned yet.
                    break
            caller = caller.f_back


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class ReadContext:
    """The context of reading a chunk: at which stage it is, its failures, and whether anybody still waits for it.

    ``closed`` is set when nobody waits for the chunk any longer; None if the consumer reads it in its own thread, where
    an interrupt is raised at once. ``submit`` runs a task in a thread of the iterator; None starts threads for this
    chunk.
    """

    __slots__ = ("clock", "closed", "failures", "submit")

    def __init__(self, closed: Event | None = None, submit: Submit | None = None) -> None:
        self.closed = closed
        self.submit = submit
        self.clock = StageClock()
        self.failures: list[Failure] = []
        """The failed elements that stand-ins replaced."""

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function."""
        if self.closed is not None and self.closed.is_set():
            raise Dropped

    def run_at_once(self, calls: Sequence[Callable[[], R]]) -> list[R]:
        """Make calls in a thread each; return what they return when all have ended."""
        if self.submit is None:
            with Pool(len(calls), "cachelayer-map") as pool:
                return [future.result() for future in [pool.submit(call) for call in calls]]
        tasks = [self.submit(call) for call in calls]
        try:
            return [task.result() for task in tasks]
        except CancelledError as error:
            raise Dropped from error
        finally:
            for task in tasks:
                task.wait()

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
        """Return what a function returns and None, or None and the error that comes in place of an item.

        An interrupt of the consumer's own thread is no such error, and is raised.
        """
        try:
            return function(*arguments), None
        except StopIteration as error:
            return None, _stop_iteration_error(error)
        except BaseException as error:
            if isinstance(error, Dropped) or (self.closed is None and not isinstance(error, Exception)):
                raise
            return None, error


def _stop_iteration_error(error: StopIteration) -> RuntimeError:
    """Return the error for a StopIteration, which would end loops of callers without a word."""
    failure = RuntimeError(f"a function of the stream, or what it reads, raised StopIteration({error})")
    failure.__cause__ = error
    return failure


def without_traceback(error: E) -> E:
    """Take the tracebacks off an error and the errors that led to it, and return it."""
    chain: list[BaseException] = [error]
    for link in chain:
        link.with_traceback(None)
        chain += [cause for cause in (link.__cause__, link.__context__) if cause is not None and cause not in chain]
    return error


def failure_of(record: int, position: int, error: Exception, stand_in: int) -> Failure:
    """Return a failure whose error names the record by its number in the stream, not in the dataset."""
    if isinstance(error, ElementError) and error.record not in (None, record):
        named = error.at(record=record)
        named.__cause__ = error.__cause__
        error = named
    return Failure(record, position, without_traceback(error), stand_in)


def too_many(failures: Sequence[Failure], limit: int) -> ElementError:
    """Return the error for more failures than an iterator replaces, with the numbers of the records."""
    records = sorted({failure.record for failure in failures})
    listed = ", ".join(map(str, records[:_LISTED]))
    more = f" and {len(records) - _LISTED} more" if len(records) > _LISTED else ""
    last = failures[-1]
    error = ElementError(
        f"at most {limit} elements that fail (max_failures={limit})",
        f"{len(failures)}: records {listed}{more}. The last is {str(last).rstrip('.')}",
        hint=f"Leave them out: ref.exclude([{listed}{', ...' if more else ''}]); or mend the function, or pass map() a "
        "larger max_failures.",
    )
    error.__cause__ = last.error
    return error


def no_stand_in_error(position: int, records: Sequence[int], last: BaseException) -> ElementError:
    """Return the error for a position whose record failed, as did, with ``last``, all that might stand in for it."""
    others = f"records {', '.join(map(str, records[1:]))}, which fail too" if records[1:] else "no other record"
    error = ElementError(
        f"a record that can stand in at position {position}",
        f"{others}. The last error is {error_text(last).rstrip('.')}",
        record=records[0],
        hint="If all records fail, mend the function; else leave out those that fail: ref.exclude([...]).",
    )
    error.__cause__ = last
    return error
