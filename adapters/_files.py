"""Files by path, pattern or URL: what the adapters of file formats share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_PATTERN = "*?["


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
        """What messages call it: the path, or the URL."""
        return self.path if self.is_local else str(self.fs.unstrip_protocol(self.path))

    def open(self) -> IO[bytes]:
        """The file, for reading."""
        opened: IO[bytes] = self.fs.open(self.path, "rb")
        return opened


@dataclass(frozen=True)
class Sized(File):
    """One file of a listing.

    Args:
        nbytes: its size.
    """

    nbytes: int


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
                raise InvalidArgumentError("there is no such folder")
        return cls(fs, inner.rstrip("/"))

    def files(self) -> list[tuple[str, Sized]]:
        """The files at any depth, by their paths below the folder, in order."""
        with reading(self.path):
            found = self.fs.find(self.path, detail=True)
        inner = {name[len(self.path) + 1 :]: Sized(self.fs, name, info["size"]) for name, info in found.items()}
        return sorted(inner.items())

    def folders(self) -> list[str]:
        """The names of the folders in it that are not hidden, in order."""
        with reading(self.path):
            found = self.fs.ls(self.path, detail=True)
        names = [info["name"].rstrip("/").rpartition("/")[2] for info in found if info["type"] == "directory"]
        return sorted(name for name in names if not name.startswith("."))


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
            found = [name for name in sorted(fs.glob(inner)) if fs.isfile(name)]
    if not found:
        raise InvalidArgumentError(f"there is no file {text!r}")
    return [File(fs, name) for name in found]


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
