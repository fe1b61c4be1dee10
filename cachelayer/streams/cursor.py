"""Where a stream is, so that the position always agrees with what was handed out.

A cursor takes chunks, which are items that were read at once. A chunk knows the position after each of its items; the
number of items that are left in it says which of them was the last one. So one statement, which takes an item from the
chunk, moves the position too. With steps of 4 records, after the second item::

    chunk       items       batch 0   batch 1   batch 2        items.popleft() hands one out
                position  0         4         8         12
                                              ^ the position of the cursor, and of its state

An exhausted chunk is replaced by the one that begins at its end. An error comes as the end of a chunk, behind the items
before it: it is raised when these are handed out, and then its step is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol

from cachelayer.protocols import T
from cachelayer.streams.ahead.prefetch import Chunk, Prefetcher
from cachelayer.streams.reading.failures import Failure, too_many, warn_of_failure
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream_stats import ConsumerClock, StreamStats
from cachelayer.support.counting import counting_into
from cachelayer.support.locks import ProcessLock


class Chunks(Protocol[T]):
    """Gives a cursor its chunks."""

    def chunk(self, position: int) -> Chunk[T] | None:
        """Return the chunk at a position, the same one on every call; None at the end."""

    def forget(self) -> None:
        """Drop what was read."""

    def reread(self) -> None:
        """Let the next call of :meth:`chunk` read once more the step at which an error came, and the steps after it."""


class Cursor(Generic[T]):
    """Where a stream is. Threads that share it take each item of ``chunk`` once, and call :meth:`follow` for the next.

    ``chunks_of`` returns what gives the chunks of a reader's steps; by default it reads some of them ahead. If it
    raises, the cursor stays as it is. ``finished`` is called when the cursor has run from where it began to the end.
    """

    def __init__(
        self,
        reader: StepReader,
        chunks_of: Callable[[StepReader], Chunks[T]] = Prefetcher,
        position: int | None = None,
        finished: Callable[[], None] | None = None,
    ) -> None:
        begin = reader.schedule.start if position is None else position
        self.reader = reader
        self.has_ended = False
        """Whether there was nothing left when an item was asked for."""
        self._chunks_of = chunks_of
        self._chunks = chunks_of(reader.starting_at(begin))
        self._finished = finished
        self._failures: list[Failure] = []
        """The replaced elements of the chunks so far, also of items that were not handed out yet."""
        self._has_warned = False
        self._lock = ProcessLock()
        self._clock = ConsumerClock()
        # The only state that changes the position: replaced as a whole.
        self.chunk: Chunk[T] = Chunk(reader.schedule.next_start(begin))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reader, self._chunks_of, self.position)

    def copied(self) -> Cursor[T]:
        """Return a cursor at the same position, which reads ahead by itself."""
        return Cursor(self.reader, self._chunks_of, self.position)

    @property
    def position(self) -> int:
        """The position after the last item."""
        return self.chunk.position

    @property
    def failures(self) -> list[Failure]:
        """The failed elements that stand-ins replaced in the items so far, in order of position."""
        position = self.position
        return [failure for failure in self._failures if failure.position < position]

    def stats(self) -> StreamStats:
        """Return what the consumer waited for."""
        return self._clock.stats(is_mapped=self.reader.is_mapped)

    def state(self) -> dict[str, Any]:
        """Return the state after the last item."""
        return self.reader.state(self.position)

    # From chunk to chunk.

    def follow(self) -> None:
        """Go from an exhausted chunk to the one that begins at its end, or raise what ended it."""
        has_ended = False
        failure = None
        wait = self._clock.begin_wait()
        try:
            with self._lock.of_process():
                chunk = self.chunk
                if chunk.items:
                    # Another thread that shares this cursor was quicker.
                    return
                failure = chunk.failure
                if failure is None:
                    has_ended = not self._take_chunk(chunk.end)
                else:
                    self._chunks.reread()
                    self._stand_at(chunk.position)
        finally:
            self._clock.end_wait(wait, has_ended=has_ended)
        if has_ended:
            self.has_ended = True
            if self._finished is not None:
                self._finished()
            raise StopIteration
        if failure is not None:
            try:
                raise failure
            finally:
                # This frame is in the traceback of the error, and must not refer to it, nor to the items.
                del failure, chunk

    def _take_chunk(self, position: int) -> bool:
        """Take the chunk at a position; return False at the end."""
        chunk = counting_into(self._clock.counters, partial(self._chunks.chunk, position))
        if chunk is None:
            self.chunk = Chunk(position)
            return False
        if chunk.failures or self._failures:
            chunk = self._with_failures_counted(chunk)
        self.chunk = chunk
        return True

    def _with_failures_counted(self, chunk: Chunk[T]) -> Chunk[T]:
        """Count the failures of a chunk, and return it; it ends with an error before the first beyond the limit."""
        limit = self.reader.max_failures
        # If an earlier call for this chunk was interrupted, its failures are among those so far.
        failures = [failure for failure in self._failures if failure.position < chunk.position]
        failures += chunk.failures
        if limit is not None and len(failures) > limit:
            chunk = chunk.until(failures[limit].position, too_many(failures, limit))
        if chunk.failures and not self._has_warned:
            self._has_warned = True
            warn_of_failure(chunk.failures[0], "iterator.failures lists all that fail")
        self._failures = failures
        return chunk

    def _stand_at(self, position: int) -> None:
        self._failures = [failure for failure in self._failures if failure.position < position]
        self.chunk = Chunk(self.reader.schedule.next_start(position))

    # Elsewhere.

    def go_to(self, reader: StepReader, position: int) -> None:
        """Continue at a position with another reader, which replaces this one as a whole."""
        with self._lock.of_process():
            chunks = self._chunks_of(reader.starting_at(position))
            self._chunks.forget()
            self._chunks = chunks
            self.reader = reader
            self.has_ended = False
            self._finished = None
            self._stand_at(position)

    def restore(self, state: Any) -> None:
        """Continue at a state of the same records in the same order."""
        from cachelayer.streams.continuing import restore_reader

        self.go_to(*restore_reader(self.reader, state))

    def advance_to(self, newer: Any) -> None:
        """Go on over a newer version, to which records were appended, from the end of the epoch under way."""
        from cachelayer.streams.continuing import advance_reader

        self.go_to(advance_reader(self.reader, newer, self.position), self.position)


class ChunksWithStates:
    """Gives a cursor chunks whose items are pairs: an item of the stream, and the state after it."""

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._chunks: Prefetcher[Any] = Prefetcher(reader)

    def chunk(self, position: int) -> Chunk[tuple[Any, dict[str, Any]]] | None:
        chunk = self._chunks.chunk(position)
        return None if chunk is None else chunk.replaced(lambda item, after: (item, self._reader.state(after)))

    def forget(self) -> None:
        self._chunks.forget()

    def reread(self) -> None:
        self._chunks.reread()
