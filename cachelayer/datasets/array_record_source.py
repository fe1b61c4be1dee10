"""The records of any ArrayRecord files as bytes, with the interface of array_record's own data source."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.file import ArrayRecordFile, RangedFile, RecordFile, fingerprint, map_file, open_file
from cachelayer.arrayrecord.local_shards import VERIFY, Verify
from cachelayer.arrayrecord.riegeli import ByteFile, read_footer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.objects.credentials import StorageOptions
from cachelayer.objects.local import located
from cachelayer.objects.open_store import names_no_bucket, open_store
from cachelayer.records.selection import Selection
from cachelayer.support.locks import PickledByFields, cached_property
from cachelayer.support.memory import by_part, splits_of

# The options of array_record's reader. They trade memory for speed there, and never change a record.
_READER_OPTIONS = {"footer_prefetch_bytes", "index_storage_option", "max_parallelism", "readahead_buffer_size"}
_RANGE_SUFFIX = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


@runtime_checkable
class FileInstruction(Protocol):
    """A range of records of a file, as TFDS describes it."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


PathLike = str | os.PathLike[str] | FileInstruction


@dataclass(frozen=True)
class _Part(PickledByFields):
    """Some consecutive records of a file, which is opened when it is first used."""

    path: Path | str
    """The file: a path, or a URL."""
    options: StorageOptions
    """The options of the file system that reads URLs."""
    verify: Verify
    """The checks that are made when records are read."""
    start: int = 0
    """The number of the first record."""
    stop: int | None = None
    """The number after the last record; None for the end of the file."""

    @property
    def byte_file(self) -> ByteFile:
        """The bytes of the file."""
        if isinstance(self.path, Path):
            return map_file(self.path)
        if names_no_bucket(self.path):
            raise InvalidArgumentError(f"{self.path!r}: it names no bucket")
        folder, _, name = self.path.rpartition("/")
        store = open_store(folder, self.options)
        stat = store.stat(name)
        if stat is None:
            raise StorageError(f"cannot open {self.path}: there is no such object")
        return RangedFile(self.path, name, stat.nbytes, store.read_ranges)

    @cached_property
    def file(self) -> RecordFile:
        """The records of the file."""
        if isinstance(self.path, Path):
            file = open_file(self.path, checks=self.verify == "always")
        elif self.verify == "always":
            raise InvalidArgumentError(
                f"verify='always' reads files on local disk only: copy {self.path} to a local path, or pass "
                "verify='open'"
            )
        else:
            ranged = self.byte_file
            file = ArrayRecordFile(ranged, read_footer(ranged))
        if self.stop is not None and not 0 <= self.start <= self.stop <= len(file):
            raise InvalidArgumentError(f"{self.path}[{self.start}:{self.stop}]: the file has {len(file)} records")
        return file

    def __len__(self) -> int:
        return (len(self.file) if self.stop is None else self.stop) - self.start


class ArrayRecordDataSource:
    """Random access to the records of ArrayRecord files, as ``bytes``, with the interface of array_record's class.

    Args:
        paths: a path or URL (``gs://``, ``s3://``), a glob, ``'path[a:b]'`` for a range of records, a file instruction
            of TFDS, or a list of these.
        reader_options: the options of array_record's reader, accepted so that calls of its class work here. None of
            them has an effect: a mapped file needs no buffers, and its index is where the system keeps it.
        storage_options: the options of the fsspec file system that reads the URLs.
        verify: ``"open"`` checks that a file is complete when it is first used; ``"always"`` checks every chunk that is
            read, with array_record's own reader: local files only.

    Thread-safe, picklable and fork-safe: a file is opened when it is first used.

    Raises:
        InvalidArgumentError, InvalidTypeError: if the paths are invalid.
        StorageError: if a file does not exist or cannot be opened.
        CorruptionError: if a file is not a complete ArrayRecord file.

    Examples:
        >>> ref = cachelayer.Storage(folder).submit([3, 1, 2], "numbers@v1")
        >>> source = cachelayer.ArrayRecordDataSource(f"{folder}/numbers/shards/*.array_record")
        >>> len(source), type(source[0]), source[-1] == source.__getitems__([2])[0]
        (3, <class 'bytes'>, True)
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        reader_options: Mapping[str, str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        verify: Verify = "open",
    ) -> None:
        if verify not in VERIFY:
            raise InvalidArgumentError(f"verify {verify!r}: it must be one of {', '.join(map(repr, VERIFY))}")
        _check_reader_options(reader_options)
        if isinstance(paths, (str, os.PathLike, FileInstruction)):
            paths = [paths]
        if not isinstance(paths, Sequence) or len(paths) == 0:
            raise InvalidArgumentError(f"paths {paths!r}: pass a path, a glob or a list of paths")
        chosen = StorageOptions(storage_options or {})
        self._parts = [part for path in paths for part in _parts_of(path, chosen, verify)]
        self._splits = splits_of(np.array([len(part) for part in self._parts], np.int64))
        self._selection = Selection.all(int(self._splits[-1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self._parts:
            part.__dict__.pop("file", None)

    def __len__(self) -> int:
        return len(self._selection)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), 256):
            yield from self.__getitems__(range(start, min(start + 256, len(self))))

    def __getitem__(self, record_key: SupportsIndex) -> bytes:
        number = self._selection.number(record_key)
        part = int(self._splits[1:].searchsorted(number, side="right"))
        return self._parts[part].file.read(np.array([number - self._splits[part] + self._parts[part].start]))[0]

    def __getitems__(self, record_keys: Iterable[SupportsIndex] | NDArray[Any]) -> list[bytes]:
        """Return many records, in the order of their keys; negative keys count from the end."""
        numbers = self._selection.take(record_keys)
        out: list[bytes] = [b""] * len(numbers)
        for number, rows, own in by_part(self._splits, numbers):
            part = self._parts[number]
            records = part.file.read(own + part.start)
            for row, record in zip(rows.tolist(), records, strict=True):
                out[row] = record
        return out

    def __repr__(self) -> str:
        state = hashlib.sha256()
        for part in self._parts:
            state.update(f"{part.start}:{part.stop}:{fingerprint(part.byte_file)};".encode())
        return f"ArrayRecordDataSource(records={len(self)}, sha256={state.hexdigest()})"


def _check_reader_options(options: Any) -> None:
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise InvalidTypeError(f"reader_options {options!r}: pass a dict, as to array_record's own class, or None")
    unknown = [name for name in options if name not in _READER_OPTIONS]
    if unknown:
        names = ", ".join(sorted(_READER_OPTIONS))
        raise InvalidArgumentError(f"reader_options {unknown}: the reader of array_record has {names}")


def _parts_of(path: PathLike, options: StorageOptions, verify: Verify) -> list[_Part]:
    """Return the files, or the range of records of a file, that a user names."""
    if isinstance(path, FileInstruction):
        return [_Part(_path_or_url(path.filename), options, verify, path.skip, path.skip + path.take)]
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"path {path!r}: pass a str, a path or a file instruction of TFDS")
    text = os.fspath(path)
    match = _RANGE_SUFFIX.fullmatch(text)
    if match:
        return [_Part(_path_or_url(match[1]), options, verify, int(match[2]), int(match[3]))]
    folder, _, pattern = text.rpartition("/")
    if not glob.has_magic(pattern if "://" in text else text) or ("://" not in text and Path(text).exists()):
        return [_Part(_path_or_url(text), options, verify)]
    if "://" in text:
        names = [f"{folder}/{name}" for name in fnmatch.filter(open_store(folder, options).names(""), pattern)]
    else:
        names = glob.glob(text)  # noqa: PTH207
    if not names:
        raise StorageError(f"nothing matches {text}")
    return [_Part(_path_or_url(name), options, verify) for name in sorted(names)]


def _path_or_url(text: str) -> Path | str:
    path = located(text)
    return path if "://" in path else Path(path)
