"""Taking finished shards on, beside the writing of later ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cachelayer.versions.shard_table import ShardFile

# So many that a link is not idle while some of them wait for replies.
_DELIVERIES = 8
_FEWEST_IN_FLIGHT, _MOST_IN_FLIGHT = 4, 12
_NBYTES_IN_FLIGHT = 1 << 30

Deliver = Callable[[Path], None]
"""Takes a finished shard on, by its path; its index lies beside it."""
OnFinished = Callable[[int, ShardFile], None]
"""Is told of each shard that lies where it belongs, by its number in the build."""


class Deliveries:
    """Takes finished shards on in threads of its own, and tells of those that are where they belong.

    Args:
        deliver: takes a shard on; None where shards lie where they belong.
        shard_bytes: about the size of a shard.
    """

    def __init__(self, deliver: Deliver | None, shard_bytes: int) -> None:
        self._deliver = deliver
        # Shards that wait to be delivered take room on the disk.
        self._in_flight = min(max(_FEWEST_IN_FLIGHT, _NBYTES_IN_FLIGHT // shard_bytes), _MOST_IN_FLIGHT)
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
        while len(self._delivered) > self._in_flight:
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
