"""Leases on a file system: locks that the operating system releases when their holder dies.

A forked child shares its parent's lock, and would keep it when the parent dies. So a child releases what it inherits,
and a lock says which process took it: a process that has ended holds nothing, even if another still has its
descriptor.

A lease only saves doing work twice, and keeps gc away from running builds. The log alone decides what is published.
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

from cachelayer.locks import hold_in_forks
from cachelayer.objects.local import storage_error
from cachelayer.user_warnings import warn
from cachelayer.versions.process_identity import Process, this_process

_NOTE_NBYTES = 4096
_PAUSE = 0.05
"""Seconds between two checks of a lease that somebody else holds."""
_SETTLING = 0.02
"""Seconds that a new holder gets to write its name over that of a dead one."""


@dataclass(frozen=True)
class _HolderNote:
    """What the holder of a lease wrote into it.

    Args:
        holder: the name that others are shown.
        process: the process of the holder; None if it could not identify itself.
    """

    holder: str = ""
    process: Process | None = None

    @classmethod
    def decode(cls, raw: bytes) -> _HolderNote:
        try:
            document = json.loads(raw)
            return cls(str(document["holder"]), Process.from_json(document["process"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls()

    def encode(self) -> bytes:
        process = None if self.process is None else self.process.to_json()
        return json.dumps({"holder": self.holder, "process": process}).encode()


class _Lock:
    """An open file that can be locked; forked children close it.

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
        """Return whether it is open, and was not inherited from a parent process."""
        return self._descriptor >= 0

    def take(self) -> bool:
        """Lock it unless somebody else has; return whether it is ours."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            warn(f"this file system has no locks ({error}): several builds of one version may run at once")
        return True

    def is_at_its_path(self) -> bool:
        """Return whether the file still has its path: a lock on a removed file protects nothing."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def read_note(self) -> _HolderNote:
        """Return what the holder wrote into it."""
        return _HolderNote.decode(os.pread(self._descriptor, _NOTE_NBYTES, 0))

    def write_note(self, note: _HolderNote | None) -> None:
        """Write who holds it; None if nobody does."""
        os.ftruncate(self._descriptor, 0)
        if note is not None:
            os.pwrite(self._descriptor, note.encode(), 0)

    def is_orphan(self) -> bool:
        """Return whether its holder has ended but a forked child still has the descriptor."""
        note = self.read_note()
        if note.process is None or not note.process.has_ended():
            return False
        # The next holder may have locked it and not yet written its name.
        time.sleep(_SETTLING)
        return self.read_note() == note and not self.take()

    def close(self) -> None:
        """Unlock and close it."""
        if not self.is_ours:
            return
        # A child forked by other means has the descriptor too: closing ours alone would leave it the lock.
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        with _no_fork:
            _locks.discard(self)
            os.close(self._descriptor)
            self._descriptor = -1

    def close_in_child(self) -> None:
        """Close it in a forked child; the parent keeps the lock."""
        self._close()


_locks: set[_Lock] = set()
_no_fork = threading.RLock()


def _close_in_child() -> None:
    for lock in list(_locks):
        lock.close_in_child()


hold_in_forks(_no_fork, _close_in_child)


@contextmanager
def hold(path: Path, *, on_wait: Callable[[], None] | None = None, remove: bool = False) -> Iterator[None]:
    """Hold the lease of a file; wait while another thread or process has it.

    Args:
        path: the file of the lease; it is made if it does not exist.
        on_wait: called once before waiting.
        remove: remove the file at the end.

    Raises:
        StorageError: if the file cannot be made.
    """
    lock, has_waited = _taken(path), False
    while isinstance(lock, _HolderNote):
        if on_wait is not None and not has_waited:
            on_wait()
        has_waited = True
        time.sleep(_PAUSE)
        lock = _taken(path)
    with _held(lock, path, "", remove=remove):
        yield


@contextmanager
def try_hold(path: Path, holder: str) -> Iterator[str]:
    """Hold the lease of a file unless somebody else does; yield the name of its holder.

    Args:
        path: the file of the lease; it is made if it does not exist.
        holder: the name that others are shown.

    Yields:
        ``holder`` if it is held here; an empty name if the other holder has not written one yet.

    Raises:
        StorageError: if the file cannot be opened.
    """
    lock = _taken(path)
    if isinstance(lock, _HolderNote):
        yield lock.holder
        return
    with _held(lock, path, holder, remove=False):
        yield holder


@contextmanager
def _held(lock: _Lock, path: Path, holder: str, *, remove: bool) -> Iterator[None]:
    try:
        with suppress(OSError):
            # On a full disk the lock still holds.
            lock.write_note(_HolderNote(holder, this_process()))
        yield
    finally:
        if lock.is_ours:
            with suppress(OSError):
                lock.write_note(None)
                if remove:
                    path.unlink()
        lock.close()


def _taken(path: Path) -> _Lock | _HolderNote:
    """Take the lock of a file, or return what its holder wrote.

    Raises:
        StorageError: if the file cannot be opened.
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
                    return lock.read_note()
            elif lock.is_at_its_path():
                is_ours = True
                return lock
        finally:
            if not is_ours:
                lock.close()


def _remove_orphan(path: Path) -> bool:
    """Remove the file of a lease that only a dead holder's child has open, so that the next lease is a new file.

    Returns:
        True if that file is gone, or has a new holder.
    """
    try:
        folder = _Lock(path.parent, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Under a lock of the folder: nobody may remove the new file of somebody else.
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
        # This file system, such as NFS, cannot lock folders: then wait for the child too.
        return False
    finally:
        folder.close()


def is_held(path: Path) -> bool:
    """Return whether somebody holds the lease of a file.

    Raises:
        StorageError: if the file cannot be opened.
    """
    try:
        lock = _Lock(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("open", path, error) from error
    try:
        # A forked child may let go of it while we find out that it is an orphan.
        return not lock.take() and not lock.is_orphan() and not lock.take()
    finally:
        lock.close()
