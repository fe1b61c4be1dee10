"""What an iterator's consumer waited for, in seconds, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from cachelayer.progress import size

# From this share of the time on, a consumer that waits is told what to do about it; less than that is not named.
_MUCH, _LITTLE = 0.1, 0.01
_DECODING = "leave fields out with fields(), decode images to the size that you need, or read in several processes"
_FUNCTIONS = "make the functions faster, pass threads= to map() if they release the GIL, or read in several processes"
_AHEAD = 'pass shuffle="blocks" or a larger prefetch'
_HAND_OVER = "pass larger batches or, if worker processes read, more workers"


@dataclass(frozen=True)
class ReadingStats:
    """What reading for an iterator took.

    Args:
        seconds: how long its consumer waited for it.
        bytes: bytes that came over the network, and bytes of the records that were read on this host.
        requests: requests to the store.
        retries: how many of them were made again, because they failed.
    """

    seconds: float = 0.0
    bytes: int = 0
    requests: int = 0
    retries: int = 0

    def __str__(self) -> str:
        made = f" in {self.requests:,} requests" if self.requests else ""
        again = f", {self.retries:,} of them again" if self.retries else ""
        return f"reading {self.seconds:.3g} s ({size(self.bytes)}{made}{again})"


@dataclass(frozen=True)
class StreamStats:
    """How long the consumer of an iterator waited for it, and for what; ``str()`` says so, and what to do about it.

    Args:
        seconds: from the first call of ``next()`` until now, or until the end of the stream.
        waited: how long the consumer was in ``next()`` without an item to take. It is the sum of the seconds of
            ``reading``, ``decoding``, ``functions`` and ``hand_over``.
        own: what remains: how long the consumer did its own work.
        is_mapped: whether the stream has functions.
        reading: the part of ``waited`` that the records took to come, over the network or from a disk.
        decoding: the part that making elements and batches of them took; reading from memory is in it.
        functions: the part that the functions of the stream took.
        hand_over: the part that all else took: arrays of a framework, the way from thread to thread, and all that
            worker processes do.
        copies_hit: records of remote shards that were read from local copies.
        copies_missed: those that were read over the network, though copies are kept.
    """

    seconds: float
    waited: float
    own: float
    is_mapped: bool = True
    reading: ReadingStats = ReadingStats()
    decoding: float = 0.0
    functions: float = 0.0
    hand_over: float = 0.0
    copies_hit: int = 0
    copies_missed: int = 0

    def __str__(self) -> str:
        if not self.seconds:
            return "nothing read yet"
        share = self.waited / self.seconds
        percent = f"{share:.0%}".replace("%", " %")
        line = f"waited for data {percent} of the time ({self.waited:.3g} of {self.seconds:.3g} s)"
        parts = [
            (self.reading.seconds, str(self.reading), self._reading_advice),
            (self.decoding, f"decoding {self.decoding:.3g} s", _DECODING),
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
        return f"the records are not in memory: {_AHEAD}"
