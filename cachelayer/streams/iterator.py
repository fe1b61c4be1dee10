"""Hand out a stream so that its position and its items always agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, Protocol, cast

from cachelayer.counting import STAGES, Stage, counting_into, of_iterator
from cachelayer.locks import ProcessLock
from cachelayer.protocols import T
from cachelayer.streams.ahead.prefetch import Chunk, Prefetcher
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.continuing import advance_reader, restore_reader
from cachelayer.streams.reading.failures import Failure, too_many
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.steps import Steps
from cachelayer.streams.stream_stats import ReadingStats, StreamStats


class Chunks(Protocol[T]):
    """Gives an iterator its chunks."""

    def chunk(self, position: int) -> Chunk[T] | None:
        """Return the chunk at a position, the same one on every call; None at the end."""

    def forget(self) -> None:
        """Drop what was read."""

    def reread(self) -> None:
        """Read the steps that an error ended again when they are next asked for."""


class StreamIterator(Iterator[T]):
    """Hands out the items of a stream, and knows its position. Threads that share it get each item once.

    If ``next()`` raises an error, it has handed out nothing, and the next call continues after the last item. The
    position changes just before an item is handed out. So if a signal handler raises in between, that item is lost to
    this iterator: go on from the last state that was saved.

    Args:
        reader: reads the steps.
        chunks_of: given a reader, returns what gives its chunks; by default some of them are read ahead.
        finished: called when the iterator has run from the start to the end.
    """

    def __init__(
        self,
        reader: StepReader,
        chunks_of: Callable[[StepReader], Chunks[T]] = Prefetcher,
        finished: Callable[[], None] | None = None,
    ) -> None:
        self._reader = reader
        self._chunks_of = chunks_of
        self._chunks = chunks_of(reader)
        self._finished = finished
        self._has_ended = False
        self._failures: list[Failure] = []
        self._has_warned = False
        self._lock = ProcessLock()
        self._counters = of_iterator()
        # When the consumer first asked, and since when it waits; how long it has waited; the time until the last end.
        self._begun: float | None = None
        self._waits_since: float | None = None
        self._waited = self._elapsed = 0.0
        # The only state that changes the position: replaced as a whole.
        self._chunk: Chunk[T] = Chunk(reader.options.steps.next_start(reader.options.start))

    def __iter__(self) -> StreamIterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            items = self._chunk.items
            if not items:
                self._follow()
                continue
            try:
                return items.popleft()
            except IndexError:
                # Another thread that shares this iterator was quicker.
                continue

    def _follow(self) -> None:
        """Go from an exhausted chunk to the one after it."""
        since, busy = perf_counter(), self._counters.busy()
        self._waits_since = since
        self._begun = since if self._begun is None else self._begun
        has_ended, failure = False, None
        try:
            with self._lock.of_process():
                chunk = self._chunk
                if chunk.items:
                    return
                failure = chunk.failure
                if failure is None:
                    following = counting_into(self._counters, partial(self._chunks.chunk, chunk.end))
                    has_ended = following is None
                    if following is not None and (following.failures or self._failures):
                        following = self._counted(following)
                    self._chunk = Chunk(chunk.end) if following is None else following
                else:
                    self._chunks.reread()
                    self._stand_at(chunk.position)
        finally:
            now, self._waits_since = perf_counter(), None
            self._waited += now - since
            self._counters.add_wait(now - since, busy)
            begun = self._begun
            if has_ended and begun is not None:
                self._elapsed, self._begun = self._elapsed + now - begun, None
        if has_ended:
            self._has_ended = True
            if self._finished is not None:
                self._finished()
            raise StopIteration
        if failure is not None:
            try:
                raise failure
            finally:
                # This frame is in the traceback of the error, and must not refer to it, nor to the items.
                del failure, chunk

    def _counted(self, chunk: Chunk[T]) -> Chunk[T]:
        """Return a chunk as far as its failures may be replaced, and count them."""
        limit = self._reader.max_failures
        # Those of an earlier call for this chunk, which was interrupted, do not count.
        failures = [failure for failure in self._failures if failure.position < chunk.position] + [*chunk.failures]
        over = 0 if limit is None else len(failures) - limit
        if over > 0:
            chunk = chunk.until(failures[-over].position, too_many(failures, cast(int, limit)))
        if chunk.failures and not self._has_warned:
            self._has_warned = True
            chunk.failures[0].warn("iterator.failures lists all that fail")
        self._failures = failures
        return chunk

    @property
    def failures(self) -> list[Failure]:
        """The elements of the items so far that others stand in for, in order of position.

        They are those that ``map(fn, on_error="replace")`` replaced in the items that this iterator has handed out. The
        state does not hold them: an iterator that continues in another process begins with none. After ``set_state``,
        those before the new position are left.
        """
        position = self.position
        return [failure for failure in self._failures if failure.position < position]

    def _go_to(self, position: int) -> None:
        """Continue at a position, after what was handed out up to there."""
        self._chunks.forget()
        self._has_ended = False
        self._stand_at(position)

    def _stand_at(self, position: int) -> None:
        self._failures = [failure for failure in self._failures if failure.position < position]
        self._chunk = Chunk(self._reader.options.steps.next_start(position))

    def _read_with(self, reader: StepReader, position: int) -> None:
        """Continue at a position with another reader."""
        with self._lock.of_process():
            if reader.options.steps != self._reader.options.steps or reader.records is not self._reader.records:
                self._chunks = self._chunks_of(reader)
                self._reader = reader
            self._go_to(position)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restored, (type(self), self._reader, self._chunks_of, self.get_state())

    @property
    def position(self) -> int:
        """The global position after the last item: ``stream(start=position)`` continues there."""
        return self._chunk.position

    def stats(self) -> StreamStats:
        """Return how long the consumer of this iterator waited for it so far, for what, and what to do about it.

        Any thread may ask at any time, also after the end, an error or a restore, after which it counts on.
        """
        now, since, begun = perf_counter(), self._waits_since, self._begun
        seconds = self._elapsed + (0.0 if begun is None else now - begun)
        # Threads that share an iterator may wait for it at the same time.
        waited = min(seconds, self._waited + (0.0 if since is None else now - since))
        sums = self._counters.sums()
        parts: dict[Stage, float] = {stage: sums[f"{stage}_seconds"] for stage in STAGES}
        # The present wait is not split yet.
        parts[self._counters.stage or "hand_over"] += max(0.0, waited - sum(parts.values()))
        scale = waited / (sum(parts.values()) or 1.0)
        nbytes, requests, retries = sums["bytes_received"] + sums["bytes_from_disk"], sums["requests"], sums["retries"]
        return StreamStats(
            seconds,
            waited,
            seconds - waited,
            self._reader.is_mapped,
            ReadingStats(scale * parts["reading"], int(nbytes), int(requests), int(retries)),
            scale * parts["decoding"],
            scale * parts["functions"],
            scale * parts["hand_over"],
            int(sums["copies_hit"]),
            int(sums["copies_missed"]),
        )

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last item: small, JSON, the same on every shard after the same number of steps."""
        return self._reader.state(self.position)

    def set_state(self, state: Any) -> None:
        """Continue where an iterator of the same records in the same order was, on any number of shards.

        Steps that :meth:`cachelayer.Stream.without` had left out are left out here too, and records to which that
        iterator had advanced come as they would have come there.

        Args:
            state: what ``get_state`` returned, or its JSON.

        Raises:
            StateError: if it belongs to other records or another order, or lies past the end.
        """
        reader, position = restore_reader(self._reader, state)
        self._read_with(reader, position)
        self._finished = None

    def advance_to(self, newer: Any) -> None:
        """Go on over a newer version, to which records were appended; what was handed out so far stays as it is.

        The epoch under way ends over the records that it began with. Then the new records come once, in an order of
        their own, which counts as no epoch. The epochs that follow, up to ``num_epochs``, run over all records. Between
        two epochs, the one that has just ended counts as the one under way.

        A state that is saved from then on belongs to the newer version, and names the one that came before.

        Args:
            newer: the newer version or, if this stream is of a view, the same view of it, such as
                ``newer.windows("tokens", 2048)``. It must begin with the elements of this stream: the digests prove
                it, and no record is read.

        Raises:
            InvalidArgumentError: if it does not, as where new records change or move elements of a view; if it has
                other fields; or if the stream is of a mixture, a sample or buckets.
            InvalidTypeError: if it has no records.
        """
        self._read_with(advance_reader(self._reader, newer, self.position), self.position)
        self._finished = None

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; only the first shard writes it.

        Args:
            directory: a path: the state is written when this returns, and nothing has to be awaited. Orbax passes an
                object for a directory that it is about to make, and awaits the result.

        Raises:
            StorageError: if it cannot be written.
        """
        return save_state(self.get_state(), directory, writes=self._reader.options.shard_index == 0)

    def load(self, directory: Any) -> Awaited:
        """Continue from a state that :meth:`save` wrote, on any number of shards, at once; Orbax calls this too.

        Raises:
            StateError: if there is no state, or it is damaged or belongs to other records or another order.
        """
        return load_state(directory, self.set_state)


def has_ended(iterator: StreamIterator[Any]) -> bool:
    """Return whether an iterator has raised StopIteration at its position."""
    return iterator._has_ended


def state_at(iterator: StreamIterator[Any], position: int) -> dict[str, Any]:
    """Return the state of an iterator's stream at another position."""
    return iterator._reader.state(position)


def continue_with(iterator: StreamIterator[Any], steps: Steps, position: int) -> None:
    """Have an iterator continue at a position, with other steps of the same records."""
    iterator._read_with(iterator._reader.with_steps(steps), position)


class ChunksWithStates:
    """Gives the chunks of a reader with pairs of an item and the state after it."""

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


def _restored(
    cls: type[StreamIterator[T]],
    reader: StepReader,
    chunks_of: Callable[[StepReader], Chunks[T]],
    state: dict[str, Any],
) -> StreamIterator[T]:
    """Return a copy of an iterator, which reads ahead independently."""
    iterator = cls(reader, chunks_of)
    iterator.set_state(state)
    return iterator
