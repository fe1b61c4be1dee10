"""The store of objects in files below one folder of this machine. No name leads out of the folder.

Somebody else may have filled the folder, and put links into it. The folder of the storage may be a link, and so may the
folder of a dataset: that is how users move datasets to other disks. No operation follows a link below these.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, partial, wraps
from pathlib import Path
from typing import BinaryIO, ParamSpec, Self

import google_crc32c
import numpy as np

from cachelayer.errors import CacheLayerError, CorruptionError, InvalidArgumentError, StorageError
from cachelayer.objects.store import Blob, Buffer, Stat
from cachelayer.protocols import T
from cachelayer.support.logs import logger_of
from cachelayer.support.temporary_files import open_regular, sync_path
from cachelayer.support.user_warnings import warn

_log = logger_of("stores")
P = ParamSpec("P")
LOCAL_SCHEMES = frozenset({"file", "local"})
"""The schemes of URLs that are paths of this machine."""
_READ_NBYTES = 8 * 1024 * 1024
_TEMPORARY_SUFFIX = ".tmp"
_SHOWN = 200
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def absolute(what: str, path: str) -> Path:
    """Return the absolute path; ``~`` is a home folder. Errors call it ``what``."""
    try:
        absolute_path = Path(path).expanduser().absolute()
        str(absolute_path).encode()
    except RuntimeError as error:
        raise InvalidArgumentError(f"{what}: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{what}: its path {str(error.object)!r} is not UTF-8, as references and logs are: rename the folder"
        ) from error
    return absolute_path


def located(path: str | os.PathLike[str]) -> str:
    """Return a path, pattern or ``file://`` URL as an absolute path; any other URL as it is."""
    text = os.fspath(path)
    scheme, sign, rest = text.partition("://")
    if sign and scheme in LOCAL_SCHEMES:
        text = rest
    elif sign or "::" in text:
        return text
    # Unlike pathlib, this keeps a pattern, and never raises.
    text = os.path.expanduser(text).removeprefix("./")  # noqa: PTH111
    return text if text.startswith("/") else f"{Path.cwd()}/{text}"


def _again_if_deleted(write: Callable[P, T]) -> Callable[P, T]:
    """Write, and once more if the temporary file or its folder was deleted before the file got its name.

    A garbage collection without a grace deletes such files, and who publishes a version the folder of its builds.
    """

    @wraps(write)
    def write_again(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return write(*args, **kwargs)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return write(*args, **kwargs)

    return write_again


class LocalStore:
    """Objects in files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_below = False
        """True for a folder of a store: in it no link is followed."""

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def name(self) -> str:
        return self.root.name

    def folder(self, name: str) -> Self:
        folder = copy(self)
        folder.root = self.local_path(name)
        folder._is_below = True
        return folder

    def local_path(self, name: str) -> Path:
        path = self.root
        for depth, step in enumerate(name.split("/") if name else ()):
            if step in ("", ".", "..") or "\0" in step:
                raise StorageError(f"{self.root}: {name[:_SHOWN]!r} is not the name of an object")
            path /= step
            # Unlike Path.is_symlink this returns False without permission to look; the next step then raises the error.
            if (depth or self._is_below) and os.path.islink(path):  # noqa: PTH114
                raise StorageError(
                    f"{path} is a link, and none below the folder of a dataset is followed: put there what it leads "
                    "to, or make a link of the whole folder of the dataset"
                )
        return path

    def read(self, name: str) -> bytes | None:
        path = self.local_path(name)
        try:
            with _request("read", path), suppress(FileNotFoundError, NotADirectoryError), open_file(path) as file:
                return file.read()
        except MemoryError:
            nbytes = path.stat().st_size
            raise StorageError(f"cannot read {path}: there is no memory for its {nbytes} bytes") from None
        return None

    def stat(self, name: str) -> Stat | None:
        path = self.local_path(name)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("read", path, error) from error
        return Stat(status.st_size, status.st_mtime)

    @_again_if_deleted
    def put(self, name: str, data: bytes) -> None:
        with self._durable(name, data) as temporary:
            temporary.replace(self.local_path(name))

    @_again_if_deleted
    def put_file(self, path: Path, blob: Blob) -> None:
        target = self.local_path(blob.name)
        _make_folder(target.parent)
        with _request("write", target):
            path.replace(target)
            sync_path(target.parent)

    @_again_if_deleted
    def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            with self._durable(name, data) as temporary, suppress(FileExistsError):
                _link(temporary, self.local_path(name))
                return True
        except StorageError as error:
            # The link may have been made before the system failed: then others see the object, and go by it.
            if self.read(name) != data:
                raise
            warn(f"{self.url}/{name} is written, but may be lost if this host crashes now: {error}", logger="stores")
        # A network file system may have made the link and lost the reply.
        return self.read(name) == data

    @contextmanager
    def _durable(self, name: str, data: bytes) -> Iterator[Path]:
        """Yield a durable temporary file beside the object. The caller renames it; then the folder is synced."""
        import uuid

        target = self.local_path(name)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}")
        try:
            with _request("write", target):
                _make_folder(target.parent)
                with temporary.open("xb") as file:
                    _warn_if_shut(target.parent, os.fstat(file.fileno()).st_mode)
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
                sync_path(target.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def download(self, name: str, path: Path, nbytes: int) -> int:
        facts = self.stat(name)
        if facts is None or facts.nbytes != nbytes:
            raise wrong_size(self.local_path(name), None if facts is None else facts.nbytes, nbytes)
        with storage_errors("read", self.local_path(name)):
            opened = open_file(self.local_path(name))
        with opened as source, _request("write", path):
            return write_in_place(path, _bodies(source))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        return [self._read_range(*wanted) for wanted in ranges]

    def _read_range(self, name: str, start: int, stop: int) -> bytes:
        if start == stop:
            return b""
        path = self.local_path(name)
        absent = suppress(FileNotFoundError, NotADirectoryError)
        body = b""
        size = None
        with _request(f"read bytes {start} to {stop} of", path), absent, open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(start)
            # Look at the end first: read() would allocate memory for bytes that the file does not have.
            body = file.read(stop - start) if stop <= size else b""
        if len(body) != stop - start:
            raise wrong_size(path, size, stop)
        return body

    def names(self, folder: str) -> list[str]:
        try:
            # A link below the folder of a dataset is no object.
            holds_links = not (folder or self._is_below)
            return sorted(
                path.name for path in self.local_path(folder).iterdir() if holds_links or not path.is_symlink()
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error("read", self.local_path(folder), error) from error

    def facts(self, folder: str) -> dict[str, Stat | None]:
        names = {name: f"{folder}/{name}" if folder else name for name in self.names(folder)}
        return {name: None if self.local_path(path).is_dir() else self.stat(path) for name, path in names.items()}

    def delete(self, name: str) -> None:
        path = self.local_path(name)
        with _request("delete", path), suppress(NotADirectoryError):
            path.unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        import shutil

        path = self.local_path(folder)
        with _request("delete all of", path):
            while path.exists():
                try:
                    shutil.rmtree(self.local_path(folder))
                except OSError as error:
                    # Other processes may delete or write files here at the same time. shutil takes a folder that is
                    # made anew meanwhile for a link, and its error has no number.
                    is_made_anew = error.errno is None and not path.is_symlink()
                    if not is_made_anew and error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                        raise


def _make_folder(folder: Path) -> None:
    """Make a folder durably, with its parents, if it does not exist."""
    missing = []
    try:
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _warn_if_shut(folder.parent, folder.stat().st_mode)
            sync_path(folder.parent)
    except OSError as error:
        raise storage_error("create", folder, error) from error


def _warn_if_shut(folder: Path, mode: int) -> None:
    """Warn if those who share a folder cannot read what this process makes in it, because of its umask."""
    shared = folder.stat().st_mode
    writers = 0 if shared & stat.S_ISVTX else shared & (stat.S_IWGRP | stat.S_IWOTH)
    # The bit of who may read stands beside that of who may write.
    if writers << 1 & ~mode:
        _warn_of_umask(folder)


@cache
def _warn_of_umask(folder: Path) -> None:
    warn(
        f"{folder}: other users may write there, and cannot read what this process makes there, because of its umask: "
        "run umask 002 before the program, and chmod -R g+rX what it has made",
        logger="stores",
    )


def _link(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StorageError(
            f"this file system has no hard links ({error.strerror}), and no version can be published without them: "
            "keep the storage on one that has them, such as ext4, XFS, APFS, NFS or Lustre, or in an object store"
        ) from error


def _bodies(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file, part by part."""
    return iter(partial(file.read, _READ_NBYTES), b"")


def file_crc32c(path: Path) -> int:
    """Return the CRC32C of a file."""
    checksum = 0
    with storage_errors("read", path), open_file(path) as file:
        for body in _bodies(file):
            checksum = google_crc32c.extend(checksum, body)
    return checksum


def write_in_place(path: Path, bodies: Iterable[Buffer]) -> int:
    """Overwrite a file in place, because another process may hold a lock on it, or make it; return its CRC32C."""
    checksum = 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
        for body in bodies:
            checksum = google_crc32c.extend(checksum, np.frombuffer(body, np.uint8))
            file.write(body)
        file.truncate()
    return checksum


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading. Refuse a link."""
    return os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb")


def wrong_size(place: str | Path, nbytes: int | None, expected: int) -> CorruptionError:
    """Return the error for an object that is not there, or has another size, in bytes, than expected."""
    state = "there is no such object" if nbytes is None else f"it has {nbytes} bytes"
    return CorruptionError(f"{place}: {state}, expected {expected}: restore it, or build again")


@contextmanager
def _request(what: str, path: Path) -> Iterator[None]:
    """Log an operation on a file, and how long it took; turn errors of the operating system into StorageError."""
    begin = time.perf_counter()
    try:
        yield
    except CacheLayerError:
        raise
    except OSError as error:
        raise storage_error(what, path, error) from error
    finally:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "%(request)s: in %(seconds).3f s",
                {"request": f"{what} {path}", "seconds": time.perf_counter() - begin},
            )


@contextmanager
def storage_errors(what: str, path: Path) -> Iterator[None]:
    """Turn errors of the operating system into StorageError."""
    try:
        yield
    except CacheLayerError:
        raise
    except OSError as error:
        raise storage_error(what, path, error) from error


def is_full(error: StorageError) -> bool:
    """Return whether an error says that a disk, or the share of it that the user may fill, is full."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)


def storage_error(what: str, path: Path, error: OSError) -> StorageError:
    """Return a StorageError for an error of the operating system."""
    reason = "no space is left on the disk" if error.errno == errno.ENOSPC else str(error)
    if isinstance(error, FileExistsError) and path.is_symlink():
        reason = f"it is a link to {path.readlink()}, which does not exist: is its disk mounted?"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        reason += ": raise the limit of open files with `ulimit -n`"
    return StorageError(f"cannot {what} {path}: {reason}")
