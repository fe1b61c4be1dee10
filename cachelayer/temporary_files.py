"""Temporary files and folders, which the system may refuse, and files that outlive a crash of the host.

The system refuses temporary files if their folder is gone or full, or too many files are open.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from cachelayer.errors import StorageError


def parent_folder() -> Path:
    """Return the folder that temporary files are made in."""
    with _refusals():
        return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new empty folder, and remove it in the end."""
    with _refusals():
        folder = tempfile.TemporaryDirectory(prefix="cachelayer-", ignore_cleanup_errors=True)
    with folder as name:
        yield Path(name)


_PREFIX = "cachelayer-build-"
_STAYS_FREE = 100
"""One of so many bytes of a disk stays free."""
_ON_ITS_WAY = 16 << 20
"""The bytes that may have been written and are not on the disk yet: the writers of shards have threads."""


@contextmanager
def working_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder of this process, and remove it in the end; remove those of killed processes first.

    Args:
        parent: where to make it; None for the folder of temporary files.
    """
    parent = parent_folder() if parent is None else parent
    remove_left_over(parent)
    folder, maker = parent / f"{_PREFIX}{uuid.uuid4().hex[:12]}-{process_name()}", os.getpid()
    with _refusals():
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        # A child that was forked meanwhile leaves it to its parent.
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)


def maker_of(folder: Path) -> str:
    """Return the name of the process that made a working folder."""
    return folder.name.removeprefix(_PREFIX).partition("-")[2]


class DiskRoom:
    """The room on a disk, for work that writes much: the work ends with an error before it fills the disk.

    One percent of the disk stays free, or as much as the work has written if that is less: so small work goes on
    on a large disk that is nearly full.

    Args:
        folder: a folder on the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Count bytes that are about to be written.

        Raises:
            StorageError: if they would fill the disk.
        """
        self._taken += nbytes
        disk = os.statvfs(self._folder)
        total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        # Some network file systems do not know their size: it is 0 then.
        if total and free < nbytes + min(total // _STAYS_FREE + _ON_ITS_WAY, self._taken):
            raise StorageError(
                f"there is no space left for what is written to {self._folder}: {free / 1e6:,.0f} MB of "
                f"{total / 1e6:,.0f} MB are free, after {self._taken / 1e6:,.0f} MB were written. Make room, or write "
                "to another disk; if the source never ends, pass max_records="
            )


def remove_left_over(parent: Path) -> None:
    """Remove the working folders of processes of this host that were killed."""
    for folder in left_over_folders(parent):
        # Another process may remove it at the same time; another user's is not ours to remove.
        shutil.rmtree(folder, ignore_errors=True)


def left_over_folders(parent: Path) -> list[Path]:
    """Return the working folders of processes of this host that were killed."""
    with suppress(OSError):
        return [each for each in sorted(parent.glob(f"{_PREFIX}*")) if has_ended(maker_of(each))]
    return []


@cache
def _host() -> str:
    """Return a name of this host and its numbering of processes: containers share its name with ``--network=host``."""
    with suppress(OSError):
        return f"{platform.node()}.{Path('/proc/self/ns/pid').stat().st_ino}"
    # Where there is no such file, as on macOS, there are no such containers either.
    return platform.node()


def process_name(pid: int | None = None) -> str:
    """Return the name of this process, or of another one on this host: its host and its number there."""
    return f"{_host()}-{os.getpid() if pid is None else pid}"


def host_and_pid(process: str) -> tuple[str, int | None]:
    """Return the name of the host of a process, and its number there, by its name; empty and None if it has none."""
    host, _, number = process.rpartition("-")
    name, _, namespace = host.rpartition(".")
    is_named = number.isascii() and number.isdigit()
    return (name if name and namespace.isdigit() else host), int(number) if is_named else None


def has_ended(process: str) -> bool:
    """Return whether a process has ended, by its name; False if it ran on another host."""
    return _is_here(process) and not is_running(process)


def is_running(process: str) -> bool:
    """Return whether a process runs on this host, by its name."""
    if not _is_here(process):
        return False
    with suppress(PermissionError, OverflowError):
        try:
            os.kill(int(process.rpartition("-")[2]), 0)
        except ProcessLookupError:
            return False
    return True


def _is_here(process: str) -> bool:
    host, _, number = process.rpartition("-")
    return host == _host() and number.isascii() and number.isdigit()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary file: {error}: set TMPDIR to a folder that exists and has room, and see that the "
            "limit of open files (`ulimit -n`) is not reached"
        ) from error


def sync_path(path: str | os.PathLike[str]) -> None:
    """Make the bytes of a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
