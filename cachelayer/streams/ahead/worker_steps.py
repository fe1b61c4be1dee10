"""Read the steps that fall to one of several worker processes, in blocks if the order has them: for adapters."""

from __future__ import annotations

from typing import Any

from cachelayer.streams.ahead.block_feed import BlockRows, feed_of
from cachelayer.streams.reading.failures import Failure
from cachelayer.streams.steps import Step
from cachelayer.streams.stream import Stream, reader_of
from cachelayer.user_warnings import warn


class WorkerSteps:
    """Reads the items of a stream, step by step, for a worker that takes turns with others at the steps.

    In an order in blocks, the blocks of this worker's next steps are fetched ahead of need, as an iterator has them
    fetched, and held until no later step needs them. The steps may be read in any order, but after a step that is not
    this worker's next one the blocks are fetched anew.

    Args:
        stream: the stream.
        workers: the number of workers. This worker's next step is the one that comes so many steps later.
    """

    def __init__(self, stream: Stream[Any], workers: int) -> None:
        self._reader = reader_of(stream)
        self._feed = feed_of(self._reader, workers)

    def item(self, step: Step) -> Any:
        return self._reader.item(step, self._fetched(step))

    def item_and_failures(self, step: Step) -> tuple[Any, tuple[Failure, ...]]:
        """Return the item of a step, and the elements that others stand in for, without a warning."""
        return self._reader.item_and_failures(step, self._fetched(step))

    def _fetched(self, step: Step) -> BlockRows | None:
        if self._feed is None:
            return None
        self._feed.reached(step.begin)
        return self._feed.load(step)


def fetches_blocks(stream: Stream[Any]) -> bool:
    """Return whether an iterator over the stream fetches blocks, as it does from an object store."""
    return feed_of(reader_of(stream)) is not None


def warn_of_workers(stream: Stream[Any], workers: int, fix: str) -> None:
    """Warn if several workers are going to fetch the same blocks.

    Args:
        stream: the stream.
        workers: the number of workers that take turns at the steps.
        fix: what to do.
    """
    if workers > 1 and fetches_blocks(stream):
        warn(
            f"worker processes take turns at the steps, so {workers} of them fetch and hold each block: "
            f"{workers} times the requests, bytes and memory of one; {fix}"
        )
