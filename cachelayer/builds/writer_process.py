"""Write shards in another process while this one makes the records."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Self

from cachelayer.builds.shard_pipeline import ShardPipeline, Shards
from cachelayer.builds.uploads import Uploads
from cachelayer.engines.child import Child, DiedError
from cachelayer.engines.local_call import LocalCall
from cachelayer.errors import StorageError
from cachelayer.progress.meter import Progress
from cachelayer.records.record_buffers import Frames
from cachelayer.versions.shard_table import ShardFile

_BATCHES_IN_FLIGHT = 3


class WritingProcess:
    """A :class:`ShardPipeline` that cuts, compresses, hashes and writes in another process.

    Args:
        shards: the shards to write.
        progress: counts what was handed to the other process.
        uploads: uploads and notes finished shards, in this process.
    """

    def __init__(self, shards: Shards, progress: Progress, uploads: Uploads) -> None:
        self._of = shards
        self._progress = progress
        self._uploads = uploads
        self._child = Child(LocalCall(_Writer(shards), "the shards", "build with workers=1"))
        self._asked = 0
        self._nullable: frozenset[int] | None = None
        """The leaves that were None in some element so far; None before the first batch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        has_begun = self._nullable is not None and self._child.can_be_asked
        if kind is not None and has_begun and not self._uploads.gives_up(kind):
            # What was written is noted, for a build that resumes after it. The failure that ended the build is shown.
            with suppress(Exception):
                self._ask(None, is_end=False)
                self._answers()
        self._child.__exit__(kind, *error)
        self._uploads.close(kind)

    def write(self, frames: Frames, nullable: frozenset[int]) -> None:
        """Append records; errors of earlier ones may be raised here. See :meth:`ShardPipeline.write`."""
        self._nullable = nullable
        self._ask(frames)
        self._progress.update(len(frames), int(frames.lengths.sum()))
        while self._asked > _BATCHES_IN_FLIGHT:
            self._receive()

    def finish(self, nullable: frozenset[int]) -> list[ShardFile]:
        """Close the last shard, and return all of them once they are durable. See :meth:`ShardPipeline.finish`."""
        self._nullable = nullable
        self._ask(None)
        shards = self._answers()
        self._uploads.finish()
        return shards

    def _ask(self, frames: Frames | None, *, is_end: bool = True) -> None:
        self._child.send(frames, is_end)
        self._asked += 1

    def _answers(self) -> list[ShardFile]:
        """Wait for all answers, and return the last."""
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
            self._uploads.add(number, self._of.path(number), _done(shard), self._nullable or frozenset())
        return list(shards)


class _Writer:
    """What the other process calls with batches of records, and with None at the end, or to wait for what is closed.

    Args:
        shards: the shards to write.
    """

    def __init__(self, shards: Shards) -> None:
        self._of = shards
        self._pipeline: ShardPipeline | None = None
        self._finished = _FinishedShards()
        self._has_failed = False

    def __call__(self, frames: Frames | None, is_end: bool) -> tuple[list[tuple[int, ShardFile]], list[ShardFile]]:
        """Write; return the shards that are finished since the last call, by their numbers, and in the end all.

        After a batch that failed, nothing more is written: the next ones were sent before the other process knew.
        """
        if self._pipeline is None:
            uploads = Uploads(None, self._finished, self._of.shard_bytes)
            self._pipeline = ShardPipeline(self._of, Progress("", None, enabled=False), uploads)
        shards: list[ShardFile] = []
        # Only the process that makes the records knows which leaves were None.
        if frames is None and not is_end:
            self._pipeline.settle()
        elif not self._has_failed:
            self._has_failed = True
            if frames is not None:
                self._pipeline.write(frames, frozenset())
            else:
                shards = self._pipeline.finish(frozenset())
            self._has_failed = False
        return self._finished.taken(), shards


class _FinishedShards:
    """Finished shards that have not been taken yet."""

    def __init__(self) -> None:
        self._shards: deque[tuple[int, ShardFile]] = deque()

    def add_shard(self, number: int, shard: ShardFile, nullable: frozenset[int]) -> None:  # noqa: ARG002
        self._shards.append((number, shard))

    def taken(self) -> list[tuple[int, ShardFile]]:
        """Take the finished shards; other threads may add more meanwhile."""
        return [self._shards.popleft() for _ in range(len(self._shards))]


def _done(shard: ShardFile) -> Future[ShardFile]:
    future: Future[ShardFile] = Future()
    future.set_result(shard)
    return future
