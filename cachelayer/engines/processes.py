"""Run tasks in processes on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from multiprocessing.connection import wait
from typing import Any, TypeVar, cast

from cachelayer.arguments import integer
from cachelayer.engines.child import Child, DiedError
from cachelayer.engines.engine import errors_of, name_of
from cachelayer.engines.local_call import LocalCall
from cachelayer.errors import SourceError

R = TypeVar("R")


class Processes:
    """Runs tasks in several processes. The program needs no ``__main__`` guard.

    A process that dies is not started again, because its cause, such as too little memory, is likely to persist.

    Args:
        workers: the number of processes, at least 1.
    """

    def __init__(self, workers: int) -> None:
        self._workers = integer("workers", workers, 1)

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """See :meth:`cachelayer.engines.Engine.run`. A number is pulled when a process is free to take it."""
        function = LocalCall(task, "the task", "build with engine=None and workers=1")
        rest = iter(numbers)
        with ExitStack() as stack:
            running = {stack.enter_context(Child(function)): number for number in islice(rest, self._workers)}
            for child, number in running.items():
                child.send(number)
            while running:
                for child in _answered(running):
                    result = _result(child, name_of(task, running.pop(child)))
                    for number in islice(rest, 1):
                        running[child] = number
                        child.send(number)
                    yield result


def _answered(children: Iterable[Any]) -> list[Child]:
    """Wait until a child has answered or died; return all that have."""
    return cast(list[Child], wait(children))


def _result(child: Child, name: str) -> Any:
    with errors_of(name):
        try:
            return child.receive()
        except DiedError as error:
            raise SourceError(f"a worker process {error} while it ran {name}") from error
