"""Encoding in several processes: blocks of records, which come back in their order."""

from __future__ import annotations

import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, Self, cast

from cachelayer.building.encode import Block, OnError
from cachelayer.building.source import BATCH_NBYTES, MAX_BATCH_RECORDS, Seekable
from cachelayer.building.worker import receive, send
from cachelayer.codec import codec_for
from cachelayer.elements.tree import Tree
from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError

_SAMPLE = 8
_BLOCKS_PER_WORKER = 2
_SECONDS_TO_END = 5.0
_MAIN = "from cachelayer.building.worker import main; main()"


class Workers:
    """Processes that encode the elements of a source that can begin at any record.

    Two blocks a process, of about ``BATCH_NBYTES`` each, are under way at a time.

    Args:
        source: the source; it is pickled, by value where it is defined in the main program.
        spec: the element spec.
        on_error: what becomes of elements that do not fit.
        count: number of processes.

    Raises:
        InvalidTypeError: where the source cannot be pickled.
    """

    def __init__(self, source: Seekable, spec: Tree, on_error: OnError, count: int) -> None:
        self._source = source
        self._spec = spec
        self._job = pickle.dumps({"path": sys.path, "job": _pickled(source, spec, on_error)})
        self._count = count
        self._processes: list[_Process] = []
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "cachelayer-workers")

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._processes.append(_Process(self._job))
            self._idle.put(self._processes[-1])
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.end()
        self._threads.shutdown(wait=True)

    def blocks(self, start: int, stop: int) -> Iterator[Block]:
        """The elements from ``start`` to ``stop`` in blocks, in their order.

        Raises:
            ElementError, SourceError: as if they were encoded here.
            SourceError: where a process dies; it names the records that it was at.
        """
        size = self._block_records(start, stop)
        pending: deque[Future[Block]] = deque()
        for first in range(start, stop, size):
            pending.append(self._threads.submit(self._block, first, min(size, stop - first)))
            if len(pending) >= _BLOCKS_PER_WORKER * self._count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _block_records(self, start: int, stop: int) -> int:
        """Records that make a block, from the sizes of the first ones; no worker is without one for long."""
        codec = codec_for(self._spec)
        batches = self._source.skipped(start).batches(min(_SAMPLE, stop - start))
        sizes = [nbytes for batch in batches for nbytes in codec.encode(batch.columns(codec), len(batch)).lengths]
        share = -(-(stop - start) // (self._count * _BLOCKS_PER_WORKER))
        fitting = int(BATCH_NBYTES * len(sizes) // max(1, sum(sizes)))
        return max(1, min(MAX_BATCH_RECORDS, fitting, share))

    def _block(self, first: int, count: int) -> Block:
        process = self._idle.get()
        reply = process.ask(pickle.dumps((first, count)))
        if reply is None:
            raise SourceError(
                f"a worker process {process.how_it_died()} while it made records {first} to {first + count - 1}"
            )
        self._idle.put(process)
        found = pickle.loads(reply)  # noqa: S301 - of a process of ours
        if isinstance(found, CacheLayerError):
            raise found
        return cast(Block, found)


class _Process:
    """A worker process.

    Args:
        job: what it is sent before the first request.
    """

    def __init__(self, job: bytes) -> None:
        self._job: bytes | None = job
        # In a session of its own: Ctrl-C reaches the parent alone, which ends its workers.
        self._process = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)

    def ask(self, request: bytes) -> bytes | None:
        """The reply to a request; None where the process is dead."""
        try:
            if self._job is not None:
                job, self._job = self._job, None
                send(self._requests, job)
                if receive(self._replies) is None:
                    return None
            send(self._requests, request)
            return receive(self._replies)
        except (OSError, ValueError):
            return None

    def how_it_died(self) -> str:
        """What became of a process that does not reply, for a message."""
        try:
            status = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "closed its output"
        if status >= 0:
            return f"ended with status {status}"
        hint = ", perhaps for want of memory," if -status == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-status).name}{hint}"

    def end(self) -> None:
        """End the process, whatever it is at."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._replies):
            with suppress(OSError):
                pipe.close()


def _pickled(*job: Any) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(job)
    except Exception as error:
        raise InvalidTypeError(
            f"workers: the source cannot be sent to other processes: {type(error).__name__}: {error}. Open files, "
            "locks and connections in it where they are used, or build with workers=1"
        ) from error
    return pickled
