"""Worker processes that encode blocks of records; the blocks come back in order."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Self, cast

from cachelayer.builds.batches import BATCH_NBYTES, BATCH_SECONDS, MAX_BATCH_RECORDS, counted
from cachelayer.builds.encode import Block, Encoder, OnError
from cachelayer.builds.source import Seekable
from cachelayer.engines.child import Child, DiedError
from cachelayer.engines.local_call import LocalCall
from cachelayer.errors import CacheLayerError, SourceError
from cachelayer.progress.meter import Progress
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool

_SAMPLE = 8
_BLOCKS_PER_WORKER = 2


class Workers:
    """Worker processes that encode the elements of a source which can begin at any record.

    Each process has two blocks of about ``BATCH_NBYTES`` in progress.

    Args:
        source: the source; it is pickled, by value if the main program defines it.
        spec: the element spec.
        on_error: what to do with elements that do not fit.
        count: number of processes.

    Raises:
        InvalidTypeError: if the source cannot be pickled.
    """

    def __init__(self, source: Seekable, spec: Tree, on_error: OnError, count: int) -> None:
        self._source = source
        self._spec = spec
        self._encode = LocalCall(partial(encode, source, spec, on_error), "workers: the source", "build with workers=1")
        self._count = count
        self._children = ExitStack()
        self._idle: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._threads = Pool(count, "cachelayer-workers")

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._idle.put(self._children.enter_context(Child(self._encode)))
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._children.close()
        self._threads.shutdown(wait=True)

    def blocks(self, start: int, stop: int) -> Iterator[Block]:
        """Yield the elements from ``start`` to ``stop`` in blocks, in order.

        Raises:
            ElementError, SourceError: as if they had been encoded in this process.
            SourceError: if a process dies; the message names the records that it was encoding.
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
        """Return the number of records in a block, from the first: no worker should idle, or work on one, for long."""
        began = monotonic()
        # An element that does not fit is encoded again later; then it raises or is left out.
        with Progress("", None, enabled=False):
            sample = encode(self._source, self._spec, "skip", start, min(_SAMPLE, stop - start))
        in_time = int(BATCH_SECONDS * _SAMPLE // max(1e-9, monotonic() - began))
        sizes = [nbytes for frames in sample.frames for nbytes in frames.lengths]
        share = -(-(stop - start) // (self._count * _BLOCKS_PER_WORKER))
        fitting = int(BATCH_NBYTES // max(1, sum(sizes) / max(1, len(sizes))))
        return max(1, min(MAX_BATCH_RECORDS, fitting, share, in_time))

    def _block(self, first: int, count: int) -> Block:
        child = self._idle.get()
        try:
            child.send(first, count)
            block = cast(Block, child.receive())
        except DiedError as error:
            raise SourceError(
                f"a worker process {error} while it made records {first} to {first + count - 1}"
            ) from error
        except CacheLayerError:
            raise
        except Exception as error:
            raise SourceError(f"a worker process failed: {type(error).__name__}: {error}") from error
        finally:
            # End dead ones too: a thread that waits for such a child would wait for ever.
            self._idle.put(child)
        return block


def encode(source: Seekable, spec: Tree, on_error: OnError, start: int, count: int) -> Block:
    """Encode one block of a source which can begin at any record."""
    encoder = Encoder(codec_for(spec), on_error, start)
    begun = source.skipped(start)
    frames = [encoder.encode(batch) for batch in counted(begun.batches(count), begun.length, start, count)]
    return encoder.block(frames)
