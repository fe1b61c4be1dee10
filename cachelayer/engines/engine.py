"""The protocol of engines, and how tasks and their outcomes become bytes for other processes.

::

    this process                                          a worker
    pickled(task) ──────────────── bytes ───────────────> unpickled(bytes)
    result(bytes): returns or raises <────── bytes ────── outcome(call): its result, or its error
"""

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

IS_WORKER: ContextVar[bool] = ContextVar("cachelayer_is_worker", default=False)
"""Whether this thread works for another process: then it must not begin a build."""


@runtime_checkable
class Engine(Protocol):
    """Runs independent tasks: on this host, on a cluster, or as a job of some service.

    Whatever has the method :meth:`run` is an engine, and can be passed as ``engine=`` of a build.

    Examples:
        >>> import cachelayer.engines
        >>> class OneAfterAnother:
        ...     def run(self, task, numbers):
        ...         yield from map(task, numbers)
        >>> isinstance(OneAfterAnother(), cachelayer.engines.Engine)
        True
        >>> source = cachelayer.sharded(lambda part, count: [part], 3)
        >>> [int(n) for n in cachelayer.Storage(folder).cache(source, "parts@v1", engine=OneAfterAnother())]
        [0, 1, 2]
    """

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """Run the task on each number, as many at once as there is room for, and yield each result when it is ready.

        Closing the iterator, or a KeyboardInterrupt in it, stops all tasks within seconds.

        Args:
            task: the task. The engine pickles it to the processes that run it, and may run it twice on a number, even
                at the same time, such as when a process or a node dies.
            numbers: the numbers to run the task on. An engine should draw a number only when it has room for it.

        Yields:
            The results of the tasks, in any order; nothing if the engine does not return results.

        Raises:
            CacheLayerError: if a task raised it; it is raised unchanged once the other tasks are stopped.
            SourceError: if a task raised any other error, or its process died too often. It names the number.
            InvalidTypeError: if the task cannot be pickled.
            StorageError: if the engine cannot be reached.

        Examples:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> import cachelayer.engines
            >>> class Threads:
            ...     def run(self, task, numbers):
            ...         with ThreadPoolExecutor(2) as threads:
            ...             yield from threads.map(task, numbers)
            >>> engine: cachelayer.engines.Engine = Threads()
            >>> sorted(engine.run(abs, [-3, 1, -2]))
            [1, 2, 3]
        """


def name_of(task: Callable[[int], object], number: int) -> str:
    """Return what errors call a task's work on a number: what the task's method ``describe`` says, if it has one."""
    return str(getattr(task, "describe", "task {}".format)(number))


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Raise errors as ``Engine.run`` does: a CacheLayerError unchanged, any other as a SourceError of ``name``."""
    try:
        yield
    except CacheLayerError:
        raise
    except (Exception, SystemExit) as error:
        raise SourceError(f"{name} failed: {type(error).__name__}: {error}") from error


_ALONE = "build with engine=None and workers=1"


def pickled(
    task: Any,
    what: str = "the task",
    dumps: Callable[[Any], bytes] = cloudpickle.dumps,
    *,
    otherwise: str = _ALONE,
) -> bytes:
    """Return a task as bytes for other processes, with this process's search path of modules.

    What the main program defines is pickled by value, because other processes cannot import it. An error calls the task
    ``what``, and says what to do ``otherwise``.
    """
    try:
        return pickle.dumps((sys.path, dumps(task)))
    except Exception as error:
        raise InvalidTypeError(
            f"{what} cannot be sent to other processes: {type(error).__name__}: {error}. Open files, locks and "
            f"connections inside it, not before, or {otherwise}"
        ) from error


@contextmanager
def as_worker() -> Iterator[None]:
    """Mark this thread as one that works for another process."""
    token = IS_WORKER.set(True)
    try:
        yield
    finally:
        IS_WORKER.reset(token)


def unpickled(task: bytes) -> Any:
    """Return the task that :func:`pickled` made bytes of. Its modules are searched where its process searches first."""
    path, message = pickle.loads(task)  # noqa: S301 - from the process that requests calls
    sys.path[:] = dict.fromkeys([*path, *sys.path])
    return pickle.loads(message)  # noqa: S301 - from the same process


def outcome(call: Callable[[], Any]) -> bytes:
    """Make a call for another process, and return its result or its error as bytes for :func:`result`."""
    try:
        with as_worker():
            reply: bytes = cloudpickle.dumps((call(), None))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the caller raises it
        try:
            reply = cloudpickle.dumps((None, error))
            # Some errors can be pickled but not unpickled: better to find out here.
            pickle.loads(reply)  # noqa: S301 - from this process
        except Exception:  # noqa: BLE001 - its text is returned
            kind = SourceError if isinstance(error, CacheLayerError) else RuntimeError
            reply = pickle.dumps((None, kind(f"{type(error).__name__}: {error}")))
    return reply


def result(reply: bytes) -> Any:
    """Return the result of a call, or raise its error. An error that cannot be pickled is replaced by its text."""
    returned, error = pickle.loads(reply)  # noqa: S301 - from a process that we started
    if error is not None:
        raise error
    return returned
