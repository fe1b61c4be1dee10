"""Writing shards in another process, beside the one that makes the records."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Self

from cachelayer.builds.shard_pipeline import ShardPipeline, Shards
from cachelayer.builds.uploads import Deliver, Deliveries, OnFinished, leaves
from cachelayer.engines.child import Child, DiedError
from cachelayer.engines.remote_call import pickled
from cachelayer.errors import CacheLayerError, StorageError
from cachelayer.progress.meter import Progress
from cachelayer.records.record_buffers import Frames
from cachelayer.versions.shard_table import ShardFile

_BATCHES_IN_FLIGHT = 3


class WritingProcess:
    """Does what a :class:`ShardPipeline` does; cutting, compressing, hashing and writing go on in another process.

    Args:
        shards: what is written.
        progress: is told of what was handed on to be written.
        deliver: takes finished shards on, in this process; None where they lie where they belong.
    """

    def __init__(self, shards: Shards, progress: Progress, deliver: Deliver | None) -> None:
        self._of = shards
        self._progress = progress
        self._deliver = deliver
        self._deliveries = Deliveries(deliver, shards.shard_bytes)
        self._child = Child(pickled(_Writer(shards), "the shards", "build with workers=1"))
        self._asked = 0
        self._on_finished: OnFinished | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        is_resumable = self._on_finished is not None and self._child.can_be_asked
        if kind is not None and is_resumable and not leaves(kind, self._deliver):
            # Whoever resumes is glad of what was written.
            with suppress(CacheLayerError):
                self._ask(None, is_end=False)
                self._answers()
        self._child.__exit__(kind, *error)
        self._deliveries.close(kind, is_resumable=self._on_finished is not None)

    def write(self, frames: Frames, on_finished: OnFinished | None = None) -> None:
        """Append records; errors of earlier ones may be raised here. See :meth:`ShardPipeline.write`."""
        self._on_finished = on_finished
        self._ask(frames)
        self._progress.update(len(frames), int(frames.lengths.sum()))
        while self._asked > _BATCHES_IN_FLIGHT:
            self._receive()

    def finish(self, on_finished: OnFinished | None = None) -> list[ShardFile]:
        """The shards, all of them durable. See :meth:`ShardPipeline.finish`."""
        self._on_finished = on_finished
        self._ask(None)
        shards = self._answers()
        self._deliveries.finish()
        return shards

    def _ask(self, frames: Frames | None, *, is_end: bool = True) -> None:
        self._child.send(frames, is_end)
        self._asked += 1

    def _answers(self) -> list[ShardFile]:
        """The last answer, when all have come."""
        shards: list[ShardFile] = []
        while self._asked:
            shards = self._receive()
        return shards

    def _receive(self) -> list[ShardFile]:
        self._asked -= 1
        try:
            finished, shards = self._child.receive()
        except DiedError as error:
            raise StorageError(f"the process that writes shards to {self._of.folder} {error}") from error
        for number, shard in finished:
            self._deliveries.add(number, self._of.path(number), partial(_same, shard), self._on_finished)
        return list(shards)


class _Writer:
    """What the other process calls with batches of records, and with None at the end, or where there is none.

    Args:
        shards: what is written.
    """

    def __init__(self, shards: Shards) -> None:
        self._of = shards
        self._pipeline: ShardPipeline | None = None
        self._finished: deque[tuple[int, ShardFile]] = deque()

    def __call__(self, frames: Frames | None, is_end: bool) -> tuple[list[tuple[int, ShardFile]], list[ShardFile]]:
        """Write; the shards that are finished since the last call, by their numbers, and in the end all shards."""
        if self._pipeline is None:
            self._pipeline = ShardPipeline(self._of, Progress("", None, enabled=False), None)
        shards: list[ShardFile] = []
        if frames is None and not is_end:
            self._pipeline.settle()
        elif frames is None:
            shards = self._pipeline.finish(self._note)
        else:
            self._pipeline.write(frames, self._note)
        # Threads go on adding to it.
        return [self._finished.popleft() for _ in range(len(self._finished))], shards

    def _note(self, number: int, shard: ShardFile) -> None:
        self._finished.append((number, shard))


def _same(shard: ShardFile) -> ShardFile:
    return shard
