"""Every exception that cachelayer raises, grouped by what a handler does.

::

    CacheLayerError
    │
    │   change the call
    ├── InvalidArgumentError     ValueError          a value that the call does not accept
    │   ├── InvalidNameError                         a dataset id, version or tag outside the grammar of names
    │   ├── UnknownOptionError   TypeError           a keyword that the call does not have
    │   └── RefusedError                             what is stored forbids the call
    │       ├── StaleVersionError                    the version was built from another source
    │       ├── ArgumentsMismatchError               the version was built with other arguments
    │       └── DigestMismatchError                  the version has other records than those offered
    ├── InvalidTypeError         TypeError           an object of a type that the call does not accept
    ├── AlreadyExistsError       FileExistsError     the version is published: choose another name
    ├── StateError               ValueError          the state belongs to another stream
    │
    │   name something that exists
    ├── NotFoundError            KeyError
    │   ├── DatasetNotFoundError
    │   └── VersionNotFoundError                     a version or a tag
    ├── RecordIndexError         IndexError          a record number outside the dataset
    ├── ErasedRecordError        LookupError         a record that was erased: leave it out
    │
    │   mend the data, or the environment
    ├── ElementError             ValueError          an element that does not fit the element spec
    ├── SourceError              RuntimeError        a source that failed, or broke a promise
    ├── MissingDependencyError   ImportError         a package to install
    ├── FormatError              ValueError          a file of a newer release, or not of cachelayer at all
    ├── CorruptionError          OSError             stored bytes that changed: repair the version
    │
    │   try again
    ├── BuildRevokedError        RuntimeError        the build lost its shards before it published: build again
    └── StorageError             OSError             the disk is full, access is denied, the network is down
        └── BusyError                                others change the dataset all the time

    CacheLayerWarning            UserWarning         something works, but not as well as it could
    └── StaleVersionWarning                          a version is used that another source would build anew

Each also derives from the built-in exception beside it, so code that knows nothing of cachelayer handles it correctly.
"""

from __future__ import annotations

from functools import partial
from typing import Any

_LONGEST = 1000
"""Characters of a message, about: the names of thousands of columns, or a value, may stand in it."""


class CacheLayerError(Exception):
    """Base of every exception that cachelayer raises.

    Examples:
        >>> try:
        ...     cachelayer.Storage(folder).fetch("numbers@v1")
        ... except cachelayer.CacheLayerError as error:
        ...     print(type(error).__name__)
        DatasetNotFoundError
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(shortened(argument) if isinstance(argument, str) else argument for argument in arguments))


def shortened(text: str) -> str:
    """Return a text without its middle if it is very long: what went wrong stands first, and what to do last."""
    cut = len(text) - _LONGEST
    return text if cut <= 0 else f"{text[: _LONGEST // 2]} ... ({cut:,} characters) ... {text[-_LONGEST // 2 :]}"


class InvalidArgumentError(CacheLayerError, ValueError):
    """An argument has a value that the call does not accept.

    Examples:
        >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
        >>> ref.stream(0)
        Traceback (most recent call last):
        cachelayer.errors.InvalidArgumentError: global_batch_size 0: it must be at least 1
    """


class InvalidNameError(InvalidArgumentError):
    """A dataset id, version or tag is outside the grammar of names.

    Examples:
        >>> cachelayer.Storage(folder).fetch("my numbers@v1")
        Traceback (most recent call last):
        cachelayer.errors.InvalidNameError: dataset id 'my numbers': use 1 to 128 of A-Z a-z 0-9 . _ - and begin ...
    """


class UnknownOptionError(InvalidArgumentError, TypeError):
    """A call has no option of this name.

    Examples:
        >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
        >>> ref.stream(batch_size=2)
        Traceback (most recent call last):
        cachelayer.errors.UnknownOptionError: stream() has no option 'batch_size': did you mean global_batch_size? ...
    """


class RefusedError(InvalidArgumentError):
    """What is stored forbids the call, which would be right elsewhere.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> storage.tag("numbers@v1", tag="best")
        >>> storage.delete("numbers@v1")
        Traceback (most recent call last):
        cachelayer.errors.RefusedError: version 'v1' has the tag 'best': move it first, or delete it too: force=True
    """


class ArgumentsMismatchError(RefusedError):
    """A cacheable function was called with other arguments than its version was built with.

    Examples:
        >>> @cachelayer.Storage(folder).cacheable("rows@v1")
        ... def rows(size):
        ...     return [size, size]
        >>> rows(3)[0]
        np.int64(3)
        >>> rows(4)
        Traceback (most recent call last):
        cachelayer.errors.ArgumentsMismatchError: rows@v1 was built with other arguments: size was 3 and is 4. ...
    """


class DigestMismatchError(RefusedError):
    """The records offered to repair a version are not the records of that version.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> three = storage.cache(range(3), "numbers@v1")
        >>> four = storage.cache(range(4), "numbers@v2")
        >>> next((folder / "numbers" / "shards").glob("*.index")).unlink()
        >>> storage.repair("numbers@v1", from_=four)
        Traceback (most recent call last):
        cachelayer.errors.DigestMismatchError: ... has other records than numbers@v1, ...: nothing is repaired
    """


class StaleVersionError(RefusedError):
    """The version was built from another source, and ``on_change`` is ``"error"``.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> storage.cache(range(4), "numbers@v1", on_change="error")
        Traceback (most recent call last):
        cachelayer.errors.StaleVersionError: numbers@v1 was built from another source: length was 3 and is 4; ...
    """


class InvalidTypeError(CacheLayerError, TypeError):
    """An argument has a type that the call does not accept.

    Examples:
        >>> cachelayer.Storage(folder).cache(3, "numbers@v1")
        Traceback (most recent call last):
        cachelayer.errors.InvalidTypeError: int 3 is not a source. Pass an iterable of elements, ...
    """


class MissingDependencyError(CacheLayerError, ImportError):
    """A package that the call needs is not installed, or its version does not fit; the message says what to install.

    Examples:
        >>> cachelayer.open("dropbox://folder/numbers@v1")
        Traceback (most recent call last):
        cachelayer.errors.MissingDependencyError: dropbox://folder/numbers: a package is not installed ...
    """


class NotFoundError(CacheLayerError, KeyError):
    """A dataset, a version or a tag does not exist.

    Examples:
        >>> try:
        ...     cachelayer.Storage(folder).fetch("numbers@v1")
        ... except KeyError as error:
        ...     print(type(error).__name__)
        DatasetNotFoundError
    """

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would quote the whole sentence.
        return Exception.__str__(self)


class DatasetNotFoundError(NotFoundError):
    """The storage holds no dataset of this id.

    Examples:
        >>> cachelayer.Storage(folder).fetch("numbers")
        Traceback (most recent call last):
        cachelayer.errors.DatasetNotFoundError: no dataset 'numbers' in ...: it has no datasets
    """


class VersionNotFoundError(NotFoundError):
    """The dataset has no version or tag of this name.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> storage.fetch("numbers@v2")
        Traceback (most recent call last):
        cachelayer.errors.VersionNotFoundError: numbers: no version or tag 'v2': there are v1
    """


class RecordIndexError(CacheLayerError, IndexError):
    """A record number is outside the dataset.

    Examples:
        >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
        >>> ref[5]
        Traceback (most recent call last):
        cachelayer.errors.RecordIndexError: record 5 of 3: indices lie in [-3, 3)
    """


class ErasedRecordError(CacheLayerError, LookupError):
    """A record was erased: its number stays, and nothing else of it.

    It is no IndexError, which would end a loop over ``ref[0]``, ``ref[1]`` and so on in silence.

    Attributes:
        version: the version, as ``<dataset id>@<version>``.
        record: the number of the record in that version.
        reason: why it was erased; empty if that is not known.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "users@v1")
        >>> erased = storage.erase("users", records=[1], of="v1", reason="request 5")
        >>> storage.fetch("users")[1]
        Traceback (most recent call last):
        cachelayer.errors.ErasedRecordError: users@v1: record 1 was erased (request 5): leave it out with ...
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
    """The version is published already, and versions never change.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.submit(range(3), "numbers@v1")
        >>> storage.submit(range(4), "numbers@v1")
        Traceback (most recent call last):
        cachelayer.errors.AlreadyExistsError: numbers@v1 is published already: choose another version
    """


class ElementError(CacheLayerError, ValueError):
    """An element does not fit the element spec.

    Attributes:
        record: number of the record in the source; None if it is not known.
        path: path of the leaf in the element, such as ``['image']``.
        expected: what the spec asks for.
        got: what came.
        hint: what to do about it, or empty.
        place: where the element was read, such as a file and its line, or empty.

    Examples:
        >>> cachelayer.Storage(folder).cache([{"label": 1}, {"label": "cat"}], "labels@v1")
        Traceback (most recent call last):
        cachelayer.errors.ElementError: record 1, leaf ['label']: expected int64, got str 'cat'.
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
        self.expected = shortened(expected)
        self.got = shortened(got)
        self.hint = hint
        self.place = place
        super().__init__(expected, got)

    def at(
        self, *, path: str | None = None, record: int | None = None, hint: str | None = None, place: str = ""
    ) -> ElementError:
        """Return the same error with a place: the leaf, the record, or the file and line of the element.

        Examples:
            >>> error = cachelayer.ElementError("int64", "str 'cat'")
            >>> str(error.at(path="['label']").at(record=7, place="labels.csv, line 9"))
            "labels.csv, line 9, record 7, leaf ['label']: expected int64, got str 'cat'."
        """
        return type(self)(
            self.expected,
            self.got,
            path=self.path if path is None else path,
            record=self.record if record is None else record,
            hint=self.hint if hint is None else hint,
            place=place or self.place,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        located = partial(ElementError, path=self.path, record=self.record, hint=self.hint, place=self.place)
        return located, (self.expected, self.got)

    def __str__(self) -> str:
        where = "element" if self.record is None else f"record {self.record}"
        where = f"{self.place}, {where}" if self.place else where
        leaf = f", leaf {self.path}" if self.path else ""
        hint = f" {self.hint}" if self.hint else ""
        return f"{where}{leaf}: expected {self.expected}, got {self.got}.{hint}"


class SourceError(CacheLayerError, RuntimeError):
    """The source failed, or broke a promise that it made.

    Examples:
        >>> def rows():
        ...     yield 1
        ...     raise TimeoutError("the database is away")
        >>> cachelayer.Storage(folder).cache(rows, "rows@v1")
        Traceback (most recent call last):
        cachelayer.errors.SourceError: the source failed at record 1: TimeoutError: the database is away
    """


class BuildRevokedError(CacheLayerError, RuntimeError):
    """Files of a build were deleted before it published its version: build again.

    Garbage collection deletes them if the build gave no sign of life for longer than the grace.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> try:
        ...     ref = storage.cache(range(3), "numbers@v1")
        ... except cachelayer.BuildRevokedError:
        ...     ref = storage.cache(range(3), "numbers@v1")
        >>> len(ref)
        3
    """


class StateError(CacheLayerError, ValueError):
    """The state of a stream does not belong to this stream.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> three = iter(storage.cache(range(3), "numbers@v1").stream(2))
        >>> four = iter(storage.cache(range(4), "numbers@v2").stream(2))
        >>> four.set_state(three.get_state())
        Traceback (most recent call last):
        cachelayer.errors.StateError: the state belongs to another stream: digest is ...
    """


class FormatError(CacheLayerError, ValueError):
    """A file is not in a format that this release reads.

    Examples:
        >>> import google_crc32c
        >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
        >>> begin = b'{"format":99'  # an entry of the log, as a newer release may write it
        >>> entry = b'%s,"crc32c":%d}' % (begin, google_crc32c.value(begin))
        >>> written = (folder / "numbers" / "_log" / "0000000001.json").write_bytes(entry)
        >>> cachelayer.Storage(folder).fetch("numbers")
        Traceback (most recent call last):
        cachelayer.errors.FormatError: ... log of format 99; this release reads up to 1: update cachelayer
    """


class CorruptionError(CacheLayerError, OSError):
    """Stored bytes are missing, or are not what was written.

    Examples:
        >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
        >>> shard = next((folder / "numbers" / "shards").glob("*.array_record"))
        >>> shard.write_bytes(b"other bytes")
        11
        >>> ref.verify().raise_if_bad()
        Traceback (most recent call last):
        cachelayer.errors.CorruptionError: numbers@v1: ...
    """


class StorageError(CacheLayerError, OSError):
    """The storage failed: no space is left, access is denied, or it cannot be reached.

    Examples:
        >>> (folder / "notes.txt").write_text("a file, where a folder should be")
        32
        >>> cachelayer.Storage(folder / "notes.txt").cache(range(3), "numbers@v1")
        Traceback (most recent call last):
        cachelayer.errors.StorageError: cannot create .../notes.txt: ...
    """


class BusyError(StorageError):
    """Other writers changed the dataset all the time, for five minutes: try again later.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> try:
        ...     storage.tag("numbers@v1", tag="best")
        ... except cachelayer.BusyError:
        ...     print("somebody publishes, tags or deletes in a loop")
        >>> storage.tags("numbers")
        {'best': 'v1'}
    """


class CacheLayerWarning(UserWarning):
    """Something works, but not as well or not as strictly as it could.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", cachelayer.CacheLayerWarning)  # let warnings end the program
        ...     ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
        >>> len(ref)
        3
    """


class StaleVersionWarning(CacheLayerWarning):
    """A version is used that was built from another source than it would be built from now.

    Examples:
        >>> import warnings
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     same = storage.cache(range(4), "numbers@v1")
        >>> caught[0].category.__name__, len(same)
        ('StaleVersionWarning', 3)
    """
