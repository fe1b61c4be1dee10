"""A process of this Python that calls one function again and again.

Parent and child send each other pickles after their length as a little-endian uint64: first the function, then the
arguments of each call, which is answered with its outcome. How far it is the child writes into a file of two integers
that has no name, and the parent reads it when it likes.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import IO, Any, Self, cast

from cachelayer.engines.remote_call import outcome, result, unpickled
from cachelayer.progress.meter import Progress, current

_LENGTH = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")
_SECONDS_BETWEEN_COUNTS = 0.5
_SECONDS_TO_END = 5.0
_MAIN = "from cachelayer.engines.child import main; main()"


class DiedError(Exception):
    """A child process died; the message says how."""


class Child:
    """A child process. Leaving it as a context manager ends it, whatever it is at.

    Args:
        function: what it calls, as ``pickled`` gives it.
    """

    def __init__(self, function: bytes) -> None:
        self._opening: bytes | None = function
        # In a session of its own: Ctrl-C reaches the parent alone, which ends its children.
        self._counts = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the child
        self._counted = (0, 0)
        self._process = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-c", _MAIN, str(self._counts.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(self._counts.fileno(),),
        )
        current().watch(self.counts)
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)
        self.can_be_asked = True
        """False if a message was cut short, as by Ctrl-C: what came next would be taken for its rest."""

    def fileno(self) -> int:
        """Return the descriptor that can be read when the child has answered, or died."""
        return self._replies.fileno()

    def counts(self) -> tuple[int, int]:
        """Return the records and bytes that the child has made in all its calls."""
        with suppress(ValueError, OSError, struct.error):
            self._counted = _COUNTS.unpack(os.pread(self._counts.fileno(), _COUNTS.size, 0))
        return self._counted

    def send(self, *arguments: Any) -> None:
        """Begin a call. One at a time; a child that is dead is noticed by ``receive``."""
        self.can_be_asked = False
        with suppress(BrokenPipeError):
            if self._opening is not None:
                _send(self._requests, self._opening)
                self._opening = None
            _send(self._requests, pickle.dumps(arguments))
            self.can_be_asked = True

    def receive(self) -> Any:
        """Return what the call returned.

        Raises:
            DiedError: if the child is dead.
            Exception: what the call raised; see ``result``.
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
        hint = ", perhaps for want of memory," if -status == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-status).name}{hint}"


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None if there is none any more."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    message = pipe.read(_LENGTH.unpack(head)[0])
    return message if len(message) == _LENGTH.unpack(head)[0] else None


def main() -> None:
    """Make the calls that the parent asks for, until the parent is gone."""
    counts = int(sys.argv.pop())
    pipe, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What the function reads and prints must not come between messages.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_requested, args=(pipe, requests), daemon=True).start()
    function = cache(partial(unpickled, requests.get()))
    with Progress("", None, enabled=False) as progress:
        threading.Thread(target=_tell, args=(counts, progress), daemon=True).start()
        while True:
            _send(replies, _reply(function, requests.get()))


def _tell(counts: int, progress: Progress) -> None:
    """Write again and again how far the calls are."""
    while True:
        os.pwrite(counts, _COUNTS.pack(*progress.counts), 0)
        time.sleep(_SECONDS_BETWEEN_COUNTS)


def _requested(pipe: IO[bytes], requests: queue.SimpleQueue[bytes]) -> None:
    while (request := _receive(pipe)) is not None:
        requests.put(request)
    # Nobody waits for what is being done.
    os._exit(0)


def _reply(function: Callable[[], Any], request: bytes) -> bytes:
    return outcome(lambda: function()(*pickle.loads(request)))  # noqa: S301 - of the parent
