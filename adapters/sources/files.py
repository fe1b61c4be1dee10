"""Find files by path, pattern or URL, and make sources of what is in them: all adapters of file formats share this."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileFacts, FileSource
from cachelayer.credentials_in_urls import as_cause, without_credentials, without_credentials_in
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.objects import paths as names
from cachelayer.objects.local import located
from cachelayer.objects.open_store import names_no_bucket
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool

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
    listed: Mapping[str, Any] | None = None
    """The entry of the file in a listing of fsspec; None if the file system must be asked."""

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def name(self) -> str:
        """The name for messages: the path, or the URL without user, password and query."""
        return self.path if self.is_local else without_credentials(str(self.fs.unstrip_protocol(self.path)))

    @property
    def facts(self) -> FileFacts:
        """The size and modification time of the file: those of the listing, or the current ones."""
        info = self.listed
        if info is None:
            with reading(self.name):
                # A cached listing may be out of date.
                self.fs.invalidate_cache(self.path.rpartition("/")[0])
                info = self.fs.info(self.path)
        modified = next((str(info[key]) for key in _MODIFIED if info.get(key) is not None), None)
        return FileFacts(self.name, int(info.get("size") or 0), modified)

    def open(self) -> IO[bytes]:
        """Open the file for reading."""
        if self.is_local and Path(self.path).exists() and not Path(self.path).is_file():
            raise SourceError(f"{self.path} is a pipe, a socket or a device, which may never end: take it out")
        opened: IO[bytes] = self.fs.open(self.path, "rb")
        return opened


class Files:
    """Files as the user names them: by paths, patterns or URLs."""

    def __init__(self, paths: Paths, storage_options: Options = None) -> None:
        # An iterable might yield them only once.
        is_several = isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike))
        given: list[Any] = list(paths) if is_several else [paths]  # type: ignore[arg-type]
        # They are looked for later, perhaps in another process, when the working folder may be another.
        self.paths = [located(path) if isinstance(path, (str, os.PathLike)) else path for path in given]
        self.storage_options = storage_options

    def find(self) -> list[File]:
        """Return the files: in the order of the list, and by name within a pattern.

        As in a shell, only a pattern with the dot matches hidden files.
        """
        if not self.paths:
            raise InvalidArgumentError("there is no file: the list of paths is empty")
        return [file for path in self.paths for file in _matching(path, self.storage_options)]

    def facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        with Pool(_REQUESTS, "cachelayer-files") as pool:
            return list(pool.map(lambda file: file.facts, self.find()))


def source_of_files(
    files: Files, make: Callable[[Tree | None], Source], options: Mapping[str, Any] | None = None
) -> FileSource:
    """Return the source of files, which ``make`` opens when it is asked for; with other options, a version is stale."""
    return FileSource([*map(str, files.paths)], make, files.facts, options or {})


def _matching(path: Any, options: Options) -> list[File]:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"a path is a str or an os.PathLike, not {path!r}")
    text = os.fspath(path)
    with reading(text):
        fs, inner = _file_system(text, options)
        is_file = fs.isfile(inner)
        is_pattern = not is_file and any(sign in text for sign in _PATTERN)
        matches = _of_pattern(fs, inner) if is_pattern else [inner]
        files = [inner] if is_file else [name for name in matches if fs.isfile(name)]
        folder = next((name for name in matches if name not in files and fs.isdir(name)), None)
    if folder is not None and inner.rpartition("/")[2].strip("*"):
        raise InvalidArgumentError(f"{folder!r} is a folder: pass {folder + '/*'!r} for the files in it")
    if not files:
        raise InvalidArgumentError(f"there is no file {without_credentials(text)!r}")
    return [File(fs, name) for name in files]


def _of_pattern(fs: fsspec.AbstractFileSystem, pattern: str) -> list[str]:
    """Return the paths that a pattern matches. If a folder ``run[1]`` exists, ``run[1]/*`` lists that folder."""
    folder = ""
    while (rest := pattern[len(folder) :]) and "/" in rest.lstrip("/"):
        name = rest[: rest.index("/", len(rest) - len(rest.lstrip("/"))) + 1]
        if any(sign in name for sign in _PATTERN) and not fs.isdir((folder + name).rstrip("/")):
            break
        folder += name
    matches = sorted(fs.glob(re.sub(r"([*?[])", r"[\1]", folder) + rest))
    if is_hidden(rest):
        return matches
    below = [(name, name.removeprefix(folder)) for name in matches]
    return [name for name, path in below if not is_hidden(path) and (is_marker(rest) or not is_marker(path))]


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

    def files(self, *, hidden: bool = False) -> list[tuple[str, File]]:
        """Return the files at any depth, sorted by their paths below the folder. Links to folders are followed.

        Datasets of a storage that lies in the folder are left out.

        Args:
            hidden: whether to include files whose name, or the name of a folder above them, begins with a dot.
        """
        with reading(self.path):
            self.fs.invalidate_cache(self.path)
            is_local = isinstance(self.fs, LocalFileSystem)
            entries = _local_files(self.path) if is_local else self.fs.find(self.path, detail=True)
        folders = {name.rpartition("/")[0] for name in entries}
        # Some clients put empty objects in the place of folders.
        inner = {
            name[len(self.path) + 1 :]: File(self.fs, name, info)
            for name, info in entries.items()
            if len(name) > len(self.path) + 1 and not name.endswith("/") and (info.get("size") or name not in folders)
        }
        datasets = tuple({dataset for path in inner if (dataset := names.dataset_folder(path)) is not None})
        if "" in datasets:
            raise InvalidArgumentError(f"{self.path} is a dataset of a storage: open it with cachelayer.open")
        return sorted(
            (path, file)
            for path, file in inner.items()
            if not path.startswith(datasets) and (hidden or not is_hidden(path))
        )

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


@contextmanager
def reading(name: str, what: str = "cannot be read") -> Iterator[None]:
    """Name the file in every error that is raised within the block, without credentials in its URL."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{without_credentials(name)}: {error}") from error
    except CacheLayerError:
        raise
    except Exception as error:  # noqa: BLE001
        reason = without_credentials_in(f"{type(error).__name__}: {error}")
        raise SourceError(f"{without_credentials(name)} {what}: {reason}") from as_cause(error)
