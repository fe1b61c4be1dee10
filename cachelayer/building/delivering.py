"""Taking finished shards on, beside the writing of later ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cachelayer.versions.shard_table import ShardFile

# As many that the link is never idle while some of them wait for replies.
_DELIVERIES = 8
_SHARDS_IN_FLIGHT = 12

Deliver = Callable[[Path], None]
"""Takes a finished shard on, by its path; its index lies beside it."""
OnFinished = Callable[[int, ShardFile], None]
"""Is told of each shard that lies where it belongs, by its number in the build."""


class Deliveries:
    """Takes finished shards on in threads of its own, and tells of those that are where they belong.

    Args:
        deliver: takes a shard on; None where shards lie where they belong.
    """

    def __init__(self, deliver: Deliver | None) -> None:
        self._deliver = deliver
        self._threads = ThreadPoolExecutor(_DELIVERIES, "cachelayer-deliver")
        self._delivered: deque[Future[None]] = deque()

    def add(self, number: int, path: Path, shard: Callable[[], ShardFile], on_finished: OnFinished | None) -> None:
        """Take a shard on, when it is finished.

        Args:
            number: its number in the build.
            path: where it is written.
            shard: waits for it.
            on_finished: is told when it is where it belongs.
        """
        if self._deliver is None and on_finished is None:
            return

        def deliver() -> None:
            finished = shard()
            if self._deliver is not None:
                self._deliver(path)
            if on_finished is not None:
                on_finished(number, finished)

        self._delivered.append(self._threads.submit(deliver))
        # Shards that wait to be delivered take room on the disk.
        while len(self._delivered) > _SHARDS_IN_FLIGHT:
            self._delivered.popleft().result()

    def finish(self) -> None:
        """Wait for all."""
        for future in self._delivered:
            future.result()

    def close(self, kind: type[BaseException] | None, *, is_resumable: bool) -> None:
        """End the threads.

        Args:
            kind: the exception that ends the build; None for none.
            is_resumable: whether another build can go on with what is delivered now.
        """
        left = leaves(kind, self._deliver)
        gives_up = kind is not None and (left or not is_resumable)
        self._threads.shutdown(wait=not left, cancel_futures=gives_up)


def leaves(kind: type[BaseException] | None, deliver: Deliver | None) -> bool:
    """Who interrupts does not wait for a network that may not answer."""
    return kind is KeyboardInterrupt and deliver is not None
