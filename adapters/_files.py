"""Find and read files by path, pattern or URL: all adapters of file formats share this."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from cachelayer.builds.source_identity import FileFacts, identity_of_files
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.objects.open_store import names_no_bucket
from cachelayer.provenance.contents import without_userinfo
from cachelayer.system_threads import Pool

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_PATTERN = "*?["
_MODIFIED = ("mtime", "etag", "ETag", "LastModified", "last_modified", "updated")
_AT_ONCE = 16
_OF_STORAGE = re.compile(r"(.*?/|)_[a-z]+/(?:.*/)?(?:\d{10}\.json|\d{8}T\d{6}-[0-9a-f]{12})(?:/|$)")
"""A path of a log entry or of an attempt to build: the folder of its dataset, and what follows."""


@dataclass(frozen=True)
class File:
    """One file.

    Args:
        fs: the file system that holds it.
        path: its name in that file system.
    """

    fs: fsspec.AbstractFileSystem
    path: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def name(self) -> str:
        """The name for messages: the path, or the URL without user, password and query."""
        return self.path if self.is_local else without_userinfo(str(self.fs.unstrip_protocol(self.path)))

    @property
    def facts(self) -> FileFacts:
        """The current size and modification time of the file."""
        with reading(self.name):
            if not self.is_local:
                # The cached listing may be out of date.
                self.fs.invalidate_cache(self.path.rpartition("/")[0])
            info = self.fs.info(self.path)
        return facts_of(self.name, info)

    def open(self) -> IO[bytes]:
        """Open the file for reading."""
        opened: IO[bytes] = self.fs.open(self.path, "rb")
        return opened


@dataclass(frozen=True)
class ListedFile(File):
    """One file of a listing, which gave its size.

    Args:
        nbytes: its size in bytes.
        modified: when it was written, or the mark of change that its store has instead, such as an ETag.
    """

    nbytes: int
    modified: str | None = None

    @property
    def facts(self) -> FileFacts:
        return FileFacts(self.name, self.nbytes, self.modified)


@dataclass(frozen=True)
class Folder:
    """A folder.

    Args:
        fs: the file system that holds it.
        path: its name in that file system.
    """

    fs: fsspec.AbstractFileSystem
    path: str

    @classmethod
    def at(cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Folder:
        """Return the folder at a path or URL.

        Raises:
            InvalidArgumentError: if there is no such folder.
        """
        text = os.fspath(path)
        with reading(text):
            fs, inner = _opened(text, dict(storage_options or {}))
            if not fs.isdir(inner):
                if isinstance(fs, LocalFileSystem):
                    # fsspec treats a folder without permission as missing: raise the real error.
                    with suppress(FileNotFoundError, NotADirectoryError):
                        Path(inner).stat()
                raise InvalidArgumentError("there is no such folder")
        return cls(fs, inner.rstrip("/"))

    def files(self, *, hidden: bool = False) -> list[tuple[str, ListedFile]]:
        """Return the files at any depth, sorted by their paths below the folder. Links to folders are followed.

        Datasets of a storage that lies in the folder are left out.

        Args:
            hidden: whether to include files whose name, or the name of a folder above them, begins with a dot.

        Raises:
            SourceError: if a folder cannot be listed, or a link leads back to a folder that contains it.
            InvalidArgumentError: if the folder is itself a dataset of a storage.
        """
        with reading(self.path):
            self.fs.invalidate_cache(self.path)
            found = _below(self.path) if isinstance(self.fs, LocalFileSystem) else self.fs.find(self.path, detail=True)
        inner = [
            (name[len(self.path) + 1 :], ListedFile(self.fs, name, int(info["size"] or 0), _modified(info)))
            for name, info in found.items()
        ]
        datasets = tuple({entry[1] for path, _ in inner if (entry := _OF_STORAGE.match(path))})
        if "" in datasets:
            raise InvalidArgumentError(f"{self.path} is a dataset of a storage: open it with cachelayer.open")
        inner = [(path, file) for path, file in inner if not path.startswith(datasets)]
        return sorted((path, file) for path, file in inner if hidden or not is_hidden(path))

    def folders(self) -> list[str]:
        """Return the sorted names of the subfolders that are not hidden. A link to a folder counts as a folder."""
        with reading(self.path):
            found = self.fs.ls(self.path, detail=True)
            names = [info["name"].rstrip("/") for info in found if self._is_folder(info)]
        return sorted(name for path in names if not is_hidden(name := path.rpartition("/")[2]))

    def _is_folder(self, info: Mapping[str, Any]) -> bool:
        is_local = isinstance(self.fs, LocalFileSystem)
        return Path(info["name"]).is_dir() if is_local else bool(info["type"] == "directory")


@dataclass(frozen=True)
class Files:
    """Files as the user names them.

    Args:
        paths: paths, patterns or URLs.
        storage_options: options of fsspec's client.
    """

    paths: Paths
    storage_options: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the names of the files say that they lie on this host."""
        return are_local(self.paths)

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish these files from others.

        Raises:
            SourceError: if a file cannot be inspected.
            InvalidArgumentError: if no file matches.
        """
        return identity_of_files(self.facts())

    def facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file.

        Raises:
            SourceError: if a file cannot be inspected.
            InvalidArgumentError: if no file matches.
        """
        return facts_of_all(find(self.paths, self.storage_options))


def listed(paths: Paths) -> Paths:
    """Return the paths as a list if they come from an iterable, which might yield them only once."""
    return paths if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable) else list(paths)


def are_local(paths: Paths) -> bool:
    """Return whether the names of files say that they lie on this host."""
    each = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    return not any("://" in os.fspath(path) or "::" in os.fspath(path) for path in each)


def is_hidden(path: str) -> bool:
    """Return whether a folder or file name in a path begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))


def _below(folder: str, within: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Return size and modification time of each file below a local folder. fsspec does not follow links to folders."""
    real = os.path.realpath(folder)
    if real in within:
        raise SourceError(f"{folder} is a link to {real}, which contains it: remove the link")
    found: dict[str, dict[str, Any]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if entry.is_dir():
                found.update(_below(path, (*within, real)))
            elif entry.is_file():
                stat = entry.stat()
                found[path] = {"size": stat.st_size, "mtime": stat.st_mtime}
            elif entry.is_symlink():
                raise SourceError(f"{path} is a broken link: remove it, or restore {os.path.realpath(path)}")
    return found


def facts_of_all(files: Iterable[File]) -> list[FileFacts]:
    """Return the current size and modification time of each file.

    Raises:
        SourceError: if a file cannot be inspected.
    """
    with Pool(_AT_ONCE, "cachelayer-files") as pool:
        return list(pool.map(lambda file: file.facts, files))


def facts_of(name: str, info: Mapping[str, Any]) -> FileFacts:
    """Return size and modification time of a file from fsspec's info."""
    return FileFacts(name, int(info.get("size") or 0), _modified(info))


def _modified(info: Mapping[str, Any]) -> str | None:
    return next((str(info[name]) for name in _MODIFIED if info.get(name) is not None), None)


def find(paths: Paths, storage_options: Mapping[str, Any] | None = None) -> list[File]:
    """Return the files that paths, patterns and URLs name: in the order of the list, and by name within a pattern.

    Args:
        paths: one or more; ``*``, ``?`` and ``[...]`` are patterns.
        storage_options: options of fsspec's client.

    Raises:
        InvalidArgumentError: if a path or a pattern names no file.
    """
    each = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not each:
        raise InvalidArgumentError("no paths: pass at least one file")
    return [file for path in each for file in _matching(path, dict(storage_options or {}))]


def _opened(text: str, options: dict[str, Any]) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a path or URL, and its name in there."""
    if names_no_bucket(text):
        raise InvalidArgumentError("it names no bucket")
    fs, inner = url_to_fs(os.path.expanduser(text), **options)  # noqa: PTH111
    return fs, inner


def _matching(path: str | os.PathLike[str], options: dict[str, Any]) -> list[File]:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"a path is a str or an os.PathLike, not {path!r}")
    text = os.fspath(path)
    with reading(text):
        fs, inner = _opened(text, options)
        if not any(sign in text for sign in _PATTERN) or fs.isfile(inner):
            names = [inner] if fs.isfile(inner) else []
        else:
            names = _of_pattern(fs, inner)
        is_folder = not names and fs.isdir(inner)
    if not names:
        folder = f": it is a folder: pass a pattern such as {text.rstrip('/') + '/*'!r}" if is_folder else ""
        raise InvalidArgumentError(f"there is no file {text!r}{folder}")
    return [File(fs, name) for name in names]


def _of_pattern(fs: fsspec.AbstractFileSystem, pattern: str) -> list[str]:
    """Return the files that match a pattern, by name. As in a shell, only a pattern with the dot matches hidden files.

    Raises:
        InvalidArgumentError: if a folder matches too, unless the pattern is one that matches any name.
    """
    found = sorted(fs.glob(pattern))
    first = min((pattern.find(sign) for sign in _PATTERN if sign in pattern), default=len(pattern))
    folder = pattern[: pattern.rfind("/", 0, first) + 1]
    if not is_hidden(pattern[len(folder) :]):
        found = [name for name in found if not is_hidden(name.removeprefix(folder))]
    files = [name for name in found if fs.isfile(name)]
    if pattern.rpartition("/")[2].strip("*"):
        other = next((name for name in sorted({*found} - {*files}) if fs.isdir(name)), None)
        if other is not None:
            raise InvalidArgumentError(f"{other!r} is a folder: pass {other + '/*'!r} for the files in it")
    return files


@contextmanager
def reading(name: str, what: str = "cannot be read") -> Iterator[None]:
    """Name the file in every error that is raised within the block.

    Raises:
        SourceError: from an error that is not of this package.
    """
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error}") from error
    except CacheLayerError:
        raise
    except Exception as error:
        raise SourceError(f"{name} {what}: {type(error).__name__}: {error}") from error
