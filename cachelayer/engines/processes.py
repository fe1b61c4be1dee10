"""Run tasks in processes on this host.

A worker is this Python with a main program of its own, so that the user's needs no ``__main__`` guard. It ends with the
process that started it, to which it has a pipe. It inherits the function in an unnamed file. All workers map the arrays
in this file, and those of the function that lie in files (``np.memmap``): they are not copied into each.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import set_spawning_popen
from queue import SimpleQueue
from signal import SIGKILL, Signals
from typing import Any, Self, TypeVar

import cloudpickle
import numpy as np

from cachelayer.arguments import integer
from cachelayer.engines.engine import errors_of, name_of, outcome, pickled, result, unpickled
from cachelayer.errors import SourceError, StorageError
from cachelayer.system_threads import Pool
from cachelayer.temporary_files import unnamed_file

R = TypeVar("R")

_ALIGNED = 64
_LARGE = 1 << 20
_COMPARED = 1 << 16
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
        rest, running = iter(numbers), set[Future[Any]]()
        with ProcessPool(task, self._workers, "the task") as pool:
            while True:
                for number in islice(rest, self._workers - len(running)):
                    running.add(pool.submit(name_of(task, number), number))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()


class ProcessPool:
    """At most ``count`` processes that call one function; leaving the context kills them, even during a call."""

    def __init__(self, function: Callable[..., Any], count: int, what: str) -> None:
        arrays: list[pickle.PickleBuffer] = []
        message = pickled(function, what, partial(_dumps, arrays))
        self._file = os.fdopen(os.memfd_create("cachelayer"), "wb") if hasattr(os, "memfd_create") else unnamed_file()
        places = [_place_in_file(array) or self._write(array.raw()) for array in arrays]
        self._head = self._file.tell()
        pickle.dump((message, places), self._file)
        self._file.flush()
        self._count = count
        self._workers: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        # Each thread waits for the answer of a worker.
        self._threads = Pool(count, "cachelayer-workers")

    def _write(self, memory: memoryview) -> slice:
        start = self._file.seek(-(-self._file.tell() // _ALIGNED) * _ALIGNED)
        return slice(start, start + self._file.write(memory))

    def submit(self, name: str, *arguments: Any) -> Future[Any]:
        """Begin a call, whose work has this name in errors."""
        if len(self._workers) < self._count:
            self._workers.append(_Worker(self._file.fileno(), self._head))
            self._idle.put(self._workers[-1])
        return self._threads.submit(self._call, name, arguments)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        worker = self._idle.get()
        try:
            with errors_of(name):
                return worker.call(name, arguments)
        finally:
            # A dead one too: a thread that waits for it would wait for ever.
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
        self._threads.shutdown()
        self._file.close()


class _Worker:
    """A process that calls the function of a file."""

    def __init__(self, file: int, head: int) -> None:
        try:
            self._connection, theirs = Pipe()
            with theirs:
                program = f"from cachelayer.engines.processes import main; main({theirs.fileno()}, {file}, {head})"
                # It gets a session of its own, so that Ctrl-C reaches only this process, which then kills it.
                self.process = subprocess.Popen(  # noqa: S603 - this Python
                    [sys.executable, "-c", program],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(), file),
                )
        except OSError as error:
            raise StorageError(
                f"cannot start a worker process: {error}: raise the limit of processes (`ulimit -u`) or of open files "
                "(`ulimit -n`), or build with workers=1"
            ) from error

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._connection.send_bytes(pickle.dumps(arguments))
            reply = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            status = self.process.wait(_SECONDS_TO_END)
            how = f"ended with status {status}" if status >= 0 else f"was killed by {Signals(-status).name}"
            hint = ", perhaps because memory ran out," if -status == SIGKILL else ""
            raise SourceError(f"a worker process {how}{hint} while it worked on {name}") from error
        return result(reply)


def main(connection: int, file: int, head: int) -> None:
    """Make the calls that the parent requests, until the parent is gone. Runs in the worker."""
    parent, requests = Connection(connection), SimpleQueue[bytes]()

    def read_requests() -> None:
        try:
            while True:
                requests.put(parent.recv_bytes())
        finally:
            # The parent is gone: nobody needs the result of the current call.
            os._exit(0)

    @cache
    def function() -> Any:
        # Arrays stay writable, and what a process writes stays its own, as in a copy.
        memory: Any = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_COPY))
        message, places = pickle.loads(memory[head:])  # noqa: S301 - from the parent
        return unpickled(message, [memory[at] if isinstance(at, slice) else np.memmap(*at) for at in places])

    threading.Thread(target=read_requests, daemon=True).start()
    while True:
        parent.send_bytes(outcome(lambda request: function()(*pickle.loads(request)), requests.get()))  # noqa: S301


def _dumps(arrays: list[pickle.PickleBuffer], function: Callable[..., Any]) -> bytes:
    """Pickle a function without the memory of its arrays, which are appended to ``arrays``."""
    message = io.BytesIO()
    # Credentials are pickled only for a child that is being started.
    set_spawning_popen(function)  # type: ignore[arg-type]
    try:
        _Pickler(message, buffer_callback=arrays.append).dump(function)
    finally:
        set_spawning_popen(None)
    return message.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.memmap:
            # Numpy pickles only plain arrays without their memory.
            return np.ndarray.view, (obj.view(np.ndarray), np.memmap)
        return super().reducer_override(obj)


def _place_in_file(array: pickle.PickleBuffer) -> tuple[Any, ...] | None:
    """Return the arguments of ``np.memmap`` for the memory of a large array in a mapped file; None for other memory."""
    file: Any = memoryview(array).obj
    while isinstance(file, np.ndarray) and not isinstance(file.base, mmap.mmap):
        file = file.base
    memory = np.frombuffer(array.raw(), np.uint8)
    # What was written into an array of mode "c" is not in the file.
    if memory.nbytes < _LARGE or not isinstance(file, np.memmap) or file.filename is None or file.mode == "c":
        return None
    mode, start = "c" if memory.flags.writeable else "r", file.offset + memory.ctypes.data - file.ctypes.data
    place: Any = file.filename, np.uint8, mode, start, memory.nbytes
    with suppress(OSError, ValueError):
        now = np.memmap(*place)
        # The file may have been replaced meanwhile.
        if all(np.array_equal(now[ends], memory[ends]) for ends in (slice(_COMPARED), slice(-_COMPARED, None))):
            return tuple(place)
    return None
