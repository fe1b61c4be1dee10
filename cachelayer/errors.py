"""Every exception that cachelayer raises, grouped by what a caller would do about it.

::

    CacheLayerError
    ├── InvalidArgumentError     ValueError          change the call
    │   ├── InvalidNameError                         an id, version or tag outside the grammar
    │   ├── UnknownOptionError   TypeError           an option that no build has
    │   └── RefusedError                             what is stored forbids it: name another version, or force it
    │       ├── StaleVersionError                    a version of another source, with on_change="error"
    │       ├── ArgumentsMismatchError               a cacheable function called with other arguments than its version
    │       └── DigestMismatchError                  other records were offered than a version has
    ├── InvalidTypeError         TypeError           pass another kind of object
    ├── MissingDependencyError   ImportError         install an extra
    ├── NotFoundError            KeyError            name something that exists
    │   ├── DatasetNotFoundError
    │   └── VersionNotFoundError
    ├── RecordIndexError         IndexError          ask for a record that exists
    ├── ErasedRecordError        LookupError         leave the record out, or let another stand in
    ├── AlreadyExistsError       FileExistsError     choose another version
    ├── ElementError             ValueError          fix the element, or declare an element spec that fits it
    ├── SourceError              RuntimeError        fix the source
    ├── BuildRevokedError        RuntimeError        build again: its shards were collected as garbage
    ├── StateError               ValueError          restore the state where it belongs
    ├── FormatError              ValueError          written by a newer release, or not ours at all
    ├── CorruptionError          OSError             repair the version, or build again
    └── StorageError             OSError             disk full, no permission, not reachable
        └── BusyError                                others change the dataset all the time: try again later

Each also derives from the built-in exception beside it, so code that knows nothing of cachelayer handles it correctly.
"""

from __future__ import annotations

from typing import Any


class CacheLayerError(Exception):
    """Base of every exception that cachelayer raises."""


class InvalidArgumentError(CacheLayerError, ValueError):
    """An argument has a value that the call does not accept."""


class InvalidNameError(InvalidArgumentError):
    """A dataset id, version or tag is outside the grammar of names."""


class UnknownOptionError(InvalidArgumentError, TypeError):
    """A call has no option of this name."""


class RefusedError(InvalidArgumentError):
    """What is stored forbids the call, which would be right elsewhere."""


class ArgumentsMismatchError(RefusedError):
    """A cacheable function was called with other arguments than its version was built with."""


class DigestMismatchError(RefusedError):
    """Other records were offered for a version than those that it has."""


class StaleVersionError(RefusedError):
    """The version exists but was built from another source, and ``on_change`` is ``"error"``."""


class InvalidTypeError(CacheLayerError, TypeError):
    """An argument has a type that the call does not accept."""


class MissingDependencyError(CacheLayerError, ImportError):
    """A package that this feature needs is not installed."""


class NotFoundError(CacheLayerError, KeyError):
    """Something that was asked for by name does not exist."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would quote the whole sentence.
        return Exception.__str__(self)


class DatasetNotFoundError(NotFoundError):
    """The storage holds no dataset of this id."""


class VersionNotFoundError(NotFoundError):
    """The dataset has no version or tag of this name."""


class RecordIndexError(CacheLayerError, IndexError):
    """A record number is outside the dataset."""


class ErasedRecordError(CacheLayerError, LookupError):
    """The record was erased: its number stays, and nothing else of it.

    It is no IndexError, which would end a loop over ``ref[0]``, ``ref[1]`` and so on in silence.

    Attributes:
        version: the version, as ``<dataset id>@<version>``.
        record: the number of the record in that version.
        reason: why it was erased; empty if that is not known.
    """

    def __init__(self, version: str, record: int, reason: str = "") -> None:
        self.version = version
        self.record = record
        self.reason = reason
        super().__init__(version, record, reason)

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"{self.version}: record {self.record} was erased{why}: leave it out with ref.exclude(ref.erased), or let "
            'another stand in for it in streams with map(fn, on_error="replace")'
        )


class AlreadyExistsError(CacheLayerError, FileExistsError):
    """The version is published already, and versions never change."""


class ElementError(CacheLayerError, ValueError):
    """An element does not fit the element spec.

    Attributes:
        record: number of the record in the source; None if it is not known.
        path: path of the leaf in the element, such as ``['image']``.
        expected: what the spec asks for.
        got: what came.
        hint: what to do about it, or empty.
        place: where the element was read, such as a file and its line, or empty.
    """

    def __init__(
        self,
        expected: str,
        got: str,
        *,
        path: str = "",
        record: int | None = None,
        hint: str = "",
        place: str = "",
    ) -> None:
        self.record = record
        self.path = path
        self.expected = expected
        self.got = got
        self.hint = hint
        self.place = place
        super().__init__(expected, got)

    def at(
        self, *, path: str | None = None, record: int | None = None, hint: str | None = None, place: str = ""
    ) -> ElementError:
        """Return the same error with its place filled in."""
        return type(self)(
            self.expected,
            self.got,
            path=self.path if path is None else path,
            record=self.record if record is None else record,
            hint=self.hint if hint is None else hint,
            place=place or self.place,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _element_error, (self.expected, self.got, self.path, self.record, self.hint, self.place)

    def __str__(self) -> str:
        where = "element" if self.record is None else f"record {self.record}"
        where = f"{self.place}, {where}" if self.place else where
        leaf = f", leaf {self.path}" if self.path else ""
        hint = f" {self.hint}" if self.hint else ""
        return f"{where}{leaf}: expected {self.expected}, got {self.got}.{hint}"


def _element_error(expected: str, got: str, path: str, record: int | None, hint: str, place: str = "") -> ElementError:
    return ElementError(expected, got, path=path, record=record, hint=hint, place=place)


class SourceError(CacheLayerError, RuntimeError):
    """The source failed, or broke a promise that it made."""


class BuildRevokedError(CacheLayerError, RuntimeError):
    """Shards of a build were collected as garbage before it published its version."""


class StateError(CacheLayerError, ValueError):
    """A sampler state does not belong to this stream."""


class FormatError(CacheLayerError, ValueError):
    """A file is not in a format that this release reads."""


class CorruptionError(CacheLayerError, OSError):
    """Stored bytes are not what was written."""


class StorageError(CacheLayerError, OSError):
    """The storage failed: no space, no permission, not reachable."""


class BusyError(StorageError):
    """Others changed the dataset all the time."""


class CacheLayerWarning(UserWarning):
    """Something works, but not as well or not as strictly as it could."""


class StaleVersionWarning(CacheLayerWarning):
    """A version is used that was built from another source than it would be built from now."""
