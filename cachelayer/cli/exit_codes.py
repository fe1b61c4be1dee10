"""The exit codes of commands, by what a caller would do: one for each branch of the tree of errors."""

from __future__ import annotations

from enum import IntEnum

from cachelayer import errors


class ExitCode(IntEnum):
    """How a command ended."""

    SUCCESS = 0
    FINDING = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    DAMAGED = 5
    BUSY = 6
    STORAGE = 7
    SOURCE = 8
    BUG = 70
    INTERRUPTED = 130


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
    """Return the exit code of a command that ends with an error: that of the nearest class in the tree."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), ExitCode.BUG)
