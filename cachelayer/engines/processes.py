"""Run tasks in processes on this host.

A process is this Python with a main program of its own, so that the user's needs no ``__main__`` guard; what that
defines is sent by value. It has a pipe of :mod:`multiprocessing` to the process that started it, and ends with it.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from functools import cache, partial
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

from cachelayer.arguments import integer
from cachelayer.engines.engine import errors_of, name_of, outcome, result
from cachelayer.engines.function_file import FunctionFile, read_function
from cachelayer.errors import SourceError, StorageError
from cachelayer.system_threads import Pool

R = TypeVar("R")

_MAIN = "from cachelayer.engines.processes import main; main()"
_SECONDS_TO_END = 5.0


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
        rest, running = iter(numbers), dict[Future[Any], int]()
        with ProcessPool(task, self._workers, "the task") as pool:
            while True:
                for number in islice(rest, self._workers - len(running)):
                    running[pool.submit(number)] = number
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name = name_of(task, running.pop(future))
                    with errors_of(name):
                        try:
                            returned = future.result()
                        except DiedError as error:
                            raise SourceError(f"a worker process {error} while it ran {name}") from error
                    yield returned


class DiedError(Exception):
    """A worker process died; the message says how."""


class ProcessPool:
    """Processes that call one function: a context manager that kills them on exit, even during a call.

    Args:
        function: the function.
        count: the most processes.
        what: what the function is, for the error message.

    Raises:
        InvalidTypeError: if the function cannot be pickled.
    """

    def __init__(self, function: Callable[..., Any], count: int, what: str) -> None:
        self._function = FunctionFile(function, what)
        self._count = count
        self._processes: list[_Process] = []
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        # Each thread waits for the answer of a process.
        self._threads = Pool(count, "cachelayer-workers")

    def submit(self, *arguments: Any) -> Future[Any]:
        """Begin a call; return its result, its error, or a :class:`DiedError`.

        Raises:
            StorageError: if the system starts no process.
        """
        if len(self._processes) < self._count:
            self._processes.append(_Process(self._function))
            self._idle.put(self._processes[-1])
        return self._threads.submit(self._call, arguments)

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        process = self._idle.get()
        try:
            return process.call(arguments)
        finally:
            # A dead one too: a thread that waits for it would wait for ever.
            self._idle.put(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        self._function.close()


class _Process:
    """A process that calls the function of a file.

    Raises:
        StorageError: if the system starts none.
    """

    def __init__(self, function: FunctionFile) -> None:
        self._connection, theirs = Pipe()
        descriptors = theirs.fileno(), function.fileno()
        command = [sys.executable, "-c", _MAIN, *map(str, descriptors)]
        # It gets a session of its own, so that Ctrl-C reaches only this process, which then kills it.
        try:
            with closing(theirs):
                self._process = subprocess.Popen(  # noqa: S603 - this Python
                    command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=descriptors
                )
        except OSError as error:
            raise StorageError(
                f"cannot start a worker process: {error}: raise the limit of processes (`ulimit -u`) or of open files "
                "(`ulimit -n`), or build with workers=1"
            ) from error

    def call(self, arguments: tuple[Any, ...]) -> Any:
        try:
            self._connection.send_bytes(pickle.dumps(arguments))
            reply = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise DiedError(self._how_it_died()) from error
        return result(reply)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _how_it_died(self) -> str:
        try:
            status = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if status >= 0:
            return f"ended with status {status}"
        hint = ", perhaps because memory ran out," if -status == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-status).name}{hint}"


def main() -> None:
    """Make the calls that the parent requests, until the parent is gone. Runs in the worker process."""
    connection, file = Connection(int(sys.argv[1])), int(sys.argv[2])
    del sys.argv[1:]
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(connection, requests), daemon=True).start()
    function = cache(partial(read_function, file))
    while True:
        connection.send_bytes(outcome(partial(_call, function, requests.get())))


def _call(function: Callable[[], Callable[..., Any]], request: bytes) -> Any:
    return function()(*pickle.loads(request))  # noqa: S301 - from the parent


def _read_requests(connection: Connection, requests: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            requests.put(connection.recv_bytes())
    finally:
        # The parent is gone: nobody needs the result of the current call.
        os._exit(0)
