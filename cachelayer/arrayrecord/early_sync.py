"""Flush a file to disk while it is being written, so that little is left to flush at its end."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path

from cachelayer.errors import StorageError
from cachelayer.system_threads import Pool

_NBYTES = 8 << 20


class EarlySync:
    """Flushes a file in a thread of its own, once for every 8 MiB that are written to it and once at its end.

    Args:
        path: the file, which another object writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = Pool(1, "cachelayer-sync")
        self._begun: list[Future[None]] = []
        self._unflushed = 0

    def written(self, nbytes: int) -> None:
        """Count bytes that were written, and begin to flush if they are many."""
        self._unflushed += nbytes
        if self._unflushed >= _NBYTES:
            self.begin()

    def begin(self) -> None:
        """Begin to flush what is written."""
        self._unflushed = 0
        self._begun.append(self._thread.submit(self._flush))

    def stop(self) -> None:
        """End the thread; the file is not needed."""
        self._thread.shutdown(cancel_futures=True)

    def wait(self) -> None:
        """Wait until all is on the disk.

        Raises:
            StorageError: if the disk is full or fails.
        """
        self._thread.shutdown()
        try:
            # The system reports a failure once, to whichever call comes first.
            for flushed in self._begun:
                flushed.result()
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error

    def _flush(self) -> None:
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
