"""Tasks in processes of this host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from multiprocessing.connection import wait
from typing import Any, TypeVar, cast

from cachelayer.arguments import integer
from cachelayer.engines.child import Child, DiedError
from cachelayer.engines.engine import errors_of, name_of
from cachelayer.engines.remote_call import pickled
from cachelayer.errors import SourceError

R = TypeVar("R")


class Processes:
    """Runs each task in one of some processes; the program needs no ``__main__`` guard.

    A process that dies is not started again: what killed it is here, and so are the others.

    Args:
        workers: number of processes, from 1 on.
    """

    def __init__(self, workers: int) -> None:
        self._workers = integer("workers", workers, 1)

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """See :meth:`cachelayer.engines.Engine.run`. One number is pulled for each process that is free."""
        function = pickled(task, "the task", "build with engine=None and workers=1")
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
    """Return those that have answered, or died: one at least."""
    return cast(list[Child], wait(children))


def _result(child: Child, name: str) -> Any:
    with errors_of(name):
        try:
            return child.receive()
        except DiedError as error:
            raise SourceError(f"a worker process {error} while it ran {name}") from error
