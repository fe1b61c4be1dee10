"""Upload and note finished shards while later ones are written."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from cachelayer.system_threads import Pool
from cachelayer.versions.shard_table import ShardFile

# Enough uploads at once to use the link while some of them wait for replies.
_UPLOADS = 8
_FEWEST_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 12
_NBYTES_IN_FLIGHT = 1 << 30


class Uploader(Protocol):
    """Uploads shards to the store."""

    def upload(self, shard: Path) -> None:
        """Upload a finished shard and the files beside it; called from several threads."""


class ShardNotes(Protocol):
    """Notes which shards are in the store, so that another build can resume after them."""

    def add_shard(self, number: int, shard: ShardFile, nullable: frozenset[int]) -> None:
        """Note a shard; called from several threads.

        Args:
            number: its number in the build.
            shard: the shard.
            nullable: the numbers of the leaves that were None in some element up to its end.
        """


class Uploads:
    """Uploads finished shards in threads of its own, and notes those that are in the store.

    Args:
        uploader: uploads a shard; None if shards are written to the store directly.
        notes: notes shards; None if no build could resume from them.
        shard_bytes: about the size of a shard.
    """

    def __init__(self, uploader: Uploader | None, notes: ShardNotes | None, shard_bytes: int) -> None:
        self._uploader = uploader
        self._notes = notes
        # Limit the queue: shards that wait for their upload take room on the disk.
        self._in_flight = min(max(_FEWEST_IN_FLIGHT, _NBYTES_IN_FLIGHT // shard_bytes), _MOST_IN_FLIGHT)
        self._threads = Pool(_UPLOADS, "cachelayer-upload")
        self._begun: deque[Future[None]] = deque()

    def add(self, number: int, path: Path, shard: Future[ShardFile], nullable: frozenset[int]) -> None:
        """Upload and note a shard as soon as it is finished; errors of earlier ones may be raised here.

        Args:
            number: its number in the build.
            path: where it is written.
            shard: the shard, once it is finished.
            nullable: the numbers of the leaves that were None in some element up to its end.
        """
        if self._uploader is None and self._notes is None:
            return
        self._begun.append(self._threads.submit(self._upload, number, path, shard, nullable))
        while len(self._begun) > self._in_flight:
            self._begun.popleft().result()

    def _upload(self, number: int, path: Path, shard: Future[ShardFile], nullable: frozenset[int]) -> None:
        finished = shard.result()
        if self._uploader is not None:
            self._uploader.upload(path)
        if self._notes is not None:
            self._notes.add_shard(number, finished, nullable)

    def finish(self) -> None:
        """Wait until all shards are uploaded and noted."""
        for future in self._begun:
            future.result()

    def gives_up(self, kind: type[BaseException] | None) -> bool:
        """Return whether a build that ends with this exception leaves what is not finished yet as it is.

        Another build can go on with what is noted, so a failed one finishes that, unless Ctrl-C asks not to wait.
        """
        return kind is not None and (self.is_abandoned(kind) or self._notes is None)

    def is_abandoned(self, kind: type[BaseException] | None) -> bool:
        """Return True on Ctrl-C: uploads are abandoned instead of waiting for a network that may not answer."""
        return kind is KeyboardInterrupt and self._uploader is not None

    def close(self, kind: type[BaseException] | None) -> None:
        """End the threads; ``kind`` is the exception that ends the build, None for none."""
        self._threads.shutdown(wait=not self.is_abandoned(kind), cancel_futures=self.gives_up(kind))
