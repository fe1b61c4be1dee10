"""Refuse a build that would wait for itself.

::

    build of d@v1 ─ starts ─> worker process ─ imports the user's module ─ which calls cache(..., "d@v1")
         ^                                                                              │
         └───────────────────────────── waits for the worker  <──> waits for the build ─┘

A worker of an engine or of the source, such as of a ``DataLoader``, is a child of the build. A child that began or
awaited a build would wait for the build that waits for it; or its own workers would do the same, without end.
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
from cachelayer.host import process_name
from cachelayer.locks import ProcessLock
from cachelayer.temporary_files import maker_of

WORKING_FOLDER = "CACHELAYER_WORKING_FOLDER"
"""The environment variable with the working folder of a build that runs: the build's children inherit it."""
_working_folders: list[str] = []
"""The working folders of the builds that run in this process, the last that began at the end."""
_changing_folders = ProcessLock()
_BUILDING: ContextVar[tuple[str, ...]] = ContextVar("cachelayer_building", default=())
"""The versions that this thread is building: a source may build another version."""


@contextmanager
def building(version: str) -> Iterator[None]:
    """Mark this thread as one that builds a version.

    Args:
        version: the version, with the URL of its storage.

    Raises:
        InvalidArgumentError: if this process is a child of a build that runs, or if the source of the version asks for
            the version itself.
    """
    folder = Path(os.environ.get(WORKING_FOLDER, ""))
    # A folder that cannot be read belongs to a build of another user, which left the variable to this one.
    is_child = folder.name and os.access(folder, os.R_OK) and maker_of(folder) != process_name()
    if is_worker() or is_child:
        raise _nested_build_error(version)
    if version in _BUILDING.get():
        raise InvalidArgumentError(f"{version} is built from itself: its source asks for it, and would wait for ever")
    token = _BUILDING.set((*_BUILDING.get(), version))
    try:
        yield
    finally:
        _BUILDING.reset(token)


@contextmanager
def marking_children(working_folder: Path) -> Iterator[None]:
    """Mark the processes that start meanwhile as children of the build that has this working folder.

    Several threads may build, and end in any order: the environment names the last build that began and still runs.
    """
    folder = str(working_folder)
    with _changing_folders.of_process():
        _working_folders.append(folder)
        os.environ[WORKING_FOLDER] = folder
    try:
        yield
    finally:
        with _changing_folders.of_process():
            _working_folders.remove(folder)
            if _working_folders:
                os.environ[WORKING_FOLDER] = _working_folders[-1]
            else:
                os.environ.pop(WORKING_FOLDER, None)


def leave_parent_build() -> None:
    """Have this process be no child of a build that happened to run in the process that started it."""
    os.environ.pop(WORKING_FOLDER, None)


def refuse_to_await_parent(version: str, holder: str) -> None:
    """Raise if the process that builds a version has started this process, and may wait for it.

    Args:
        version: the version, with the URL of its storage.
        holder: the name of the process that builds it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and holder == process_name(parent.pid):
        raise _nested_build_error(version)


def _nested_build_error(version: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{version}: this process was started by a build, and would begin or await one itself: both would wait, or "
        "start processes, for ever. If a module builds when it is imported, as the workers of the build import it, "
        'move the call into a function, or below `if __name__ == "__main__":`. If the source builds what it needs, '
        "build that before"
    )
