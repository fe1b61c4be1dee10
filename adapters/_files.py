"""Files by path, pattern or URL: what the adapters of file formats share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from cachelayer.builds.source_identity import FileFacts, identity_of_files
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.provenance.secrecy import without_userinfo

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_PATTERN = "*?["
_MODIFIED = ("mtime", "etag", "ETag", "LastModified", "last_modified", "updated")
_AT_ONCE = 16


@dataclass(frozen=True)
class File:
    """One file.

    Args:
        fs: where it is.
        path: its name there.
    """

    fs: fsspec.AbstractFileSystem
    path: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    @property
    def name(self) -> str:
        """What messages call it: the path, or the URL without user, password and query."""
        return self.path if self.is_local else without_userinfo(str(self.fs.unstrip_protocol(self.path)))

    @property
    def facts(self) -> FileFacts:
        """What its listing says."""
        with reading(self.name):
            if not self.is_local:
                # What was listed before may have changed since.
                self.fs.invalidate_cache(self.path.rpartition("/")[0])
            info = self.fs.info(self.path)
        return facts_of(self.name, info)

    def open(self) -> IO[bytes]:
        """The file, for reading."""
        opened: IO[bytes] = self.fs.open(self.path, "rb")
        return opened


@dataclass(frozen=True)
class Sized(File):
    """One file of a listing.

    Args:
        nbytes: its size.
        modified: when it was written, or what its store has in place of that.
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
        fs: where it is.
        path: its name there.
    """

    fs: fsspec.AbstractFileSystem
    path: str

    @classmethod
    def at(cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Folder:
        """The folder of a path or URL.

        Raises:
            InvalidArgumentError: where there is none.
        """
        text = os.fspath(path)
        with reading(text):
            fs, inner = url_to_fs(os.path.expanduser(text), **dict(storage_options or {}))  # noqa: PTH111
            if not fs.isdir(inner):
                if isinstance(fs, LocalFileSystem):
                    # What may not be looked at is not there for fsspec.
                    with suppress(FileNotFoundError, NotADirectoryError):
                        Path(inner).stat()
                raise InvalidArgumentError("there is no such folder")
        return cls(fs, inner.rstrip("/"))

    def files(self, *, hidden: bool = False) -> list[tuple[str, Sized]]:
        """The files at any depth, by their paths below the folder, in order. Links to folders are followed.

        Args:
            hidden: whether to give those too that, or whose folders, have a name that begins with a dot.

        Raises:
            SourceError: for a folder that cannot be listed, or a link that leads back to a folder that it lies in.
        """
        with reading(self.path):
            self.fs.invalidate_cache(self.path)
            found = _below(self.path) if isinstance(self.fs, LocalFileSystem) else self.fs.find(self.path, detail=True)
        inner = [
            (name[len(self.path) + 1 :], Sized(self.fs, name, int(info["size"] or 0), _modified(info)))
            for name, info in found.items()
        ]
        return sorted((path, file) for path, file in inner if hidden or not is_hidden(path))

    def folders(self) -> list[str]:
        """The names of the folders in it that are not hidden, in order. Links to folders are folders."""
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
        storage_options: what fsspec's client takes.
    """

    paths: Paths
    storage_options: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """Whether they lie on this host, as far as their names tell."""
        return are_local(self.paths)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells them from others.

        Raises:
            SourceError: if a file cannot be looked at.
            InvalidArgumentError: if there is none.
        """
        return identity_of_files(self.facts())

    def facts(self) -> list[FileFacts]:
        """Return what their listings say now.

        Raises:
            SourceError: if a file cannot be looked at.
            InvalidArgumentError: if there is none.
        """
        return facts_of_all(find(self.paths, self.storage_options))


def listed(paths: Paths) -> Paths:
    """Return the paths, which can be gone through any number of times."""
    return paths if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable) else list(paths)


def are_local(paths: Paths) -> bool:
    """Return whether files lie on this host, as far as their names tell."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    return not any("://" in os.fspath(path) or "::" in os.fspath(path) for path in given)


def is_hidden(path: str) -> bool:
    """Return whether a part of a path has a name that begins with a dot."""
    return any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))


def _below(folder: str, within: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """What is known of each file below a folder of this host. fsspec follows no links to folders."""
    real = os.path.realpath(folder)
    if real in within:
        raise SourceError(f"{folder} is a link to {real}, which it lies in: take the link away")
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
                raise SourceError(f"{path} is a link to nothing: take it away, or bring back {os.path.realpath(path)}")
    return found


def facts_of_all(files: Iterable[File]) -> list[FileFacts]:
    """Return what the listings of files say now.

    Raises:
        SourceError: if a file cannot be looked at.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda file: file.facts, files))


def facts_of(name: str, info: Mapping[str, Any]) -> FileFacts:
    """Return what the listing of a file says, of what fsspec says."""
    return FileFacts(name, int(info.get("size") or 0), _modified(info))


def _modified(info: Mapping[str, Any]) -> str | None:
    return next((str(info[name]) for name in _MODIFIED if info.get(name) is not None), None)


def find(paths: Paths, storage_options: Mapping[str, Any] | None = None) -> list[File]:
    """The files that paths, patterns and URLs name: in the order of the list, those of a pattern by name.

    Args:
        paths: one or more; ``*``, ``?`` and ``[...]`` are patterns.
        storage_options: what fsspec's client takes.

    Raises:
        InvalidArgumentError: where a path or a pattern names no file.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise InvalidArgumentError("no paths: pass one file at least")
    return [file for path in given for file in _matching(path, dict(storage_options or {}))]


def _matching(path: str | os.PathLike[str], options: dict[str, Any]) -> list[File]:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"a path is a str or an os.PathLike, not {path!r}")
    text = os.fspath(path)
    with reading(text):
        fs, inner = url_to_fs(os.path.expanduser(text), **options)  # noqa: PTH111
        if not any(sign in text for sign in _PATTERN) or fs.isfile(inner):
            found = [inner] if fs.isfile(inner) else []
        else:
            found = _of_pattern(fs, inner)
    if not found:
        folder = f": it is a folder: pass a pattern such as {text.rstrip('/') + '/*'!r}" if fs.isdir(inner) else ""
        raise InvalidArgumentError(f"there is no file {text!r}{folder}")
    return [File(fs, name) for name in found]


def _of_pattern(fs: fsspec.AbstractFileSystem, pattern: str) -> list[str]:
    """The files of a pattern, by name: as in a shell, hidden ones only if the pattern says the dot.

    Raises:
        InvalidArgumentError: for a folder among them, unless the pattern takes any name.
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
    """Failures within name the file.

    Raises:
        SourceError: from what was raised.
    """
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error}") from error
    except CacheLayerError:
        raise
    except Exception as error:
        raise SourceError(f"{name} {what}: {type(error).__name__}: {error}") from error
