"""Find files by path, pattern or URL, and make sources of what is in them: all adapters of file formats share this."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NoReturn

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from cachelayer.builds.batches import MAX_BATCH_RECORDS, Batch
from cachelayer.builds.element_batches import element_batches
from cachelayer.builds.parts import source_of_files
from cachelayer.builds.source import FileFacts, Source
from cachelayer.builds.source_files import FileSource, reading
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.objects import paths as names
from cachelayer.objects.local import located
from cachelayer.objects.open_store import names_no_bucket
from cachelayer.specs.tree import Tree
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.support.system_threads import Pool

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Options = Mapping[str, Any] | None
_PATTERN = "*?["
_MODIFIED = ("mtime", "etag", "ETag", "LastModified", "last_modified", "updated")
_REQUESTS = 16


@dataclass(frozen=True)
class File:
    """A file of any file system of fsspec."""

    fs: fsspec.AbstractFileSystem
    """The file system that holds it."""
    path: str
    """The name in that file system."""
    info: Mapping[str, Any]
    """What the file system said of the file when it was found."""
    inner: str = ""
    """The path below the folder in which it was found."""

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def name(self) -> str:
        """The name for messages: the path, or the URL without user, password and query."""
        return self.path if self.is_local else without_credentials(str(self.fs.unstrip_protocol(self.path)))

    @property
    def facts(self) -> FileFacts:
        """The size and modification time of the file when it was found."""
        modified = next((str(self.info[key]) for key in _MODIFIED if self.info.get(key) is not None), None)
        return FileFacts(self.name, int(self.info.get("size") or 0), modified)

    def open(self) -> IO[bytes]:
        """Open the file for reading."""
        if self.is_local and Path(self.path).exists() and not Path(self.path).is_file():
            raise SourceError(f"{self.path} is a pipe, a socket or a device, which may never end: take it out")
        opened: IO[bytes] = self.fs.open(self.path, "rb")
        return opened


class Files:
    """Files as the user names them: by paths, patterns or URLs, or by a folder from which ``choose`` takes them."""

    def __init__(
        self, paths: Paths, storage_options: Options = None, choose: Callable[[Folder], list[File]] | None = None
    ) -> None:
        if choose is not None and not isinstance(paths, (str, os.PathLike)):
            raise InvalidTypeError(f"{paths!r} of type {type(paths).__name__}: pass the path or the URL of one folder")
        # An iterable might yield them only once.
        is_several = isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike))
        given: list[Any] = list(paths) if is_several else [paths]  # type: ignore[arg-type]
        # They are looked for later, perhaps in another process, when the working folder may be another.
        self.paths = [located(path) if isinstance(path, (str, os.PathLike)) else path for path in given]
        self.storage_options = storage_options
        self._choose = choose

    def find(self) -> list[File]:
        """Return the files: in the order of the list, and by name within a pattern or a folder.

        As in a shell, only a pattern with the dot matches hidden files.
        """
        if self._choose is not None:
            return self._choose(Folder.at(self.paths[0], self.storage_options))
        if not self.paths:
            raise InvalidArgumentError("there is no file: the list of paths is empty")
        # Here, and not in the threads: fsspec makes a client for each thread that asks for one.
        places = [_place(path, self.storage_options) for path in self.paths]
        if len(places) == 1:
            return _matching(*places[0])
        with Pool(_REQUESTS, "cachelayer-files") as pool:
            return [*chain.from_iterable(pool.map(lambda place: _matching(*place), places))]

    def facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return [file.facts for file in self.find()]


def file_source(
    files: Files, make: Callable[[Sequence[File], Tree | None], Source], options: Mapping[str, Any] | None = None
) -> FileSource:
    """Return the source of files, which ``make`` opens once they are found; with other options, a version is stale."""

    def opened(declared: Tree | None) -> Source:
        found = files.find()
        return replace(make(found, declared), files=[file.facts for file in found], files_now=files.facts)

    return FileSource([*map(str, files.paths)], opened, files.facts, options or {})


def source_of_places(
    kind: str,
    place: str,
    files: Sequence[File],
    elements: Callable[[File], Iterator[tuple[Any, Any]]],
    element_spec: Tree,
) -> Source:
    """Return the source of elements that come one by one from files, each with its place, such as the number of a line.

    ``place`` is what a place is called, such as ``"line"``.
    """
    readers = [_PlacedReader(file.name, place, partial(elements, file)) for file in files]
    sources = [Source(kind, each.read, place=each.place, element_spec=element_spec) for each in readers]
    return source_of_files(kind, sources, element_spec)


class _PlacedReader:
    """The ``read`` and the ``place`` of the elements of a file."""

    def __init__(self, file: str, what: str, elements: Callable[[], Iterator[tuple[Any, Any]]]) -> None:
        self._file = file
        self._what = what
        self._elements = elements
        # Asked for is a record of the batch that was read last, or of the one before.
        self._recent = deque[Any](maxlen=2 * MAX_BATCH_RECORDS)
        self._count = 0

    def read(self, _: int, stop: int | None) -> Iterator[Batch]:
        self._count = 0
        self._recent.clear()
        return element_batches(self._noted(), 0, stop)

    def _noted(self) -> Iterator[Any]:
        for place, element in self._elements():
            self._recent.append(place)
            self._count += 1
            yield element

    def place(self, record: int) -> str:
        back = self._count - record
        known = 0 < back <= len(self._recent)
        return f"{self._file}, {self._what} {self._recent[-back]!r}" if known else self._file


def _place(path: Any, options: Options) -> tuple[str, fsspec.AbstractFileSystem, str]:
    """Return a path as text, its file system, and its name in there."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"a path is a str or an os.PathLike, not {path!r}")
    text = os.fspath(path)
    with reading(text):
        fs, inner = _file_system(text, options)
        # A cached listing may be out of date.
        fs.invalidate_cache()
    return text, fs, inner


def _matching(text: str, fs: fsspec.AbstractFileSystem, inner: str) -> list[File]:
    """Return the file at a path, the files in a folder, or those that a pattern matches."""
    with reading(text):
        info = _info(fs, inner)
        is_pattern = info is None and any(sign in text for sign in _PATTERN)
        infos = {} if info is None else {inner: info}
        if is_pattern:
            infos = _of_pattern(fs, inner)
    folder = next((name for name, info in infos.items() if info["type"] == "directory"), None)
    if folder is not None and is_pattern and inner.rpartition("/")[2].strip("*"):
        raise InvalidArgumentError(f"{folder!r} is a folder: pass {folder + '/*'!r} for the files in it")
    if folder is not None and not is_pattern:
        files = [file for file in Folder(fs, folder.rstrip("/")).files() if not is_marker(file.inner)]
    else:
        files = [File(fs, name, info) for name, info in infos.items() if info["type"] == "file"]
    if not files:
        raise InvalidArgumentError(f"there is no file {without_credentials(text)!r}")
    return files


def _info(fs: fsspec.AbstractFileSystem, name: str) -> Mapping[str, Any] | None:
    """Return what a file system says of a file or folder; None if there is none."""
    if "\0" in name:
        return None
    try:
        info: Mapping[str, Any] = fs.info(name)
    except OSError as error:
        # A text that was no path may be longer than any name.
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno == errno.ENAMETOOLONG:
            return None
        raise
    return info


def _of_pattern(fs: fsspec.AbstractFileSystem, pattern: str) -> dict[str, Mapping[str, Any]]:
    """Return the paths that a pattern matches, each with what the listing says of it, sorted by path.

    If a folder ``run[1]`` exists, ``run[1]/*`` lists that folder.
    """
    folder = ""
    while (rest := pattern[len(folder) :]) and "/" in rest.lstrip("/"):
        name = rest[: rest.index("/", len(rest) - len(rest.lstrip("/"))) + 1]
        if any(sign in name for sign in _PATTERN) and not fs.isdir((folder + name).rstrip("/")):
            break
        folder += name
    matches = dict(sorted(fs.glob(re.sub(r"([*?[])", r"[\1]", folder) + rest, detail=True).items()))
    found: dict[str, Mapping[str, Any]] = {}
    for name, listed in matches.items():
        path = name.removeprefix(folder)
        if is_hidden(rest) or not (is_hidden(path) or (is_marker(path) and not is_marker(rest))):
            # Of a link, and of what has no size in a listing, only the file system tells more.
            is_told = listed["type"] == "directory" or (listed["type"] == "file" and listed.get("size") is not None)
            info = listed if is_told else _info(fs, name)
            found.update({} if info is None else {name: info})
    return found


def is_hidden(path: str) -> bool:
    """Return whether a folder or file name in a path begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))


def is_marker(path: str) -> bool:
    """Return whether a file, or a folder above it, is what Spark and others put beside data, as ``_SUCCESS``."""
    return any(part.startswith("_") and "." not in part for part in path.split("/"))


def _file_system(text: str, options: Options) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a path or URL, and its name in there."""
    if names_no_bucket(text):
        raise InvalidArgumentError("it names no bucket")
    fs, inner = url_to_fs(os.path.expanduser(text), **dict(options or {}))  # noqa: PTH111
    return fs, inner


def is_folder(path: str) -> bool:
    """Return whether a path or URL is that of a folder."""
    with reading(path):
        fs, inner = _file_system(path, None)
        return bool(fs.isdir(inner))


@dataclass(frozen=True)
class Folder:
    """A folder."""

    fs: fsspec.AbstractFileSystem
    """The file system that holds it."""
    path: str
    """The name in that file system."""

    @classmethod
    def at(cls, path: str | os.PathLike[str], storage_options: Options = None) -> Folder:
        """Return the folder at a path or URL."""
        text = os.fspath(path)
        with reading(text):
            fs, inner = _file_system(text, storage_options)
            if isinstance(fs, LocalFileSystem) and Path(inner).exists():
                # fsspec treats a folder without permission as missing: raise the real error.
                os.scandir(inner).close()
            elif not fs.isdir(inner):
                raise InvalidArgumentError("there is no such folder")
        return cls(fs, inner.rstrip("/"))

    def files(self, *, hidden: bool = False) -> list[File]:
        """Return the files at any depth, sorted by their paths below the folder. Links to folders are followed.

        Datasets of a storage that lies in the folder are left out.

        Hidden files have a name, or a folder above them, that begins with a dot.
        """
        with reading(self.path):
            self.fs.invalidate_cache(self.path)
            is_local = isinstance(self.fs, LocalFileSystem)
            entries = _local_files(self.path) if is_local else self.fs.find(self.path, detail=True)
        folders = {name.rpartition("/")[0] for name in entries}
        # Some clients put empty objects in the place of folders.
        files = [
            File(self.fs, name, info, name[len(self.path) + 1 :])
            for name, info in entries.items()
            if len(name) > len(self.path) + 1 and not name.endswith("/") and (info.get("size") or name not in folders)
        ]
        datasets = tuple({dataset for file in files if (dataset := names.dataset_folder(file.inner)) is not None})
        if "" in datasets:
            raise InvalidArgumentError(f"{self.path} is a dataset of a storage: open it with cachelayer.open")
        seen = [each for each in files if hidden or not is_hidden(each.inner)]
        return sorted((each for each in seen if not each.inner.startswith(datasets)), key=lambda file: file.inner)

    def folders(self) -> list[str]:
        """Return the sorted names of the subfolders that are not hidden. A link to a folder counts as a folder."""
        with reading(self.path):
            paths = [entry["name"].rstrip("/") for entry in self.fs.ls(self.path, detail=True) if _is_folder(entry)]
        return sorted(name for path in paths if not is_hidden(name := path.rpartition("/")[2]))


def _is_folder(entry: Mapping[str, Any]) -> bool:
    return entry["type"] == "directory" or (bool(entry.get("islink")) and Path(entry["name"]).is_dir())


def _local_files(folder: str) -> dict[str, dict[str, Any]]:
    """Return size and modification time of each file below a local folder. fsspec does not follow links to folders."""
    stats = {}
    for inner, _, files in os.walk(folder, followlinks=True, onerror=_raise):
        for name in files:
            path = f"{inner}/{name}"
            stats[path] = os.stat(path)  # noqa: PTH116
    return {path: {"size": stat.st_size, "mtime": stat.st_mtime} for path, stat in stats.items()}


def _raise(error: OSError) -> NoReturn:
    raise error
