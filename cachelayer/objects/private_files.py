"""Files that only their owner can have written, and locks on them; no link is followed."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cachelayer.errors import StorageError

FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private(folder: Path, status_of: Callable[[Path], os.stat_result]) -> None:
    """Make a folder for this user alone if it does not exist, and refuse one that others could write to.

    Raises:
        StorageError: if it belongs to another user, or others may write to it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    status = status_of(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise StorageError(f"local copies in {folder} are not used: it is a link: remove it")
    if status.st_uid != os.geteuid():
        raise StorageError(
            f"local copies in {folder} are not used: it belongs to user {status.st_uid}, not to {os.geteuid()}, who "
            "reads here: pass a local_cache of your own, or set CACHELAYER_LOCAL_CACHE"
        )
    if status.st_mode & _BY_OTHERS:
        raise StorageError(
            f"local copies in {folder} are not used: other users may write to it (mode "
            f"{stat.S_IMODE(status.st_mode):04o}): run chmod -R go-w {folder}, or pass another local_cache"
        )


@contextmanager
def locked(path: Path, how: int) -> Iterator[BinaryIO | None]:
    """Hold a lock on a file, made if it does not exist; yield None if ``how`` says not to wait and another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, FILE_MODE)
    with os.fdopen(descriptor, "ab") as file:
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            yield None
            return
        yield file


def is_at(file: BinaryIO | int, path: Path) -> bool:
    """Return whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file if isinstance(file, int) else file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def nbytes_of(path: Path) -> int:
    """Return the bytes of a file that the count includes."""
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return status.st_size
    return 0


def private_nbytes(path: Path) -> int:
    """Return the size of a copy that only this user can have made; -1 for any other."""
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _BY_OTHERS:
            return status.st_size
    return -1
