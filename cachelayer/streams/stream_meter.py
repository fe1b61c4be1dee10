"""Measure what an iterator does: how long its consumer waits for it, and what its threads do meanwhile."""

from __future__ import annotations

import os
from time import perf_counter

from cachelayer.streams.stream_stats import StreamStats
from cachelayer.tally import COLLATING, DECODING, MAPPING, ORIGINS, READING, Tally


class Meter:
    """Measures one iterator. It takes no locks. Any thread may ask for the stats.

    If the process forks, the child counts on from what the parent had counted.
    """

    def __init__(self) -> None:
        # What the thread does that reads ahead; a consumer without such a thread, or one that helps it; and those that
        # fetch blocks, for which the thread of the event loop counts.
        self.ahead, self.consumer, self.blocks = Tally(), Tally(), Tally()
        # Since when the consumer waits; None if it does not. Set by the iterator, so that this costs no call.
        self.waiting: float | None = None
        # The seconds up to the last end of the stream, when the consumer first asked after that, and the seconds that
        # it has waited. Always replaced as a whole.
        self._times: tuple[float, float | None, float] = (0.0, None, 0.0)
        self._pid = os.getpid()

    def resume(self, since: float, *, ended: bool) -> None:
        """Note that the consumer goes on.

        Args:
            since: when it asked for an item, and began to wait.
            ended: whether it got nothing because the stream has ended.
        """
        now = perf_counter()
        elapsed, begun, waited = self._times
        if begun is None:
            begun = since
        waited += now - since
        self._times = (elapsed + now - begun, None, waited) if ended else (elapsed, begun, waited)
        self.waiting = None

    def notice_fork(self) -> None:
        """Forget what the thread of the parent was doing when this process was forked: it is not here."""
        if self._pid != os.getpid():
            self.ahead.running = None
            self._pid = os.getpid()

    def stats(self, records: int, queue_depth: int, prefetch: int) -> StreamStats:
        """Return what was measured so far; the arguments are those of :class:`StreamStats`."""
        self.notice_fork()
        waiting, (elapsed, begun, waited) = self.waiting, self._times
        now = perf_counter()
        begun = waiting if begun is None else begun
        seconds = elapsed + (0.0 if begun is None else now - begun)
        # Threads that share an iterator may wait for it at the same time.
        waited = min(seconds, waited + (0.0 if waiting is None else now - waiting))
        by_consumer, tallies = self.consumer.seconds_at(now), (self.ahead, self.consumer, self.blocks)
        work = [before + more for before, more in zip(self.ahead.seconds_at(now), by_consumer, strict=True)]
        helped = sum(by_consumer) if prefetch else 0.0
        return StreamStats(
            seconds=seconds,
            waited=waited,
            own=seconds - waited,
            reading=work[READING],
            decoding=work[DECODING],
            mapping=work[MAPPING],
            collating=work[COLLATING],
            idle=max(0.0, seconds + helped - sum(work)),
            helped=helped,
            records=records,
            nbytes={origin: sum(tally.nbytes[origin] for tally in tallies) for origin in ORIGINS},
            requests=sum(tally.requests for tally in tallies),
            retries=sum(tally.retries for tally in tallies),
            queue_depth=queue_depth,
            prefetch=prefetch,
        )
