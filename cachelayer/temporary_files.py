"""Make temporary files and folders, which the system may refuse: their folder is gone or full, or too many are open."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cachelayer.errors import StorageError


def parent_folder() -> Path:
    """Return the folder that temporary files are made in."""
    with _refusals():
        return Path(tempfile.gettempdir())


def unnamed_file() -> IO[bytes]:
    """Return a new file without a name, which is gone when it is closed."""
    with _refusals():
        return tempfile.TemporaryFile()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new empty folder, and remove it in the end."""
    with _refusals():
        folder = tempfile.TemporaryDirectory(prefix="cachelayer-", ignore_cleanup_errors=True)
    with folder as name:
        yield Path(name)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary file: {error}: set TMPDIR to a folder that exists and has room, and see that the "
            "limit of open files (`ulimit -n`) is not reached"
        ) from error
