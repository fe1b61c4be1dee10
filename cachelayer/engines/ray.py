"""Tasks on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from cachelayer.engines.engine import errors_of, name_of
from cachelayer.engines.remote_call import outcome, pickled, result, unpickled
from cachelayer.errors import MissingDependencyError, SourceError, StorageError

R = TypeVar("R")

_AHEAD = 2
"""Tasks that are handed to the cluster for each of its CPUs."""

_SECONDS_TO_END = 10.0


class Ray:
    """Runs each task as a task of Ray, on the cluster that is connected or found, else on one of its own on this host.

    Tasks whose process or node died are run again, three times unless ``max_retries`` says otherwise.

    Args:
        task_options: what Ray's ``remote`` takes, such as ``num_cpus``, ``memory``, ``resources`` and ``max_retries``.
    """

    def __init__(self, **task_options: Any) -> None:
        self._options = task_options

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """See :meth:`cachelayer.engines.Engine.run`. Two tasks are handed to Ray for each CPU of the cluster.

        Raises:
            MissingDependencyError: if Ray is not installed.
        """
        function = pickled(task, "the task", "build with engine=None and workers=1")
        rest = iter(numbers)
        with _connected() as ray:
            remote = ray.remote(_run)
            if self._options:
                remote = remote.options(**self._options)
            shared = ray.put(function)
            running: dict[Any, int] = {}
            try:
                while True:
                    for number in islice(rest, max(0, _room(ray) - len(running))):
                        running[remote.remote(shared, number)] = number
                    if not running:
                        return
                    ended, _ = ray.wait(list(running), num_returns=1)
                    for reference in ended:
                        yield _result(ray, reference, name_of(task, running.pop(reference)))
            finally:
                _cancel(ray, list(running))


def _run(function: bytes, number: int) -> bytes:
    return outcome(lambda: unpickled(function)(number))


@contextmanager
def _connected() -> Iterator[Any]:
    """Yield Ray, connected to a cluster; one that is started here ends with it."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("engine='ray' needs Ray: pip install 'cachelayer[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise StorageError(f"no Ray cluster: {error}. RAY_ADDRESS says where it is; 'local' starts one") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _room(ray: Any) -> int:
    # Asked each time, as nodes come and go.
    return max(1, _AHEAD * int(ray.cluster_resources().get("CPU", 0)))


def _result(ray: Any, reference: Any, name: str) -> Any:
    try:
        reply = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise SourceError(
            f"{name} ended without a result, as often as Ray ran it: {type(error).__name__}: {error}. Where it "
            "wants memory, let Ray(memory=...) reserve it, or make more parts"
        ) from error
    with errors_of(name):
        return result(reply)


def _cancel(ray: Any, running: list[Any]) -> None:
    """End tasks, whatever they are at."""
    for reference in running:
        ray.cancel(reference, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=_SECONDS_TO_END)
