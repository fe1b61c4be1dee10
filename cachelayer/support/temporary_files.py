"""Temporary folders, which the system may refuse, files that outlive a crash of the host, and files that are none.

The system refuses a temporary folder if its parent is gone or full, or too many files are open. The name of a working
folder ends with the name of its process, so that the next process that makes one removes it if that process was killed.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cachelayer.errors import CorruptionError, StorageError

_PREFIX = "cachelayer-build-"
_ABANDONED_SECONDS = 7 * 24 * 3600.0
"""The age from which nobody uses a working folder any more."""


@contextmanager
def working_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder of this process; remove it in the end. Remove the folders of killed processes first.

    ``parent`` is made too; by default it is the folder of the system for temporary files.
    """
    import shutil
    import tempfile
    import uuid

    from cachelayer.support.host import process_name

    maker = os.getpid()
    advice = "" if parent else "set TMPDIR to a folder that exists and has room, and "
    try:
        place = parent or Path(tempfile.gettempdir())
        folder = place / f"{_PREFIX}{uuid.uuid4().hex[:12]}-{process_name()}"
        folder.mkdir(mode=0o700, parents=parent is not None)
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary file: {error}: {advice}see that the limit of open files (`ulimit -n`) is not "
            "reached"
        ) from error
    try:
        # A new folder tells the time by the clock of the disk.
        for left in left_over_folders(place, folder.stat().st_mtime):
            # Errors: another process may remove it at the same time, and a folder of another user stays.
            shutil.rmtree(left, ignore_errors=True)
        yield folder
    finally:
        # A child that was forked meanwhile leaves the folder to its parent.
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)


def left_over_folders(parent: Path, now: float = -math.inf) -> list[Path]:
    """Return the working folders of killed processes of this host, and those of others that nobody uses any more.

    Nobody can be asked about a process of another container, or from before this machine was started again.

    ``now`` is by the clock of the disk; by default no folder of another host is old enough.
    """
    from cachelayer.support.host import is_running

    folders = []
    with suppress(OSError):
        for folder in sorted(parent.glob(f"{_PREFIX}*")):
            maker = folder.name.removeprefix(_PREFIX).partition("-")[2]
            is_in_use = is_running(maker)
            if is_in_use is None:
                is_in_use = now - _last_change(folder) < _ABANDONED_SECONDS
            if not is_in_use:
                folders.append(folder)
    return folders


def _last_change(folder: Path) -> float:
    """Return when a folder, or a file in it, was changed last; never, if it is gone or may not be looked into."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return math.inf


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open a file for reading, and return its descriptor. What is no regular file is refused, without waiting for a
    pipe.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        # That is how a socket answers.
        if error.errno != errno.ENXIO:
            raise
    raise CorruptionError(f"{path}: not a regular file, but a pipe, socket, device or folder: remove it, and repair")


def sync_path(path: str | os.PathLike[str]) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
