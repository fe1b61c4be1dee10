"""Room on a disk: a build ends with an error before it fills the disk."""

from __future__ import annotations

import os
from pathlib import Path

from cachelayer.errors import StorageError

_FREE_SHARE = 100
"""One of so many bytes of a disk stays free."""
_UNSYNCED_NBYTES = 16 << 20
"""Bytes that may have been written and are not on the disk yet: the writers of shards have threads."""


class DiskRoom:
    """The room on a disk for work that writes much.

    One percent of the disk stays free; or as much as the work has written, if that is less, so that small work goes on
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
        total = disk.f_blocks * disk.f_frsize
        free = disk.f_bavail * disk.f_frsize
        # A network file system that does not know its size says 0.
        if total and free < nbytes + min(total // _FREE_SHARE + _UNSYNCED_NBYTES, self._taken):
            raise StorageError(
                f"there is no space left for what is written to {self._folder}: {free / 1e6:,.0f} MB of "
                f"{total / 1e6:,.0f} MB are free, after {self._taken / 1e6:,.0f} MB were written. Make room, or write "
                "to another disk; if the source never ends, pass max_records="
            )
