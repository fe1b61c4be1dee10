"""A drop-in replacement for the data source of array_record, for any ArrayRecord files."""

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
from cachelayer.arrayrecord.footer import read_footer
from cachelayer.arrayrecord.local_shards import VERIFY, Verify
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.locks import ProcessLock
from cachelayer.objects.credentials import StorageOptions
from cachelayer.objects.open_store import names_no_bucket, open_store
from cachelayer.records.memory import distinct
from cachelayer.records.selection import Selection

# What array_record lets its reader be told. They trade memory for speed there, and never change a record.
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
class _RecordRange:
    """Records ``start`` to ``stop`` of the file at a path or URL; to the end of the file if ``stop`` is None."""

    path: Path | str
    start: int = 0
    stop: int | None = None


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
        self._verify: Verify = verify
        self._options = StorageOptions(storage_options or {})
        self._ranges = [each for path in paths for each in _ranges(path, self._options)]
        self._open()

    def _open(self) -> None:
        self._lock = ProcessLock()
        self._files: list[RecordFile | None] = [None] * len(self._ranges)
        stops = [
            len(self._file(number)) if each.stop is None else each.stop for number, each in enumerate(self._ranges)
        ]
        lengths = [stop - each.start for stop, each in zip(stops, self._ranges, strict=True)]
        self._splits = np.cumsum([0, *lengths])
        self._selection = Selection.all(int(self._splits[-1]))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_ranges", "_verify", "_options", "_splits")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ProcessLock()
        self._files = [None] * len(self._ranges)
        self._selection = Selection.all(int(self._splits[-1]))

    def _file(self, number: int) -> RecordFile:
        file = self._files[number]
        if file is None:
            with self._lock:
                file = self._files[number]
                if file is None:
                    wanted = self._ranges[number]
                    file = self._open_file(wanted.path)
                    if wanted.stop is not None and not 0 <= wanted.start <= wanted.stop <= len(file):
                        raise InvalidArgumentError(
                            f"{wanted.path}[{wanted.start}:{wanted.stop}]: the file has {len(file)} records"
                        )
                    self._files[number] = file
        return file

    def _open_file(self, path: Path | str) -> RecordFile:
        if isinstance(path, Path):
            return open_file(path, checks=self._verify == "always")
        if self._verify == "always":
            raise InvalidArgumentError(
                f"verify='always' reads files on local disk only: copy {path} to a local path, or pass verify='open'"
            )
        file = _ranged_file(path, self._options)
        return ArrayRecordFile(file, read_footer(file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files = [None] * len(self._ranges)

    def __len__(self) -> int:
        return len(self._selection)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), 256):
            yield from self.__getitems__(range(start, min(start + 256, len(self))))

    def __getitem__(self, record_key: SupportsIndex) -> bytes:
        number = self._selection.number(record_key)
        file = int(np.searchsorted(self._splits, number, side="right")) - 1
        in_file = number - int(self._splits[file]) + self._ranges[file].start
        return self._file(file).read(np.array([in_file]))[0]

    def __getitems__(self, record_keys: Iterable[SupportsIndex] | NDArray[Any]) -> list[bytes]:
        """Return many records, in the order of their keys; negative keys count from the end."""
        numbers = self._selection.take(record_keys)
        file_of = np.searchsorted(self._splits, numbers, side="right") - 1
        out: list[bytes] = [b""] * len(numbers)
        for file in distinct(file_of).tolist():
            rows = np.flatnonzero(file_of == file)
            in_file = numbers[rows] - self._splits[file] + self._ranges[file].start
            for row, record in zip(rows.tolist(), self._file(file).read(in_file), strict=True):
                out[row] = record
        return out

    def __repr__(self) -> str:
        state = hashlib.sha256()
        for each in self._ranges:
            path = each.path
            file = map_file(path) if isinstance(path, Path) else _ranged_file(path, self._options)
            state.update(f"{each.start}:{each.stop}:{fingerprint(file)};".encode())
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


def _ranges(path: PathLike, options: Mapping[str, Any]) -> list[_RecordRange]:
    if isinstance(path, FileInstruction):
        return [_RecordRange(_path_or_url(path.filename), path.skip, path.skip + path.take)]
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"path {path!r}: pass a str, a path or a file instruction of TFDS")
    text = os.fspath(path)
    match = _RANGE_SUFFIX.fullmatch(text)
    if match:
        return [_RecordRange(_path_or_url(match[1]), int(match[2]), int(match[3]))]
    if "://" in text:
        return [_RecordRange(url) for url in _matching_urls(text, options)]
    if glob.has_magic(text) and not Path(text).exists():
        names = sorted(glob.glob(text))  # noqa: PTH207
        if not names:
            raise StorageError(f"no file matches {text}")
        return [_RecordRange(Path(name)) for name in names]
    return [_RecordRange(Path(text))]


def _path_or_url(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def _matching_urls(url: str, options: Mapping[str, Any]) -> list[str]:
    folder, _, pattern = url.rpartition("/")
    if not glob.has_magic(pattern):
        return [url]
    names = fnmatch.filter(open_store(folder, options).names(""), pattern)
    if not names:
        raise StorageError(f"no object matches {url}")
    return [f"{folder}/{name}" for name in sorted(names)]


def _ranged_file(url: str, options: Mapping[str, Any]) -> RangedFile:
    if names_no_bucket(url):
        raise InvalidArgumentError(f"{url!r}: it names no bucket")
    folder, _, name = url.rpartition("/")
    store = open_store(folder, options)
    nbytes = store.size(name)
    if nbytes is None:
        raise StorageError(f"cannot open {url}: there is no such object")
    return RangedFile(url, name, nbytes, store.read_ranges)
