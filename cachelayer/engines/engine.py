"""The protocol of engines, which run independent tasks, and what they share: tasks and their outcomes as bytes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, runtime_checkable

import cloudpickle

from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError

R = TypeVar("R")

_IS_WORKER: ContextVar[bool] = ContextVar("cachelayer_is_worker", default=False)


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


def name_of(task: Callable[[int], object], number: int) -> str:
    """Return the name, for error messages, of a task's work on a number: what its method ``describe`` says."""
    return str(getattr(task, "describe", "task {}".format)(number))


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Raise an error of this work as ``Engine.run`` does: a CacheLayerError unchanged, others as a SourceError."""
    try:
        yield
    except CacheLayerError:
        raise
    except (Exception, SystemExit) as error:
        raise SourceError(f"{name} failed: {type(error).__name__}: {error}") from error


def pickled(task: Any, what: str = "the task", dumps: Callable[[Any], bytes] = cloudpickle.dumps) -> bytes:
    """Pickle a task for other processes, by value if the main program defines it; ``what`` names it in errors."""
    try:
        return pickle.dumps((sys.path, dumps(task)))
    except Exception as error:
        raise InvalidTypeError(
            f"{what} cannot be sent to other processes: {type(error).__name__}: {error}. Open files, locks and "
            "connections inside it, not before, or build with engine=None and workers=1"
        ) from error


@contextmanager
def as_worker() -> Iterator[None]:
    """Do the work of a task that came from another process."""
    token = _IS_WORKER.set(True)
    try:
        yield
    finally:
        _IS_WORKER.reset(token)


def is_worker() -> bool:
    """Return whether this is the work of a task that came from another process."""
    return _IS_WORKER.get()


def unpickled(task: bytes) -> Any:
    """Return the task that ``pickled`` pickled; search the module search path of its process before ours."""
    path, message = pickle.loads(task)  # noqa: S301 - from the process that requests calls
    sys.path[:] = dict.fromkeys([*path, *sys.path])
    return pickle.loads(message)  # noqa: S301 - from the same process


def outcome(call: Callable[[], Any]) -> bytes:
    """Make a call for another process; return its result or its error as bytes for ``result``."""
    try:
        with as_worker():
            reply: bytes = cloudpickle.dumps((call(), None))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the caller raises it
        try:
            reply = cloudpickle.dumps((None, error))
            # Some errors can be pickled but not unpickled.
            pickle.loads(reply)  # noqa: S301 - from this process
        except Exception:  # noqa: BLE001 - its text is returned
            kind = SourceError if isinstance(error, CacheLayerError) else RuntimeError
            reply = pickle.dumps((None, kind(f"{type(error).__name__}: {error}")))
    return reply


def result(reply: bytes) -> Any:
    """Return the result of a call, or raise its error: another one with its text if it cannot be pickled."""
    returned, error = pickle.loads(reply)  # noqa: S301 - from a process that we started
    if error is not None:
        raise error
    return returned
