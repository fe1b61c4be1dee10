"""What an iterator has done so far, and what limits its speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cachelayer.tally import Origin

# From this share of the time on, a consumer that waits is told what to do about it.
_MUCH = 0.1
_MANY_RETRIES = 0.02

_ADVICE = {
    "mapping": "make the functions faster, pass threads= to map() if they release the GIL, cache what they return, or "
    "read in several processes",
    "collating": "return arrays of one shape from map(), or work on whole batches with map_batches()",
    "decoding": (
        "have images made smaller with decoded(), cache decoded arrays, leave leaves out with fields(), or read in "
        "several processes"
    ),
    "memory_map": "leave leaves out with fields(), or read in several processes",
    "disk": 'the records are not in memory: pass shuffle="blocks", use a faster disk, or more memory',
    "range": 'they come over the network: pass shuffle="blocks" or a larger prefetch, or copy the version to this '
    "host first (cachelayer mirror)",
    "copy": "leave leaves out with fields(), or read in several processes",
    "foreign": "an object that is not cached makes the records: cache it",
}


@dataclass(frozen=True)
class StreamStats:
    """What an iterator has done so far; ``str()`` says in one line whether its consumer waits, and for what.

    Two sums hold. The consumer's time is ``seconds = waited + own``. The time of the thread that reads ahead is
    ``seconds + helped = reading + decoding + mapping + collating + idle``.

    Args:
        seconds: from the first call of ``next()`` until now, or until the end of the stream.
        waited: how long the consumer was in ``next()`` without an item to take.
        own: what remains: how long the consumer did its own work.
        reading: how long stored bytes were read: requests, waits for the disk, copies from mapped files.
        decoding: how long values were made of them: decompression, images and audio, text, padding.
        mapping: how long functions passed to ``map`` and ``map_batches`` ran, and what they returned was checked.
        collating: how long the elements that functions returned were stacked to batches.
        idle: how long nothing was read, because enough was read ahead; with ``prefetch=0``, because the consumer was
            busy.
        helped: how much of this work the consumer did itself, beside the thread, instead of waiting for it.
        records: rows of the batches, or elements, that were handed out, padding included.
        nbytes: bytes of the records that were read, including those read ahead: from files of the storage that were in
            ``"memory_map"``, from files that had to be loaded from ``"disk"`` (a sample of each read tells), by
            requests to an object store (``"range"``), and from a local ``"copy"`` of a shard.
        requests: requests to object stores. Local copies are shared by all iterators, so those that make them are not
            counted.
        retries: how many of these requests repeat one that failed.
        queue_depth: batches or elements that are ready now.
        prefetch: the batches or elements that the stream reads ahead.
    """

    seconds: float
    waited: float
    own: float
    reading: float
    decoding: float
    mapping: float
    collating: float
    idle: float
    helped: float
    records: int
    nbytes: Mapping[Origin, int]
    requests: int
    retries: int
    queue_depth: int
    prefetch: int

    @property
    def bottleneck(self) -> str | None:
        """The work that takes the most: "reading", "decoding", "mapping" or "collating"; None if none was measured."""
        found = max(self._work, key=self._work.__getitem__)
        return found if self._work[found] > 0 else None

    @property
    def _work(self) -> dict[str, float]:
        return {
            "reading": self.reading,
            "decoding": self.decoding,
            "mapping": self.mapping,
            "collating": self.collating,
        }

    def __str__(self) -> str:
        if not self.seconds:
            return "nothing read yet"
        share = self.waited / self.seconds
        line = f"waited for data {_percent(share)} of the time ({self.waited:.3g} of {self.seconds:.3g} s)"
        return line if share < _MUCH else f"{line}; {self._cause()}"

    def _cause(self) -> str:
        """Return what the consumer waited for, and what to do about it."""
        work, found = sum(self._work.values()), self.bottleneck
        if found is None and not self.records:
            return "no records have come"
        if found is None:
            return "other processes read for it, and measure nothing: start more of them"
        if self.prefetch == 0 and self.own > work * _MUCH:
            return f"nothing is read ahead: leave out prefetch=0 ({found} takes the most)"
        # While the consumer worked, the thread could have read what the consumer waited for later.
        if self.prefetch and min(self.idle, self.own) > self.waited:
            idle = _percent(self.idle / (self.seconds + self.helped))
            return f"reading ahead was idle {idle} of the time, so some batches take long: pass a larger prefetch"
        takes = f"{found} takes the most ({_percent(self._work[found] / work)} of the work)"
        return f"{takes}: {self._advice(found)}"

    def _advice(self, bottleneck: str) -> str:
        if bottleneck != "reading":
            return _ADVICE[bottleneck]
        origin = max(self.nbytes, key=self.nbytes.__getitem__)
        advice = _ADVICE[origin if self.nbytes[origin] else "foreign"]
        if self.retries <= _MANY_RETRIES * self.requests:
            return advice
        repeated = f"{self.retries} of {self.requests} requests repeat one that failed"
        return f"{repeated}: is the store overloaded? If not: {advice}"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
