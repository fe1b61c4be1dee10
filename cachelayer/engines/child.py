"""A child process that runs the same Python and calls one function repeatedly.

Parent and child exchange pickles, each preceded by its length as a little-endian uint64. The parent sends the function
once, then the arguments of each call; the child answers each call with its outcome. The child writes its progress to
an unnamed file of two integers, which the parent may read at any time.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import IO, Any, Self, cast

from cachelayer.engines.local_call import LocalCall, called
from cachelayer.engines.remote_call import outcome, result
from cachelayer.errors import StorageError
from cachelayer.progress.meter import Progress, current
from cachelayer.temporary_files import unnamed_file

_LENGTH = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")
_SECONDS_BETWEEN_COUNTS = 0.5
_SECONDS_TO_END = 5.0
_MAIN = "from cachelayer.engines.child import main; main()"


class DiedError(Exception):
    """A child process died; the message says how."""


class Child:
    """A child process, as a context manager that kills it on exit, even during a call.

    Args:
        function: the function to call.

    Raises:
        StorageError: if the system starts no process, or gives no temporary file.
    """

    def __init__(self, function: LocalCall) -> None:
        self._unsent_function: LocalCall | None = function
        self._counts = unnamed_file()
        self._counted = (0, 0)
        descriptors = self._counts.fileno(), *function.descriptors
        # The child gets a session of its own, so that Ctrl-C reaches only the parent, which then ends its children.
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this Python
                [sys.executable, "-c", _MAIN, *map(str, descriptors)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                pass_fds=descriptors,
            )
        except OSError as error:
            self._counts.close()
            raise StorageError(
                f"cannot start a worker process: {error}: raise the limit of processes (`ulimit -u`) or of open files "
                "(`ulimit -n`), or build with workers=1"
            ) from error
        current().watch(self.counts)
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)
        self.can_be_asked = True
        """False after a message was cut short, for example by Ctrl-C: the next one would be taken for its rest."""

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when the child answers or dies."""
        return self._replies.fileno()

    def counts(self) -> tuple[int, int]:
        """Return the numbers of records and bytes that the child has made in all calls."""
        with suppress(ValueError, OSError, struct.error):
            self._counted = _COUNTS.unpack(os.pread(self._counts.fileno(), _COUNTS.size, 0))
        return self._counted

    def send(self, *arguments: Any) -> None:
        """Begin a call. Call ``receive`` before the next one; it raises if the child is dead."""
        self.can_be_asked = False
        with suppress(BrokenPipeError):
            if self._unsent_function is not None:
                _send(self._requests, self._unsent_function.message)
                self._unsent_function = None
            _send(self._requests, pickle.dumps(arguments))
            self.can_be_asked = True

    def receive(self) -> Any:
        """Return the result of the call.

        Raises:
            DiedError: if the child is dead.
            Exception: any error that the call raised; see ``result``.
        """
        self.can_be_asked = False
        reply = _receive(self._replies)
        if reply is None:
            raise DiedError(self._how_it_died())
        self.can_be_asked = True
        return result(reply)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self.counts()
        for pipe in (self._requests, self._replies, self._counts):
            with suppress(OSError):
                pipe.close()

    def _how_it_died(self) -> str:
        try:
            status = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "closed its output"
        if status >= 0:
            return f"ended with status {status}"
        hint = ", perhaps because memory ran out," if -status == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-status).name}{hint}"


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None if the pipe has ended."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    message = pipe.read(_LENGTH.unpack(head)[0])
    return message if len(message) == _LENGTH.unpack(head)[0] else None


def main() -> None:
    """Make the calls that the parent requests, until the parent is gone. Runs in the child."""
    counts, *shared = map(int, sys.argv[1:])
    del sys.argv[1:]
    pipe, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # The function must not read messages from stdin, nor print between those on stdout.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(pipe, requests), daemon=True).start()
    function = cache(partial(called, requests.get(), shared[0] if shared else None))
    with Progress("", None, enabled=False) as progress:
        threading.Thread(target=_report, args=(counts, progress), daemon=True).start()
        while True:
            _send(replies, _reply(function, requests.get()))


def _report(counts: int, progress: Progress) -> None:
    """Write the progress of the calls to the file of counts, for ever, with pauses."""
    while True:
        os.pwrite(counts, _COUNTS.pack(*progress.counts), 0)
        time.sleep(_SECONDS_BETWEEN_COUNTS)


def _read_requests(pipe: IO[bytes], requests: queue.SimpleQueue[bytes]) -> None:
    while (request := _receive(pipe)) is not None:
        requests.put(request)
    # The parent is gone: nobody needs the result of the current call.
    os._exit(0)


def _reply(function: Callable[[], Any], request: bytes) -> bytes:
    return outcome(lambda: function()(*pickle.loads(request)))  # noqa: S301 - from the parent
