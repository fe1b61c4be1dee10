"""Who is at work: locks that the operating system lets go when their holder dies.

A child that was forked has the lock of its parent too, and keeps it when the parent dies. So a child lets go of what it
got that way, and a lock says which process took it: one that is known to have ended holds nothing, whoever else has its
descriptor.

A lease only saves work that would be done twice and keeps running builds from being collected. What is published is
decided by the log alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cachelayer.objects.local import storage_error
from cachelayer.user_warnings import warn
from cachelayer.versions.processes import Process, this_process

_SAID_NBYTES = 4096
_PAUSE = 0.05
"""Seconds between two looks at a lease that another holds."""
_SETTLING = 0.02
"""Seconds in which the next holder has written its name over that of a dead one."""


@dataclass(frozen=True)
class _Said:
    """What the holder of a lease has written into it.

    Args:
        holder: the name that others see.
        process: which process it is, if it knows.
    """

    holder: str = ""
    process: Process | None = None

    @classmethod
    def decode(cls, raw: bytes) -> _Said:
        try:
            document = json.loads(raw)
            return cls(str(document["holder"]), Process.from_json(document["process"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls()

    def encode(self) -> bytes:
        process = None if self.process is None else self.process.to_json()
        return json.dumps({"holder": self.holder, "process": process}).encode()


class _Lock:
    """An open file that can be locked; closed in every child that Python forks.

    Args:
        path: the file.
        flags: how it is opened.

    Raises:
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        with _no_fork:
            self._descriptor = os.open(path, flags, 0o666)
            _locks.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether it is open, and not that of the parent which forked this process."""
        return self._descriptor >= 0

    def take(self) -> bool:
        """Lock it, unless another has."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            warn(f"this file system has no locks ({error}): several builds of one version may run beside each other")
        return True

    def is_at_its_path(self) -> bool:
        """Whether the file was not removed: nobody would see a lock of that."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def said(self) -> _Said:
        """What the holder has written into it."""
        return _Said.decode(os.pread(self._descriptor, _SAID_NBYTES, 0))

    def say(self, said: _Said | None) -> None:
        """Write who holds it; None for nobody."""
        os.ftruncate(self._descriptor, 0)
        if said is not None:
            os.pwrite(self._descriptor, said.encode(), 0)

    def is_orphan(self) -> bool:
        """Whether who took it has ended, and a child that was forked has it still."""
        said = self.said()
        if said.process is None or not said.process.has_ended():
            return False
        # The next holder may have locked it, and not have written its name yet.
        time.sleep(_SETTLING)
        return self.said() == said and not self.take()

    def close(self) -> None:
        """Let go of it."""
        if not self.is_ours:
            return
        # A child that was forked otherwise has the descriptor too: closing ours alone would leave the lock with it.
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        with _no_fork:
            _locks.discard(self)
            os.close(self._descriptor)
            self._descriptor = -1

    def close_in_child(self) -> None:
        """Close it, and leave the lock with the parent."""
        self._close()


_locks: set[_Lock] = set()
_no_fork = threading.RLock()


def _let_go_in_child() -> None:
    for lock in list(_locks):
        lock.close_in_child()
    _no_fork.release()


os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_let_go_in_child)


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
    lock, has_waited = _taken(path), False
    while isinstance(lock, _Said):
        if on_wait is not None and not has_waited:
            on_wait()
        has_waited = True
        time.sleep(_PAUSE)
        lock = _taken(path)
    with _held(lock, path, "", remove=remove):
        yield


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
    lock = _taken(path)
    if isinstance(lock, _Said):
        yield lock.holder
        return
    with _held(lock, path, holder, remove=False):
        yield holder


@contextmanager
def _held(lock: _Lock, path: Path, holder: str, *, remove: bool) -> Iterator[None]:
    try:
        with suppress(OSError):
            # On a full disk it is locked all the same.
            lock.say(_Said(holder, this_process()))
        yield
    finally:
        if lock.is_ours:
            with suppress(OSError):
                lock.say(None)
                if remove:
                    path.unlink()
        lock.close()


def _taken(path: Path) -> _Lock | _Said:
    """The lock of a file, taken; or what its holder says.

    Raises:
        StorageError: where the file cannot be opened.
    """
    while True:
        try:
            lock = _Lock(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise storage_error("open", path, error) from error
        is_ours = False
        try:
            if not lock.take():
                if not lock.is_orphan() or not _remove_orphan(path):
                    return lock.said()
            elif lock.is_at_its_path():
                is_ours = True
                return lock
        finally:
            if not is_ours:
                lock.close()


def _remove_orphan(path: Path) -> bool:
    """Remove the file of a lease that only a child of its dead holder has, so that the next is another file.

    Returns:
        Whether the file that was looked at is gone, or has another holder.
    """
    try:
        folder = _Lock(path.parent, os.O_RDONLY)
    except OSError:
        return False
    try:
        # One after another: none may remove the file that another has made anew.
        fcntl.flock(folder._descriptor, fcntl.LOCK_EX)
        lock = _Lock(path, os.O_RDWR)
        try:
            if not lock.take() and lock.is_orphan():
                path.unlink()
            return True
        finally:
            lock.close()
    except FileNotFoundError:
        return True
    except OSError:
        # No locks of folders here, as in NFS: then it is waited for the child, too.
        return False
    finally:
        folder.close()


def is_held(path: Path) -> bool:
    """Whether somebody holds the lease of a file.

    Raises:
        StorageError: where the file cannot be opened.
    """
    try:
        lock = _Lock(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("open", path, error) from error
    try:
        return not lock.take() and not lock.is_orphan()
    finally:
        lock.close()
