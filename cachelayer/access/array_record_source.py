"""A drop-in for array_record's data source, over any ArrayRecord files."""

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

from cachelayer.arrayrecord.file import RecordFile, fingerprint, map_file, open_file
from cachelayer.arrayrecord.ranged_file import RangedFile, RangedRecordFile
from cachelayer.arrayrecord.reader import VERIFY, Verify
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.locks import ProcessLock
from cachelayer.objects.credentials import StorageOptions
from cachelayer.objects.open_store import open_store
from cachelayer.records.selection import Selection

_PART = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


@runtime_checkable
class FileInstruction(Protocol):
    """A part of a file, in the form of TFDS."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


PathLike = str | os.PathLike[str] | FileInstruction


@dataclass(frozen=True)
class _Part:
    """Records ``start`` to ``stop`` of a file, by its path or URL; to its end where that is None."""

    path: Path | str
    start: int = 0
    stop: int | None = None


class ArrayRecordDataSource:
    """Records of any ArrayRecord files by number, as ``bytes``: the interface of array_record's class of this name.

    Args:
        paths: a path or URL (``gs://``, ``s3://``), a glob, ``'path[a:b]'`` for a part, a file instruction of TFDS, or
            a list of these.
        storage_options: what fsspec's file system for the URLs takes.
        verify: ``"open"`` checks that a file is whole at first touch, ``"always"`` every chunk that is read (through
            array_record's reader, local files only).

    Safe to use from threads, picklable, and right in a child after a fork: files are opened at first touch.

    Raises:
        InvalidArgumentError, InvalidTypeError: where the paths are none.
        StorageError: where a file does not exist or cannot be opened.
        CorruptionError: where a file is not a whole ArrayRecord file.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        storage_options: Mapping[str, Any] | None = None,
        verify: Verify = "open",
    ) -> None:
        if verify not in VERIFY:
            raise InvalidArgumentError(f"verify {verify!r}: it is one of {', '.join(map(repr, VERIFY))}")
        if isinstance(paths, (str, os.PathLike, FileInstruction)):
            paths = [paths]
        if not isinstance(paths, Sequence) or len(paths) == 0:
            raise InvalidArgumentError(f"paths {paths!r}: pass a path, a glob or a list of paths")
        self._verify: Verify = verify
        self._options = StorageOptions(storage_options or {})
        self._parts = [part for path in paths for part in _parts(path, self._options)]
        self._open()

    def _open(self) -> None:
        self._lock = ProcessLock()
        self._files: list[RecordFile | None] = [None] * len(self._parts)
        stops = [len(self._file(number)) if part.stop is None else part.stop for number, part in enumerate(self._parts)]
        lengths = [stop - part.start for stop, part in zip(stops, self._parts, strict=True)]
        self._splits = np.cumsum([0, *lengths])
        self._selection = Selection.all(int(self._splits[-1]))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_parts", "_verify", "_options", "_splits")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ProcessLock()
        self._files = [None] * len(self._parts)
        self._selection = Selection.all(int(self._splits[-1]))

    def _file(self, number: int) -> RecordFile:
        file = self._files[number]
        if file is None:
            with self._lock:
                file = self._files[number]
                if file is None:
                    part = self._parts[number]
                    file = self._opened(part.path)
                    if part.stop is not None and not 0 <= part.start <= part.stop <= len(file):
                        raise InvalidArgumentError(
                            f"{part.path}[{part.start}:{part.stop}]: the file has {len(file)} records"
                        )
                    self._files[number] = file
        return file

    def _opened(self, path: Path | str) -> RecordFile:
        if isinstance(path, Path):
            return open_file(path, self._verify)
        if self._verify == "always":
            raise InvalidArgumentError(
                f"verify='always' of {path}: a file is checked whole on local disk only: copy it"
            )
        return RangedRecordFile(_ranged_file(path, self._options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files = [None] * len(self._parts)

    def __len__(self) -> int:
        return len(self._selection)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), 256):
            yield from self.__getitems__(range(start, min(start + 256, len(self))))

    def __getitem__(self, record_key: SupportsIndex) -> bytes:
        """One record.

        Raises:
            RecordIndexError: where there is no such record; it is an IndexError.
        """
        number = self._selection.number(record_key)
        part = int(np.searchsorted(self._splits, number, side="right")) - 1
        place = number - int(self._splits[part]) + self._parts[part].start
        return self._file(part).read(np.array([place]))[0]

    def __getitems__(self, record_keys: Iterable[SupportsIndex] | NDArray[Any]) -> list[bytes]:
        """Many records, in the order of their keys; negative ones count from the end.

        Raises:
            RecordIndexError: where there is no such record.
        """
        numbers = self._selection.take(record_keys)
        part_of = np.searchsorted(self._splits, numbers, side="right") - 1
        out: list[bytes] = [b""] * len(numbers)
        for part in np.unique(part_of).tolist():
            rows = np.flatnonzero(part_of == part)
            places = numbers[rows] - self._splits[part] + self._parts[part].start
            for row, record in zip(rows.tolist(), self._file(part).read(places), strict=True):
                out[row] = record
        return out

    def __repr__(self) -> str:
        state = hashlib.sha256()
        for part in self._parts:
            path = part.path
            file = map_file(path) if isinstance(path, Path) else _ranged_file(path, self._options)
            state.update(f"{part.start}:{part.stop}:{fingerprint(file)};".encode())
        return f"ArrayRecordDataSource(records={len(self)}, sha256={state.hexdigest()})"


def _parts(path: PathLike, options: Mapping[str, Any]) -> list[_Part]:
    if isinstance(path, FileInstruction):
        return [_Part(_place(path.filename), path.skip, path.skip + path.take)]
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"path {path!r}: pass a str, a path or a file instruction")
    text = os.fspath(path)
    match = _PART.fullmatch(text)
    if match:
        return [_Part(_place(match[1]), int(match[2]), int(match[3]))]
    if "://" in text:
        return [_Part(url) for url in _matching_objects(text, options)]
    if glob.has_magic(text) and not Path(text).exists():
        found = sorted(glob.glob(text))  # noqa: PTH207
        if not found:
            raise StorageError(f"no file matches {text}")
        return [_Part(Path(name)) for name in found]
    return [_Part(Path(text))]


def _place(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def _matching_objects(url: str, options: Mapping[str, Any]) -> list[str]:
    folder, _, pattern = url.rpartition("/")
    if not glob.has_magic(pattern):
        return [url]
    found = fnmatch.filter(open_store(folder, options).names(""), pattern)
    if not found:
        raise StorageError(f"no object matches {url}")
    return [f"{folder}/{name}" for name in sorted(found)]


def _ranged_file(url: str, options: Mapping[str, Any]) -> RangedFile:
    folder, _, name = url.rpartition("/")
    store = open_store(folder, options)
    nbytes = store.size(name)
    if nbytes is None:
        raise StorageError(f"cannot open {url}: there is no such object")
    return RangedFile(url, name, nbytes, store.read_ranges)
