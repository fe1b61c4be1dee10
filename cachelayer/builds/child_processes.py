"""The processes that a build starts: workers of engines, and those of its source, such as of a ``DataLoader``.

Such a child never begins or awaits a build. It would wait for the build that waits for it, or start children that do
the same: a module that builds when it is imported is imported by each worker.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from cachelayer.engines.engine import is_worker
from cachelayer.errors import InvalidArgumentError
from cachelayer.temporary_files import maker_of, process_name

_WORKING_FOLDER = "CACHELAYER_WORKING_FOLDER"
"""The variable that tells children, which inherit it, the working folder of the build; it is there while that runs."""
_UNDER_WAY: ContextVar[tuple[str, ...]] = ContextVar("cachelayer_builds_under_way", default=())
"""The versions whose builds this thread is in the middle of."""


@contextmanager
def building(version: str) -> Iterator[None]:
    """Mark this thread as one that builds a version.

    Args:
        version: the version, with the URL of its storage.

    Raises:
        InvalidArgumentError: if this process is a child of a build that is under way, or if the source of the version
            asks for it.
    """
    folder = Path(os.environ.get(_WORKING_FOLDER, ""))
    is_child = folder.name and folder.is_dir() and maker_of(folder) != process_name()
    if is_worker() or is_child:
        raise _refusal(version)
    if version in _UNDER_WAY.get():
        raise InvalidArgumentError(f"{version} is built from itself: its source asks for it, and would wait for ever")
    token = _UNDER_WAY.set((*_UNDER_WAY.get(), version))
    try:
        yield
    finally:
        _UNDER_WAY.reset(token)


@contextmanager
def marking_children(working_folder: Path) -> Iterator[None]:
    """Mark the processes that are started meanwhile as children of the build that has this working folder."""
    before = os.environ.get(_WORKING_FOLDER)
    os.environ[_WORKING_FOLDER] = str(working_folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_WORKING_FOLDER, None)
        else:
            os.environ[_WORKING_FOLDER] = before


def refuse_to_await_parent(version: str, holder: str) -> None:
    """Raise if the build that is awaited runs in the process that started this one, and may wait for it.

    Args:
        version: the version that is to be built, with the URL of its storage.
        holder: the name of the process that builds it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and holder == process_name(parent.pid):
        raise _refusal(version)


def _refusal(version: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{version}: this process was started by a build, and would begin or await one itself: both would wait, or "
        "start processes, for ever. If a module builds when it is imported, as the workers of the build import it, "
        'move the call into a function, or below `if __name__ == "__main__":`. If the source builds what it needs, '
        "build that before"
    )
