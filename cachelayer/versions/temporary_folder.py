"""Temporary folders that are removed even if the process that made them is killed: the next one removes them."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cachelayer.errors import StorageError
from cachelayer.objects.local import storage_error
from cachelayer.temporary_files import parent_folder
from cachelayer.versions import file_lock

_PREFIX = "cachelayer-build-"
_LOCK = ".lock"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield an empty folder of this process, and remove it in the end; remove those of killed processes first.

    Raises:
        StorageError: if it cannot be made.
    """
    remove_left_over()
    folder, maker = parent_folder() / f"{_PREFIX}{uuid.uuid4().hex}", os.getpid()
    # The lock is there before the folder and after it, so a folder without one belongs to nobody.
    with file_lock.hold(folder.with_suffix(_LOCK), remove=True):
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
    with file_lock.try_hold(lock, name) as holder:
        if holder == name:
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
