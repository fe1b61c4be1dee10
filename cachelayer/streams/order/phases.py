"""The phases of a stream that has advanced to more records: all epochs of a phase run over the same records.

Four records were appended to ten while epoch 1 was under way. They come once by themselves, then epoch 2 has all 14::

    position    0 ..... 9 | 10 .... 19 | 20 .... 23 | 24 .... 37 | 38 ...
    epoch       0         | 1          | (no epoch) | 2          | 3
    phase       records 0 to 9         | 10 to 13   | records 0 to 13

A part of a mixture has phases of its own, whose positions are its turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cachelayer.streams.order.orders import Order


class Phase(NamedTuple):
    """Epochs over the same records, one after another. States call it a segment."""

    begin: int
    """The position where its first epoch begins."""
    order: Order
    """The order of its records."""
    epoch: int = 0
    """The number of its first epoch."""
    first: int = 0
    """The number of its first record."""
    digest: str = ""
    """The digest of all records up to its last one; empty for the last phase: it has the records of the stream."""

    @property
    def records(self) -> int:
        """The number of records up to its last one."""
        return self.first + self.order.length


def with_last(earlier: Sequence[Phase], order: Order) -> tuple[Phase, ...]:
    """Return all phases: those before the last one, and the last, which has the order of all records."""
    if not earlier:
        return (Phase(0, order),)
    before = earlier[-1]
    return (*earlier, Phase(before.begin + before.order.length, order, before.epoch))


def advanced(phases: Sequence[Phase], position: int, records: int, digest: str, newer: str) -> tuple[Phase, ...]:
    """Return the phases before the last one of a stream that goes on over more records.

    The change comes at the end of the epoch under way at a position; between two epochs, that is the epoch that has
    just ended. Then the new records come once, in a phase of their own, which counts as no epoch. Then all come.

    ``digest`` is that of the records so far, ``newer`` that of all.
    """
    index = max((number for number, phase in enumerate(phases) if phase.begin < position), default=0)
    phase = phases[index]
    if not phase.digest:
        phase = phase._replace(digest=digest)
    length = phase.order.length
    # The epoch under way counts.
    epochs = max(1, -((phase.begin - position) // length))
    # A phase of new records, which begins behind record 0, is no epoch.
    epoch = phase.epoch if phase.first else phase.epoch + epochs
    order = phases[-1].order.over(records - phase.records)
    new = Phase(phase.begin + epochs * length, order, epoch, phase.records, newer)
    return (*phases[:index], phase, new)


def as_lists(phases: Iterable[Phase]) -> list[list[Any]]:
    """Return what a state says of the phases before the last one."""
    return [[phase.begin, phase.order.length, phase.epoch, phase.first, phase.digest] for phase in phases]


def from_lists(lists: Any, order: Order) -> tuple[Phase, ...]:
    """Return the phases that a state names, the last of which ends with the last record of an order."""
    phases: list[Phase] = []
    for *numbers, digest in lists:
        begin, count, epoch, first = map(checked_count, numbers)
        if phases:
            before = phases[-1]
            known = before.records
            follows = begin > before.begin and (begin - before.begin) % before.order.length == 0
        else:
            known = 0
            follows = begin == 0
        # A phase has the new records by themselves, or all records that there are by then.
        if not (follows and count and first in (0, known) and first + count >= known):
            raise ValueError(f"{numbers} do not follow")
        phases.append(Phase(begin, order.over(count), epoch, first, str(digest)))
    if phases and phases[-1].records != order.length:
        raise ValueError(f"they end with {phases[-1].records} records")
    return tuple(phases)


def checked_count(number: Any) -> int:
    """Return a number of a state that counts something; raise ValueError for anything else."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{number!r} counts nothing")
    return number
