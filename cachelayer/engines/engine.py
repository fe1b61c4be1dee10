"""What runs independent tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, runtime_checkable

from cachelayer.errors import CacheLayerError, SourceError

R = TypeVar("R")


@runtime_checkable
class Engine(Protocol):
    """Runs independent tasks: here, on a cluster, or as a job of some service."""

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """Run the task on each number, as many at once as there is room for, and yield what each returned as it ends.

        Closing the iterator, or a KeyboardInterrupt in it, stops all tasks within seconds.

        Args:
            task: what to run, in any process that it can be pickled to. It may be run more than once on a number,
                if a process or a node dies, also twice at a time.
            numbers: what to run it on. They are pulled only a little ahead of what runs, if the engine can.

        Yields:
            What the tasks returned, in no order; nothing at all if the engine cannot tell.

        Raises:
            CacheLayerError: what a task raised, unchanged, when the other tasks are stopped.
            SourceError: if a task raised something else, or its process died too often. It names the number.
            InvalidTypeError: if the task cannot be pickled.
            StorageError: if the engine cannot be reached.
        """


@runtime_checkable
class Described(Protocol):
    """A task that says what errors call its work on a number."""

    def describe(self, number: int) -> str: ...


def name_of(task: Callable[[int], object], number: int) -> str:
    """Return what errors call a task's work on a number."""
    return task.describe(number) if isinstance(task, Described) else f"task {number}"


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Raise what some work raised as ``Engine.run`` raises it."""
    try:
        yield
    except CacheLayerError:
        raise
    except Exception as error:
        raise SourceError(f"{name} failed: {type(error).__name__}: {error}") from error
