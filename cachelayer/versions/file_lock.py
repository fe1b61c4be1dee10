"""Locks of files, which the operating system releases when their holder dies, and temporary folders under them.

A lock only saves doing work twice, and keeps gc away from running builds. The log alone decides what is published.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cachelayer.errors import StorageError
from cachelayer.objects.local import storage_error
from cachelayer.temporary_files import parent_folder
from cachelayer.user_warnings import warn

_NOTE_NBYTES = 4096
_PAUSE = 0.05
"""Seconds between two looks at a lock that somebody else holds."""


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
def hold(path: Path, *, on_wait: Callable[[], None] | None = None, remove: bool = False) -> Iterator[None]:
    """Hold the lock of a file; wait while another thread or process has it.

    Args:
        path: the file; it is made if it does not exist.
        on_wait: called once before waiting.
        remove: remove the file at the end.
    """
    lock = _lock(path)
    if lock is None and on_wait is not None:
        on_wait()
    while lock is None:
        time.sleep(_PAUSE)
        lock = _lock(path)
    try:
        yield
    finally:
        if lock in _open and remove:
            with suppress(OSError):
                path.unlink()
        _close(lock)


@contextmanager
def try_hold(path: Path, holder: str) -> Iterator[str]:
    """Hold the lock of a file unless somebody else does; yield the name of its holder.

    Args:
        path: the file; it is made if it does not exist.
        holder: the name that others are shown.

    Yields:
        ``holder`` if it is held here; an empty name if the other holder has not written one yet.
    """
    lock = _lock(path)
    if lock is None:
        yield _holder_of(path)
        return
    try:
        _write_holder(lock, holder)
        yield holder
    finally:
        if lock in _open:
            _write_holder(lock, "")
        _close(lock)


def _holder_of(path: Path) -> str:
    try:
        return path.read_bytes()[:_NOTE_NBYTES].decode(errors="replace")
    except OSError:
        return ""


def _write_holder(lock: _Lock, holder: str) -> None:
    with suppress(OSError):
        # On a full disk the lock still holds.
        os.ftruncate(lock.descriptor, 0)
        os.pwrite(lock.descriptor, holder.encode(), 0)


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
def temporary_folder() -> Iterator[Path]:
    """Yield an empty folder of this process, and remove it in the end; remove those of killed processes first."""
    remove_left_over()
    folder, maker = parent_folder() / f"{_PREFIX}{uuid.uuid4().hex}", os.getpid()
    # The lock is there before the folder and after it, so a folder without one belongs to nobody.
    with hold(folder.with_suffix(_LOCK), remove=True):
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


def remove_left_over() -> None:
    """Remove the temporary folders of processes that were killed."""
    try:
        parent = parent_folder()
    except StorageError:
        # Then nothing was left in it either.
        return
    for lock in parent.glob(f"{_PREFIX}*{_LOCK}"):
        # Another process may remove it at the same time; another user's is not ours to remove.
        with suppress(StorageError, OSError):
            if lock.stat().st_uid == os.getuid():
                _remove_left_over(lock)


def _remove_left_over(lock: Path) -> None:
    """Remove the folder of a lock, and the lock, unless somebody holds it."""
    name = uuid.uuid4().hex
    # A process that has made its lock, and is about to take it, has to wait: the folder would be removed under it.
    with try_hold(lock, name) as holder:
        if holder == name:
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
