"""Locks of files, which the operating system releases when their holder dies, and temporary folders under them."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cachelayer.errors import StorageError
from cachelayer.objects.local import storage_error
from cachelayer.temporary_files import parent_folder
from cachelayer.user_warnings import warn


@dataclass(eq=False)
class _Lock:
    """A locked file."""

    descriptor: int


_open: set[_Lock] = set()
"""The locks of this process. A forked child closes them: it would keep them when its parent dies."""


def _close_in_child() -> None:
    while _open:
        os.close(_open.pop().descriptor)


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def try_hold(path: Path, *, remove: bool = False) -> Iterator[bool]:
    """Hold the lock of a file unless another thread or process does; yield whether it is held.

    Args:
        path: the file; it is made if it does not exist.
        remove: remove the file at the end.
    """
    lock = _lock(path)
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        if lock in _open and remove:
            with suppress(OSError):
                path.unlink()
        _close(lock)


def is_held(path: Path) -> bool:
    """Return whether somebody holds the lock of a file."""
    try:
        lock = _lock(path, os.O_RDWR)
    except StorageError:
        if path.exists():
            raise
        return False
    if lock is not None:
        _close(lock)
    return lock is None


def _lock(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> _Lock | None:
    """Return a file that is locked now; None if somebody else has locked it."""
    while True:
        try:
            lock = _Lock(os.open(path, flags, 0o666))
        except OSError as error:
            raise storage_error("open", path, error) from error
        _open.add(lock)
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _close(lock)
            return None
        except OSError as error:
            warn(f"this file system has no locks ({error}): several builds of one version may run at once")
        with suppress(FileNotFoundError):
            # A lock on a file that was removed meanwhile protects nothing.
            if os.path.samestat(os.fstat(lock.descriptor), path.stat()):
                return lock
        _close(lock)


def _close(lock: _Lock) -> None:
    """Unlock and close a file; a forked child has closed its own."""
    if lock in _open:
        _open.remove(lock)
        with suppress(OSError):
            # A child that was forked by other means has the descriptor too, and would keep the lock.
            fcntl.flock(lock.descriptor, fcntl.LOCK_UN)
        os.close(lock.descriptor)


_PREFIX = "cachelayer-build-"
_LOCK = ".lock"


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder of this process, and remove it in the end; remove those of killed processes first.

    Args:
        parent: where to make it; None for the folder of temporary files.
    """
    parent = parent_folder() if parent is None else parent
    remove_left_over(parent)
    with ExitStack() as lock:
        folder, maker = parent / f"{_PREFIX}{uuid.uuid4().hex}", os.getpid()
        # The lock is there before the folder and after it, so a folder without one belongs to nobody. Another process
        # may have taken it for left over in the moment between making and taking it.
        while not lock.enter_context(try_hold(folder.with_suffix(_LOCK), remove=True)):
            folder = parent / f"{_PREFIX}{uuid.uuid4().hex}"
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise storage_error("make", folder, error) from error
        try:
            yield folder
        finally:
            # A child that was forked meanwhile leaves it to its parent.
            if os.getpid() == maker:
                shutil.rmtree(folder, ignore_errors=True)


def remove_left_over(parent: Path) -> None:
    """Remove the temporary folders of processes that were killed."""
    for lock in parent.glob(f"{_PREFIX}*{_LOCK}"):
        # Another process may remove it at the same time; another user's is not ours to remove.
        with suppress(StorageError, OSError):
            if lock.stat().st_uid == os.getuid():
                with try_hold(lock, remove=True) as is_ours:
                    if is_ours:
                        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
