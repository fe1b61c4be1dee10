"""Failures: elements that a function or decoding failed for, and that others stand in for."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event

from cachelayer.errors import (
    CorruptionError,
    ElementError,
    FormatError,
    NotFoundError,
    StorageError,
)
from cachelayer.user_warnings import warn

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
                noted(error, note)
            return replace(self, error=error)
        return self


def shown(error: BaseException) -> str:
    """Return an error as a traceback shows it."""
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 - of a class of the user
        text = f"its text cannot be had: {type(other).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_of_element(error: Exception) -> bool:
    """Return whether an error of a user's function, or of a user's object, is a failure of the element."""
    return not isinstance(error, _NEVER_REPLACED)


def noted(error: Exception, note: str) -> Exception:
    """Return an error with a note, unless its class does not take any."""
    # A frozen dataclass takes none.
    with suppress(Exception):
        error.add_note(note)
    return error


def bare(error: Exception) -> Exception:
    """Return an error, and those that led to it, without tracebacks: their frames hold the elements of a batch."""
    found: list[BaseException] = [error]
    for each in found:
        # Some classes do not let their attributes be set.
        each.with_traceback(None)
        found += [cause for cause in (each.__cause__, each.__context__) if cause is not None and cause not in found]
    return error


def failure_of(record: int, position: int, error: Exception, stand_in: int) -> Failure:
    """Return a failure whose error names the record by its number in the stream, not in the dataset."""
    if isinstance(error, ElementError) and error.record not in (None, record):
        named = error.at(record=record)
        named.__cause__ = error.__cause__
        error = named
    return Failure(record, position, bare(error), stand_in)


class Dropped(BaseException):
    """Raised in a thread that reads what nobody waits for any longer."""


class Reading:
    """Reading some steps: whether anybody still waits for them, and the elements that others stand in for.

    Args:
        closed: set when nobody waits any longer; None if the consumer itself reads.
    """

    __slots__ = ("closed", "failures")

    def __init__(self, closed: Event | None = None) -> None:
        self.closed = closed
        self.failures: list[Failure] = []

    def check(self) -> None:
        """Raise if nobody waits any longer; called before each call of a user's function, and during long waits."""
        if self.closed is not None and self.closed.is_set():
            raise Dropped


def too_many(failures: Iterable[Failure], limit: int) -> ElementError:
    """Return the error of more failures than an iterator takes, with the numbers of the records."""
    found = list(failures)
    records = sorted({each.record for each in found})
    listed = ", ".join(map(str, records[:_LISTED]))
    more = f" and {len(records) - _LISTED} more" if len(records) > _LISTED else ""
    numbers = listed + (", ..." if more else "")
    error = ElementError(
        f"at most {limit} elements that fail (max_failures={limit})",
        f"{len(found)}: records {listed}{more}. The last is {str(found[-1]).rstrip('.')}",
        hint=f"Leave them out: ref.exclude([{numbers}]); or mend the function, or pass map() a larger max_failures.",
    )
    error.__cause__ = found[-1].error
    return error


def none_left(position: int, records: Sequence[int], last: Exception) -> ElementError:
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


class Notice:
    """Warns of the first failure that nobody counts, once in each process."""

    def __init__(self) -> None:
        self._pid: int | None = None

    def __reduce__(self) -> tuple[type[Notice], tuple[()]]:
        return Notice, ()

    def __call__(self, failure: Failure) -> None:
        """Warn, unless this process was warned before."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            warn_of(failure, "Further ones in this process are not reported")


def warn_of(failure: Failure, rest: str) -> None:
    """Warn of a failure; ``rest`` says how to see the others."""
    warn(
        f"record {failure.record} failed at global position {failure.position}, and another record stands "
        f"in for it: {shown(failure.error)}. {rest}"
    )
