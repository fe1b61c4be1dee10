"""The protocol of engines, which run independent tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, runtime_checkable

from cachelayer.errors import CacheLayerError, SourceError

R = TypeVar("R")


@runtime_checkable
class Engine(Protocol):
    """Runs independent tasks: on this host, on a cluster, or as a job of some service."""

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """Run the task on each number, as many at once as there is room for, and yield each result when it is ready.

        Closing the iterator, or a KeyboardInterrupt in it, stops all tasks within seconds.

        Args:
            task: the task, which is pickled to the processes that run it. If a process or a node dies, it may run more
                than once on a number, even twice at the same time.
            numbers: the numbers to run it on. If possible, the engine pulls them only a little before it needs them.

        Yields:
            The results of the tasks, in no order; nothing if the engine does not return results.

        Raises:
            CacheLayerError: if a task raised it; it is raised unchanged once the other tasks are stopped.
            SourceError: if a task raised any other error, or its process died too often. It names the number.
            InvalidTypeError: if the task cannot be pickled.
            StorageError: if the engine cannot be reached.
        """


@runtime_checkable
class Described(Protocol):
    """A task that has a name, for error messages, for its work on a number."""

    def describe(self, number: int) -> str: ...


def name_of(task: Callable[[int], object], number: int) -> str:
    """Return the name, for error messages, of a task's work on a number."""
    return task.describe(number) if isinstance(task, Described) else f"task {number}"


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Raise an error of this work as ``Engine.run`` does: a CacheLayerError unchanged, others as a SourceError."""
    try:
        yield
    except CacheLayerError:
        raise
    except Exception as error:
        raise SourceError(f"{name} failed: {type(error).__name__}: {error}") from error
