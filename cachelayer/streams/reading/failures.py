"""Failures: elements that a function or decoding failed for, and what becomes of the errors of a reading."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, replace
from threading import Event
from types import FrameType
from typing import Any, TypeVar

from cachelayer.errors import CorruptionError, ElementError, FormatError, NotFoundError, StorageError
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn

R = TypeVar("R")
Submit = Callable[[Callable[[], Any]], "Future[Any]"]
"""Runs a task in another thread."""
E = TypeVar("E", bound=BaseException)
MOST_FAILURES = 100
"""The number of failures that an iterator takes, unless ``map`` is given another."""
_LISTED = 100
# Not about the element: the storage fails, or the machine, or a package is missing.
_NEVER_REPLACED = (CorruptionError, FormatError, ImportError, MemoryError, NotFoundError, StorageError)


@dataclass(frozen=True, eq=False)
class Failure:
    """An element that failed, and that another one stands in for.

    Args:
        record: the number of its record in what the stream reads: ``ref[record]``.
        position: the global position at which it failed.
        error: what the function or decoding raised. It has no traceback, which would hold the memory of the batch.
        stand_in: the number of the record whose element came in its place.
    """

    record: int
    position: int
    error: Exception
    stand_in: int

    def __str__(self) -> str:
        return f"record {self.record} at global position {self.position}: {shown(self.error)}"

    def portable(self) -> Failure:
        """Return the failure for another process: if its error cannot be pickled, with an error of the same text."""
        try:
            pickle.loads(pickle.dumps(self.error))  # noqa: S301 - made on this line
        except Exception:  # noqa: BLE001 - whatever a class of the user raises
            error = RuntimeError(shown(self.error))
            for note in getattr(self.error, "__notes__", ()):
                error.add_note(note)
            return replace(self, error=error)
        return self

    def warn(self, rest: str) -> None:
        """Warn of the failure; ``rest`` says how to see the others."""
        warn(
            f"record {self.record} failed at global position {self.position}, and another record stands in for it: "
            f"{shown(self.error)}. {rest}",
            room="streams",
        )


def shown(error: BaseException) -> str:
    """Return an error as a traceback shows it."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_of_element(error: BaseException) -> bool:
    """Return whether an error of a user's function, or of a user's object, is a failure of the element."""
    return isinstance(error, Exception) and not isinstance(error, _NEVER_REPLACED)


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """Return what a function returns and None, or None and its error: see :func:`clear_callers`."""
    try:
        return function(*arguments), None
    except Exception as error:  # noqa: BLE001 - it is handed on
        return None, error


def clear_callers(error: BaseException) -> None:
    """Clear the variables of the functions that have returned an error as a value, after it was caught below them.

    The frames in a traceback hold those of their callers. So the error would hold itself, the elements of its batch and
    the iterator, until Python next looks for cycles.
    """
    shown, trace = list[FrameType](), error.__traceback__
    while trace is not None:
        shown.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in shown:
        caller = frame.f_back
        while caller is not None:
            if caller not in shown:
                try:
                    caller.clear()
                except RuntimeError:
                    # It has not returned yet.
                    break
            caller = caller.f_back


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class ReadContext:
    """A reading of some steps.

    Args:
        closed: set when nobody waits any longer; None if the consumer itself reads, to whom an interrupt is raised at
            once.
        submit: runs a task in a thread that further readings use too; None to start threads for this one.
    """

    __slots__ = ("closed", "failures", "submit")

    def __init__(self, closed: Event | None = None, submit: Submit | None = None) -> None:
        self.closed = closed
        self.submit = submit
        self.failures: list[Failure] = []
        """The elements that others stand in for."""

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function."""
        if self.closed is not None and self.closed.is_set():
            raise Dropped

    def run_at_once(self, tasks: Sequence[Callable[[], R]]) -> list[R]:
        """Run tasks in a thread each; return what they return when all have ended."""
        if self.submit is None:
            with Pool(len(tasks), "cachelayer-map") as pool:
                return [future.result() for future in [pool.submit(task) for task in tasks]]
        futures = [self.submit(task) for task in tasks]
        try:
            return [future.result() for future in futures]
        except CancelledError as error:
            raise Dropped from error
        finally:
            wait(futures)

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


def bare(error: E) -> E:
    """Return an error, and those that led to it, without tracebacks: their frames hold the elements of a batch."""
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
    return Failure(record, position, bare(error), stand_in)


def too_many(failures: Sequence[Failure], limit: int) -> ElementError:
    """Return the error of more failures than an iterator takes, with the numbers of the records."""
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


def none_left(position: int, records: Sequence[int], last: BaseException) -> ElementError:
    """Return the error of a position at which all of these records failed: its own, and those that were to stand in."""
    others = f"records {', '.join(map(str, records[1:]))}, which fail too" if records[1:] else "no other record"
    error = ElementError(
        f"a record that can stand in at global position {position}",
        f"{others}. The last error is {shown(last).rstrip('.')}",
        record=records[0],
        hint="If all records fail, mend the function; else leave out those that fail: ref.exclude([...]).",
    )
    error.__cause__ = last
    return error
