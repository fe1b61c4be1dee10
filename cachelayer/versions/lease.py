"""Who is at work: locks that the operating system lets go when their holder dies.

A lease only saves work that would be done twice and keeps running builds from being collected. What is published is
decided by the log alone.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cachelayer.errors import CacheLayerWarning
from cachelayer.objects.local import storage_error

_NAME_NBYTES = 256


@contextmanager
def hold(path: Path, *, on_wait: Callable[[], None] | None = None, remove: bool = False) -> Iterator[None]:
    """Hold the lease of a file, waiting while another thread or process has it.

    Args:
        path: the file of the lease; it is made where it does not exist.
        on_wait: called before a wait.
        remove: remove the file at the end.

    Raises:
        StorageError: where the file cannot be made.
    """
    descriptor = _open_locked(path, on_wait)
    try:
        yield
    finally:
        if remove:
            with suppress(OSError):
                path.unlink()
        _release(descriptor)


def _open_locked(path: Path, on_wait: Callable[[], None] | None) -> int:
    while True:
        descriptor = _opened(path)
        try:
            if not _try_lock(descriptor):
                if on_wait is not None:
                    on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Who held it before may have removed the file: nobody would see a lock of that.
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            _release(descriptor)
            raise
        _release(descriptor)


def _opened(path: Path) -> int:
    """The file of a lease, made where it does not exist."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise storage_error("open", path, error) from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def try_hold(path: Path, holder: str) -> Iterator[str]:
    """Hold the lease of a file unless somebody else does; the name of who has it then.

    Args:
        path: the file of the lease; it is made where it does not exist.
        holder: the name that others see.

    Returns:
        ``holder`` where it is held here; empty where who holds it has not said a name yet.

    Raises:
        StorageError: where the file cannot be opened.
    """
    descriptor = _opened(path)
    try:
        if not _try_lock(descriptor):
            yield os.pread(descriptor, _NAME_NBYTES, 0).decode(errors="replace")
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        try:
            yield holder
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        _release(descriptor)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lease of a file.

    Raises:
        StorageError: where the file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("open", path, error) from error
    try:
        return not _try_lock(descriptor)
    finally:
        _release(descriptor)


def _release(descriptor: int) -> None:
    # A child that was forked meanwhile has the descriptor too: closing ours alone would leave the lock with it.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warnings.warn(
            f"this file system has no locks ({error}): several builds of one version may run beside each other",
            CacheLayerWarning,
            stacklevel=2,
        )
    return True
