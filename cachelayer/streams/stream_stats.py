"""What an iterator has done so far, and what limits its speed."""

from __future__ import annotations

from dataclasses import dataclass

# From this share of the time on, a consumer that waits is told what to do about it.
_MUCH = 0.1


@dataclass(frozen=True)
class StreamStats:
    """How long the consumer of an iterator waited for it; ``str()`` says so in one line, and what to do about it.

    The consumer's time is ``seconds = waited + own``.

    Args:
        seconds: from the first call of ``next()`` until now, or until the end of the stream.
        waited: how long the consumer was in ``next()`` without an item to take.
        own: what remains: how long the consumer did its own work.
        mapping: how long functions passed to ``map`` and ``map_batches`` ran for the items so far, ahead of need or
            not.
    """

    seconds: float
    waited: float
    own: float
    mapping: float

    def __str__(self) -> str:
        if not self.seconds:
            return "nothing read yet"
        share = self.waited / self.seconds
        shown = f"{share:.0%}".replace("%", " %")
        line = f"waited for data {shown} of the time ({self.waited:.3g} of {self.seconds:.3g} s)"
        if share < _MUCH:
            return line
        if self.mapping > self.waited / 2:
            return (
                f"{line}; the functions take the most ({self.mapping:.3g} s): make them faster, pass threads= to map() "
                "if they release the GIL, cache what they return, or read in several processes"
            )
        return (
            f"{line}; reading takes the most: leave leaves out with fields(), or read in several processes; if the "
            'records are not in memory, pass shuffle="blocks" or a larger prefetch, or copy them to this host first '
            "(cachelayer mirror)"
        )
