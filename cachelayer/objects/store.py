"""Where bytes are kept under names: put, put if absent, read. Local disk here."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError


def parent_of(name: str) -> str:
    """The folder of an object."""
    return name.rpartition("/")[0]


class ObjectStore(Protocol):
    """A flat space of named objects. Names use ``/``."""

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""

    def read(self, name: str) -> bytes | None:
        """The object's bytes, or None where there is none."""

    def exists(self, name: str) -> bool:
        """Whether the object exists."""

    def put(self, name: str, data: bytes) -> None:
        """Write the object whole, over what may be there; it is durable on return."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object whole unless it exists; exactly one of several writers gets True. Durable on return."""

    def names(self, folder: str) -> list[str]:
        """The names directly below a folder, without it. For maintenance: reading a dataset never lists."""

    def delete_folder(self, folder: str) -> None:
        """Delete every object below a folder; one that is gone already is no error."""


class LocalStore:
    """Objects as files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        """The file of an object."""
        return self.root / name

    def read(self, name: str) -> bytes | None:
        try:
            return self.path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("read", self.path(name), error) from error

    def exists(self, name: str) -> bool:
        try:
            return self.path(name).exists()
        except OSError as error:
            raise storage_error("read", self.path(name), error) from error

    def put(self, name: str, data: bytes) -> None:
        with self._written(name, data) as temporary:
            temporary.replace(self.path(name))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._written(name, data) as temporary:
            try:
                os.link(temporary, self.path(name))
            except FileExistsError:
                return False
        return True

    @contextmanager
    def _written(self, name: str, data: bytes) -> Iterator[Path]:
        """A durable file with the data beside the object; the caller gives it its name, and the folder is synced."""
        target = self.path(name)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            self.make_folder(parent_of(name))
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(target.parent)
        except OSError as error:
            raise storage_error("write", target, error) from error

    def make_folder(self, name: str) -> Path:
        """The folder of this name, made durably where it does not exist."""
        folder = self.path(name)
        missing = []
        try:
            while not folder.is_dir():
                missing.append(folder)
                folder = folder.parent
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
                sync_folder(folder.parent)
        except OSError as error:
            raise storage_error("create", folder, error) from error
        return self.path(name)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in self.path(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error("read", self.path(folder), error) from error

    def delete_folder(self, folder: str) -> None:
        try:
            while self.path(folder).exists():
                # Who deletes the same folder at the same time makes files vanish under our hands.
                with suppress(FileNotFoundError):
                    shutil.rmtree(self.path(folder))
        except OSError as error:
            raise storage_error("delete", self.path(folder), error) from error


def open_store(url: str | os.PathLike[str]) -> LocalStore:
    """The store of a path or a ``file://`` URL.

    Raises:
        InvalidArgumentError: for a URL of another scheme, and for what cannot be a path.
        InvalidTypeError: for what is neither.
    """
    if not isinstance(url, (str, bytes, os.PathLike)):
        raise InvalidTypeError(f"a storage is a path or a URL, not a {type(url).__name__}")
    text = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgumentError(f"a storage is a path or a URL, not {url!r}")
    if "://" in text:
        parts = urlsplit(text)
        if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
            raise InvalidArgumentError(f"storage {text!r}: this release keeps caches on local disk: pass a path")
        text = unquote(parts.path)
    try:
        return LocalStore(Path(text).expanduser().absolute())
    except RuntimeError as error:
        raise InvalidArgumentError(f"storage {text!r}: {error}") from error


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def storage_error(what: str, path: Path, error: OSError) -> StorageError:
    """The error of the project's own tree for one of the operating system."""
    reason = "no space is left on the disk" if error.errno == errno.ENOSPC else str(error)
    return StorageError(f"cannot {what} {path}: {reason}")
