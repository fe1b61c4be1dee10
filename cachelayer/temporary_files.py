"""Temporary folders, which the system may refuse, files that outlive a crash of the host, and files that are none.

The system refuses a temporary folder if its parent is gone or full, or too many files are open. The name of a working
folder ends with the name of its process, so that a later process removes it if that process was killed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cachelayer.errors import CorruptionError, StorageError
from cachelayer.host import has_ended, process_name

_PREFIX = "cachelayer-build-"


def parent_folder() -> Path:
    """Return the folder of the system for temporary files."""
    with _refusals():
        return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new empty folder; remove it in the end."""
    with _refusals():
        folder = tempfile.TemporaryDirectory(prefix="cachelayer-", ignore_cleanup_errors=True)
    with folder as name:
        yield Path(name)


@contextmanager
def working_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder of this process; remove it in the end. Remove the folders of killed processes first.

    Args:
        parent: the folder in which to make it; None for the folder of the system for temporary files.
    """
    parent = parent_folder() if parent is None else parent
    remove_left_over(parent)
    folder = parent / f"{_PREFIX}{uuid.uuid4().hex[:12]}-{process_name()}"
    maker = os.getpid()
    with _refusals():
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        # A child that was forked meanwhile leaves the folder to its parent.
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)


def maker_of(folder: Path) -> str:
    """Return the name of the process that made a working folder."""
    return folder.name.removeprefix(_PREFIX).partition("-")[2]


def remove_left_over(parent: Path) -> None:
    """Remove the working folders of processes of this host that were killed."""
    for folder in left_over_folders(parent):
        # Errors: another process may remove it at the same time, and a folder of another user stays.
        shutil.rmtree(folder, ignore_errors=True)


def left_over_folders(parent: Path) -> list[Path]:
    """Return the working folders of processes of this host that were killed."""
    with suppress(OSError):
        return [folder for folder in sorted(parent.glob(f"{_PREFIX}*")) if has_ended(maker_of(folder))]
    return []


@contextmanager
def _refusals() -> Iterator[None]:
    """Say what to do if the system refuses a temporary folder."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary file: {error}: set TMPDIR to a folder that exists and has room, and see that the "
            "limit of open files (`ulimit -n`) is not reached"
        ) from error


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open a file for reading, and return its descriptor. This never waits for the other end of a pipe.

    Raises:
        CorruptionError: if there is a pipe, a socket, a device or a folder in the place of the file.
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
