"""Run tasks in processes of this host, which loky starts: the user's main program needs no ``__main__`` guard."""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from itertools import islice
from multiprocessing import connection
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any, Self, TypeVar

import cloudpickle
import numpy as np

from cachelayer.engines.engine import Engine, errors_of, name_of, outcome, pickled, result, unpickled
from cachelayer.errors import InvalidArgumentError, SourceError, StorageError
from cachelayer.support.arguments import integer

R = TypeVar("R")
T = TypeVar("T")

_SECONDS_PER_LOOK = 0.5
"""How often a worker looks whether the process that started it is gone."""


class Processes(Engine):
    """Runs tasks in processes of this host, as ``workers=`` of a build does.

    The program needs no ``__main__`` guard. A process that dies is an error, and is not started again: the reason, such
    as too little memory, is likely to last.

    Args:
        workers: the number of processes, at least 1.

    Examples:
        >>> import cachelayer.engines
        >>> engine = cachelayer.engines.Processes(2)
        >>> source = cachelayer.sharded(lambda part, count: [part, part + 10], 2)
        >>> ref = cachelayer.Storage(folder).cache(source, "parts@v1", engine=engine)
        >>> [int(n) for n in ref]
        [0, 10, 1, 11]
    """

    def __init__(self, workers: int) -> None:
        self._workers = integer("workers", workers, 1)

    def __repr__(self) -> str:
        return f"Processes({self._workers})"

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """See :meth:`cachelayer.engines.Engine.run`. A number is drawn when a process is free."""
        not_begun = iter(numbers)
        running: set[Future[bytes]] = set()
        with ProcessPool(task, self._workers, "the task") as pool:
            while True:
                for number in islice(not_begun, self._workers - len(running)):
                    running.add(pool.submit(name_of(task, number), number))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for call in done:
                    yield pool.result(call)


class ProcessPool:
    """Processes that call one function, for a ``with`` statement, which kills them at its end, even during a call."""

    def __init__(self, function: Callable[..., Any], count: int, what: str) -> None:
        from loky import ProcessPoolExecutor

        _refuse_daemon(f"workers={count}", "build with workers=1, or in the program that started it")
        begin = pickled(function, what, _dumps), os.getpid()
        self._names: dict[Future[bytes], str] = {}
        """What errors call the work of each call whose result was not asked for yet."""
        _complete_standard_streams()
        with self._errors():
            self._executor = ProcessPoolExecutor(count, initializer=_begin, initargs=begin)

    def submit(self, name: str, *arguments: Any) -> Future[bytes]:
        """Begin a call of the function; ``name`` is what errors call its work."""
        with self._errors():
            call: Future[bytes] = self._executor.submit(_call, arguments)
        self._names[call] = name
        return call

    def result(self, call: Future[bytes]) -> Any:
        """Wait for a call; return its result, or raise its error."""
        with self._errors():
            reply = call.result()
        with errors_of(self._names.pop(call)):
            return result(reply)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise an error that says which work was lost if a process dies, or why no process can be started."""
        from loky.process_executor import BrokenProcessPool

        try:
            yield
        except BrokenProcessPool as error:
            work = " or ".join(name for call, name in self._names.items() if not call.done() or call.exception())
            raise SourceError(
                f"a worker process ended, perhaps because memory ran out, while it worked on {work}: {error}"
            ) from error
        except OSError as error:
            raise StorageError(
                f"cannot start a worker process: {error}: raise the limit of processes (`ulimit -u`) or of open files "
                "(`ulimit -n`), or build with workers=1"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, kill_workers=True)


class ChildProcess:
    """A process that makes one call, and ends with the process that started it."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        from loky.backend import get_context

        _refuse_daemon("wait=False", "call it in the program that started this process")
        self._name = name
        context: Any = get_context("loky")
        self._reply, self._sender = context.Pipe(duplex=False)
        message = pickled(call, name, _dumps, otherwise="leave out wait=False")
        self._process = context.Process(target=_call_once, args=(message, os.getpid(), self._sender))

    def start(self) -> None:
        """Start the process; raise a StorageError if the system refuses."""
        _complete_standard_streams()
        try:
            self._process.start()
        except OSError as error:
            raise StorageError(f"cannot start a process for {self._name}: {error}") from error
        finally:
            self._sender.close()

    def result(self) -> Any:
        """Wait for the process; return what the call has returned, or raise its error; None if something killed it."""
        with errors_of(self._name):
            connection.wait([self._reply, self._process.sentinel])
            try:
                return result(self._reply.recv_bytes() if self._reply.poll() else b"")
            except EOFError:
                return None
            finally:
                self._process.join()

    @property
    def exit_code(self) -> int | None:
        """The number with which the process has ended; that of a signal is negative."""
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)


def _call_once(message: bytes, parent: int, sender: Any) -> None:
    _end_with(parent)
    sender.send_bytes(outcome(lambda: unpickled(message)()))


def copied(source: T) -> T:
    """Return a copy of a source, made as a :class:`ChildProcess` gets it."""
    copy: T = unpickled(pickled(source, "the source", _dumps, otherwise="pass a function that makes it"))
    return copy


_task: list[Any] = []
"""In a worker process: the function, as the bytes that were sent until it is first called."""


def _begin(task: bytes, parent: int) -> None:
    """Prepare a worker process for a function that was pickled, in the process ``parent``."""
    _task[:] = [task]
    _end_with(parent)


def _complete_standard_streams() -> None:
    """Put the null device in the place of standard streams that this process lacks: loky and its children need all."""
    for descriptor in range(3):
        try:
            os.set_inheritable(descriptor, True)
        except OSError:
            # This gets the lowest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False) or not hasattr(stream, "flush"):
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _refuse_daemon(what: str, cure: str) -> None:
    if multiprocessing.current_process().daemon:
        raise InvalidArgumentError(
            f"{what}: this process is daemonic, as the workers of a torch DataLoader and of multiprocessing.Pool are, "
            f"and may not start others: {cure}"
        )


def _end_with(parent: int) -> None:
    """Have this process end with the one that started it, and leave Ctrl-C to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        while not ended.wait(_SECONDS_PER_LOOK):
            if os.getppid() != parent:
                os._exit(0)

    ended = threading.Event()
    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(arguments: tuple[Any, ...]) -> bytes:
    return outcome(lambda: _function()(*arguments))


def _function() -> Any:
    if isinstance(_task[0], bytes):
        _task[:] = [unpickled(_task[0])]
    return _task[0]


def _dumps(function: Callable[..., Any]) -> bytes:
    message = io.BytesIO()
    # Credentials are pickled only for a child that is being started.
    set_spawning_popen(function)  # type: ignore[arg-type]
    try:
        _Pickler(message).dump(function)
    finally:
        set_spawning_popen(None)
    return message.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles an array that is mapped from a file, ``np.memmap``, as its place in the file: each process maps it."""

    def reducer_override(self, obj: Any) -> Any:
        # A slice of a mapped array is an np.memmap too. Its offset counts from where the mapped array begins.
        file = obj
        while isinstance(file, np.memmap) and not isinstance(file.base, mmap.mmap):
            file = file.base
        if type(obj) is not np.memmap or type(file) is not np.memmap or file.filename is None or file.mode == "c":
            return super().reducer_override(obj)
        offset = file.offset + obj.ctypes.data - file.ctypes.data
        if not obj.flags.c_contiguous or offset < 0:
            return super().reducer_override(obj)
        return np.memmap, (file.filename, obj.dtype, "c" if obj.flags.writeable else "r", offset, obj.shape)
