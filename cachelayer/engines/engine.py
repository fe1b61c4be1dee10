"""The protocol of engines, which run independent tasks, and what they share: tasks and their outcomes as bytes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError

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


class Here:
    """Runs tasks in this process, one after another, so that nothing needs to be pickled."""

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """See :class:`cachelayer.engines.Engine`."""
        return map(task, numbers)


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


def pickled(task: Callable[..., Any]) -> bytes:
    """Pickle a task for other processes; by value if it is defined in the main program.

    Raises:
        InvalidTypeError: if it cannot be pickled.
    """
    import cloudpickle

    with refuse_unpicklable("the task"):
        return pickle.dumps((sys.path, cloudpickle.dumps(task)))


@contextmanager
def refuse_unpicklable(what: str) -> Iterator[None]:
    """Raise the error for something that cannot be pickled; ``what`` names it."""
    try:
        yield
    except Exception as error:
        raise InvalidTypeError(
            f"{what} cannot be sent to other processes: {type(error).__name__}: {error}. Open files, locks and "
            "connections inside it, not before, or build with engine=None and workers=1"
        ) from error


def unpickled(task: bytes) -> Callable[..., Any]:
    """Return the task that ``pickled`` pickled; add the module search path of its process to ours."""
    path, by_value = pickle.loads(task)  # noqa: S301 - from the process that requests calls
    add_to_path(path)
    return cast(Callable[..., Any], pickle.loads(by_value))  # noqa: S301 - from the same process


def add_to_path(path: list[str]) -> None:
    """Search the module search path of another process before ours."""
    sys.path[:] = dict.fromkeys([*path, *sys.path])


def outcome(call: Callable[[], Any]) -> bytes:
    """Make a call, and return its result or its error as bytes for ``result``."""
    import cloudpickle

    try:
        return cast(bytes, cloudpickle.dumps((True, call())))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the caller raises it
        return _failure(error)


def result(reply: bytes) -> Any:
    """Return the result of a call from its outcome.

    Raises:
        Exception: if the call raised it. If it cannot be pickled or is not an Exception, another one with its text.
    """
    returned, value = pickle.loads(reply)  # noqa: S301 - from a process that we started
    if not returned:
        raise value
    return value


def _failure(error: Exception | SystemExit) -> bytes:
    import cloudpickle

    try:
        reply = cast(bytes, cloudpickle.dumps((False, error)))
        # Some errors can be pickled but not unpickled.
        pickle.loads(reply)  # noqa: S301 - from this process
    except Exception:  # noqa: BLE001 - its text is returned
        return _text_only(error)
    return reply if isinstance(error, Exception) else _text_only(error)


def _text_only(error: Exception | SystemExit) -> bytes:
    text = f"{type(error).__name__}: {error}"
    return pickle.dumps((False, SourceError(str(error)) if isinstance(error, CacheLayerError) else RuntimeError(text)))
