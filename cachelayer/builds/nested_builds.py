"""Refuse a build that would wait for itself.

::

    build of d@v1 ─ starts ─> worker process ─ imports the user's module ─ which calls cache(..., "d@v1")
         ^                                                                              │
         └───────────────────────────── waits for the worker  <──> waits for the build ─┘

A worker of an engine that began a build would do so whenever the module is imported, and so would its own workers,
without end. A child of a source, such as a worker of a ``DataLoader``, may build another version.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cachelayer.engines.engine import is_worker
from cachelayer.errors import InvalidArgumentError
from cachelayer.host import process_name

_BUILDING: ContextVar[tuple[str, ...]] = ContextVar("cachelayer_building", default=())
"""The versions that this thread is building: a source may build another version."""


@contextmanager
def building(version: str) -> Iterator[None]:
    """Mark this thread as one that builds a version.

    Args:
        version: the version, with the URL of its storage.

    Raises:
        InvalidArgumentError: if this thread works for a build in another process, or if the source of the version asks
            for the version itself.
    """
    if is_worker():
        raise _nested_build_error(version)
    if version in _BUILDING.get():
        raise InvalidArgumentError(f"{version} is built from itself: its source asks for it, and would wait for ever")
    token = _BUILDING.set((*_BUILDING.get(), version))
    try:
        yield
    finally:
        _BUILDING.reset(token)


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
