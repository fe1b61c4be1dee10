"""Run tasks on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from cachelayer.engines.engine import Engine, errors_of, name_of, outcome, pickled, result, unpickled
from cachelayer.errors import SourceError, StorageError
from cachelayer.support.extras import packages_of

R = TypeVar("R")

_AHEAD = 2
"""The tasks that are submitted to the cluster for each of its CPUs."""
_SECONDS_TO_END = 10.0
"""How long to wait for tasks that are stopped."""


class Ray(Engine):
    """Runs tasks on Ray: on a cluster that is connected or that Ray finds, else on a new one on this host.

    A task whose process or node dies is run again, up to three times unless ``max_retries`` says otherwise.

    Args:
        task_options: options of Ray's ``remote``, such as ``num_cpus``, ``memory``, ``resources`` and ``max_retries``.

    Examples:
        >>> import cachelayer.engines
        >>> engine = cachelayer.engines.Ray(num_cpus=2, max_retries=10)  # then: storage.cache(..., engine=engine)
        >>> isinstance(engine, cachelayer.engines.Engine)
        True
    """

    def __init__(self, **task_options: Any) -> None:
        self._options = task_options

    def __repr__(self) -> str:
        return f"Ray({', '.join(f'{name}={value!r}' for name, value in self._options.items())})"

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """See :meth:`cachelayer.engines.Engine.run`. Two tasks are submitted for each CPU of the cluster."""
        function = pickled(task)
        not_begun = iter(numbers)
        with _connected() as ray:
            remote = ray.remote(_run).options(**self._options)
            shared = ray.put(function)
            running: dict[Any, int] = {}
            try:
                while True:
                    # Ask each time, because nodes join and leave.
                    room = max(1, _AHEAD * int(ray.cluster_resources().get("CPU", 0)))
                    for number in islice(not_begun, max(0, room - len(running))):
                        running[remote.remote(shared, number)] = number
                    if not running:
                        return
                    [reference], _ = ray.wait(list(running), num_returns=1)
                    yield _result(ray, reference, name_of(task, running.pop(reference)))
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)
                if running:
                    ray.wait(list(running), num_returns=len(running), timeout=_SECONDS_TO_END)


def _run(function: bytes, number: int) -> bytes:
    return outcome(lambda: unpickled(function)(number))


@contextmanager
def _connected() -> Iterator[Any]:
    """Yield the module ``ray``, connected to a cluster. It ends the connection or cluster that it has made."""
    with packages_of("ray", "engine='ray' needs Ray"):
        import ray
    is_ours = not ray.is_initialized()
    try:
        if is_ours:
            ray.init(log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise StorageError(
            f"no Ray cluster: {error}. Set RAY_ADDRESS to its address, or to 'local' to start one"
        ) from error
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


def _result(ray: Any, reference: Any, name: str) -> Any:
    try:
        reply = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise SourceError(
            f"{name} ended without a result each time that Ray ran it: {type(error).__name__}: {error}. If memory ran "
            "out, reserve it with Ray(memory=...), or make more parts"
        ) from error
    with errors_of(name):
        return result(reply)
