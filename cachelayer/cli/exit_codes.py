"""The exit codes of commands, grouped like the errors by what a handler does."""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from cachelayer import errors


class ExitCode(IntEnum):
    """The exit code of a command, with its meaning."""

    meaning: str
    SUCCESS = 0, "success"
    FINDING = 1, "a finding (damage, a difference)"
    USAGE = 2, "a mistake in the command"
    NOT_FOUND = 3, "not found"
    REFUSED = 4, "refused"
    DAMAGED = 5, "damaged"
    BUSY = 6, "busy"
    STORAGE = 7, "the storage failed"
    SOURCE = 8, "the source failed"
    BUG = 70, "a bug in cachelayer"
    INTERRUPTED = 130, "interrupted"

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code


_CODES: dict[type[BaseException], ExitCode] = {
    errors.NotFoundError: ExitCode.NOT_FOUND,
    errors.RecordIndexError: ExitCode.NOT_FOUND,
    errors.ErasedRecordError: ExitCode.NOT_FOUND,
    errors.RefusedError: ExitCode.REFUSED,
    errors.AlreadyExistsError: ExitCode.REFUSED,
    errors.StateError: ExitCode.REFUSED,
    errors.CorruptionError: ExitCode.DAMAGED,
    errors.FormatError: ExitCode.DAMAGED,
    errors.BusyError: ExitCode.BUSY,
    errors.BuildRevokedError: ExitCode.BUSY,
    errors.StorageError: ExitCode.STORAGE,
    errors.SourceError: ExitCode.SOURCE,
    errors.ElementError: ExitCode.SOURCE,
    errors.CacheLayerError: ExitCode.USAGE,
    KeyboardInterrupt: ExitCode.INTERRUPTED,
    SystemExit: ExitCode.SOURCE,
}


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code of a command that ends with an error: the code of the nearest class in the tree."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), ExitCode.BUG)


def finding_if(is_bad: bool) -> ExitCode:
    """Return the exit code of a check that has found something, or nothing."""
    return ExitCode.FINDING if is_bad else ExitCode.SUCCESS
