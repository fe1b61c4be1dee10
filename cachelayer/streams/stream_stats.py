"""What an iterator's consumer waited for, in seconds, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from cachelayer.support.counting import of_iterator

_MUCH = 0.1
"""From this share of the time on, a consumer that waits is told what to do about it."""
_LITTLE = 0.01
"""What takes a smaller share of the wait is not named."""
_DECODING = "leave fields out with fields(), decode images to the size that you need"
_FUNCTIONS = "make the functions faster, pass threads= to map() if they release the GIL, or read in several processes"
_AHEAD = 'pass shuffle="blocks" or a larger prefetch'
_HAND_OVER = "pass larger batches or, if worker processes read, more workers"


@dataclass(frozen=True)
class ReadingStats:
    """The cost of reading for an iterator: seconds, bytes and requests.

    Examples:
        >>> print(cachelayer.ReadingStats(seconds=9.0, bytes=2_000_000, requests=40, retries=1))
        reading 9 s (2.0 MB in 40 requests, 1 of them again)
    """

    seconds: float = 0.0
    """The seconds that the consumer waited for reading."""
    bytes: int = 0
    """Bytes that came over the network, and bytes of the records that were read on this host."""
    requests: int = 0
    """Requests to the store."""
    retries: int = 0
    """Requests that were made again, because they failed."""

    def __str__(self) -> str:
        from cachelayer.support.progress import size

        in_requests = f" in {self.requests:,} requests" if self.requests else ""
        again = f", {self.retries:,} of them again" if self.retries else ""
        return f"reading {self.seconds:.3g} s ({size(self.bytes)}{in_requests}{again})"


@dataclass(frozen=True)
class StreamStats:
    """The time that the consumer of an iterator waited for it, by cause. ``str()`` also says what to do about it.

    Examples:
        >>> print(cachelayer.StreamStats(seconds=100.0, waited=50.0, own=50.0, functions=45.0, hand_over=5.0))
        waited for data 50 % of the time (50 of 100 s): functions 45 s, hand-over 5 s; make the functions faster, ...
        >>> print(cachelayer.StreamStats(seconds=100.0, waited=5.0, own=95.0, functions=5.0))
        waited for data 5 % of the time (5 of 100 s)
    """

    seconds: float
    """The seconds from the first call of ``next()`` until now, or until the end of the stream."""
    waited: float
    """The seconds in ``next()``: the sum of ``reading``, ``functions`` and ``hand_over``."""
    own: float
    """The seconds that the consumer spent on its own work."""
    is_mapped: bool = True
    """Whether the stream has functions."""
    reading: ReadingStats = ReadingStats()
    """The part of ``waited`` that records took to come, from wherever they are, and to become elements or batches."""
    functions: float = 0.0
    """The part that the functions of the stream took."""
    hand_over: float = 0.0
    """All else: arrays of a framework, the way from thread to thread, and everything that worker processes do."""
    copies_hit: int = 0
    """Records of remote shards that were read from local copies."""
    copies_missed: int = 0
    """Records of remote shards that were read over the network, though copies are kept."""

    def __str__(self) -> str:
        if not self.seconds:
            return "nothing read yet"
        share = self.waited / self.seconds
        percent = f"{share:.0%}".replace("%", " %")
        line = f"waited for data {percent} of the time ({self.waited:.3g} of {self.seconds:.3g} s)"
        parts = [
            (self.reading.seconds, str(self.reading), self._reading_advice),
            (self.functions, f"functions {self.functions:.3g} s", _FUNCTIONS),
            (self.hand_over, f"hand-over {self.hand_over:.3g} s", _HAND_OVER),
        ]
        longest = sorted(parts, reverse=True)
        if share < _MUCH or not longest[0][0]:
            return line
        named = ", ".join(text for seconds, text, _ in longest if seconds >= _LITTLE * self.waited)
        return f"{line}: {named}; {longest[0][2]}"

    @property
    def _reading_advice(self) -> str:
        if self.reading.retries > _MUCH * self.reading.requests:
            return "the store often fails: CACHELAYER_LOG=info says why"
        if self.reading.requests:
            return f"copy the records to this host first (cachelayer mirror), or {_AHEAD}"
        return f"{_DECODING} or, if the records are not in memory, {_AHEAD}"


class ConsumerClock:
    """Measures how long the consumer of an iterator waits for it, from the first wait to the end of the stream.

    Threads that share an iterator may wait at the same time, and any thread may ask for the statistics.
    """

    def __init__(self) -> None:
        self.counters = of_iterator()
        """The counters of the threads that read for the iterator."""
        self._begun: float | None = None
        """The time at which the consumer first waited; None after the end."""
        self._waits_since: float | None = None
        self._seconds_to_end = 0.0
        """The seconds up to the last end, if the iterator has gone on behind one."""

    def begin_wait(self) -> float:
        """Return the time at which a wait begins."""
        since = self._waits_since = perf_counter()
        if self._begun is None:
            self._begun = since
        return since

    def end_wait(self, since: float, *, has_ended: bool) -> None:
        """Count a wait, split as the making of its chunk was; ``has_ended`` says that it was for the end of the stream.

        A wait may be longer than that, as for the chunks before it: then those took as long at each stage.
        """
        now = perf_counter()
        waited = now - since
        self._waits_since = None
        clock = self.counters.awaited
        self.counters.awaited = None
        reading = functions = 0.0
        if clock is not None:
            share = waited / max(sum(clock.seconds.values()), 1e-9)
            # Rounding may not make a part longer than what is left: counters only grow.
            reading = min(waited, share * clock.seconds["reading"])
            functions = min(waited - reading, share * clock.seconds["functions"])
        self.counters.add(
            {
                "waited_seconds": waited,
                "reading_seconds": reading,
                "functions_seconds": functions,
                "hand_over_seconds": waited - reading - functions,
            }
        )
        begun = self._begun
        if has_ended and begun is not None:
            self._seconds_to_end += now - begun
            self._begun = None

    def stats(self, *, is_mapped: bool) -> StreamStats:
        """Return the statistics up to now; ``is_mapped`` says that the stream has functions."""
        sums = self.counters.sums()
        now = perf_counter()
        since = self._waits_since
        begun = self._begun
        clock = self.counters.awaited
        seconds = self._seconds_to_end + (0.0 if begun is None else now - begun)
        present = 0.0 if since is None else now - since
        parts = {stage: sums[f"{stage}_seconds"] for stage in ("reading", "functions", "hand_over")}
        parts[(clock and clock.stage) or "hand_over"] += present
        # Threads that share an iterator may wait for it at the same time.
        waited = min(seconds, sums["waited_seconds"] + present)
        scale = waited / (sum(parts.values()) or 1.0)
        reading = ReadingStats(
            seconds=scale * parts["reading"],
            bytes=int(sums["bytes_received"] + sums["bytes_from_disk"]),
            requests=int(sums["requests"]),
            retries=int(sums["retries"]),
        )
        return StreamStats(
            seconds=seconds,
            waited=waited,
            own=seconds - waited,
            is_mapped=is_mapped,
            reading=reading,
            functions=scale * parts["functions"],
            hand_over=scale * parts["hand_over"],
            copies_hit=int(sums["copies_hit"]),
            copies_missed=int(sums["copies_missed"]),
        )
