"""Replace elements that fail by others of the same epoch; docs/order.md specifies which.

The element of a position fails if its record does not decode, or if a function that replaces failures raises an error
for it. Attempt a = 1, 2, ... at the position draws another record by (seed, position, a), and functions get its element
with the random numbers of (seed, position, a). A record that has failed at the position is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.protocols import Failed, RecordReads, reads_blocks
from cachelayer.streams.failures import Failure, bare, none_left, too_many
from cachelayer.streams.maps import Trial
from cachelayer.streams.order import Draws, Ordering, mix, round_keys

Indices = NDArray[np.int64]

MOST_ATTEMPTS = 32
"""The number of attempts at a position."""
# No stream has so many epochs, and no split so many segments.
_FIRST_KEY = 3 << 62
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Rows:
    """Records that are read for some positions.

    Args:
        numbers: the record numbers.
        positions: the global positions.
        source: reads these records; perhaps out of blocks that are at hand.
    """

    numbers: Indices
    positions: Indices
    source: RecordReads[Any]

    def __getitem__(self, rows: Indices) -> Rows:
        return Rows(self.numbers[rows], self.positions[rows], self.source)


Read = Callable[[Failed], Sequence[Any]]
Make = Callable[[Rows, Trial, Read], Sequence[Any]]
"""Makes the elements of rows with what reads them; adds the errors of those that fail to the trial."""


@dataclass(frozen=True)
class StandIns:
    """Finds other records for elements that fail.

    Args:
        order: the order of the stream.
        epoch_records: the number of positions of an epoch.
        records: the records.
        limit: the greatest number of failures in what is read at once.
    """

    order: Ordering
    epoch_records: int
    records: RecordReads[Any]
    limit: int

    def drawn(self, numbers: Indices, positions: Indices, attempt: int) -> Indices:
        """Return the record that an attempt draws for each position.

        Args:
            numbers: the records there, which have failed.
            positions: the positions.
            attempt: the number of the attempt, from 1.
        """
        words = [self._word(position, attempt) for position in positions.tolist()]
        epochs, places = np.divmod(positions, self.epoch_records)
        found = np.empty_like(numbers)
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            draws = Draws(numbers[rows], [words[row] for row in rows.tolist()], attempt)
            found[rows] = self.order.stand_ins(epoch, places[rows], draws)
        return found

    def _word(self, position: int, attempt: int) -> int:
        first, second, *_ = round_keys(self.order.seed or 0, _FIRST_KEY + position)
        return mix(mix(attempt + first & _MASK) ^ second)

    def _read(self, of: Rows, rows: Indices, numbers: Indices, failed: Failed) -> list[Any]:
        """Return the elements of records that stand in for some rows; what is not at hand takes one read.

        Args:
            of: the rows of the step.
            rows: which of them.
            numbers: the record that stands in for each.
            failed: gets the errors of those that do not decode.
        """
        source = of.source
        if not reads_blocks(source):
            return list(source.elements(numbers, failed))
        found: list[Any] = [None] * len(rows)
        near = self._in_blocks(of.positions[rows], numbers)
        at_hand = source.beside(rows[near], (numbers - of.numbers[rows])[near])
        for which, reads in ((np.flatnonzero(near), at_hand), (np.flatnonzero(~near), self.records)):
            if len(which) == 0:
                continue
            errors: Failed = {}
            for row, element in zip(which.tolist(), reads.elements(numbers[which], errors), strict=True):
                found[row] = element
            failed.update({int(which[row]): error for row, error in errors.items()})
        return found

    def _in_blocks(self, positions: Indices, numbers: Indices) -> NDArray[np.bool_]:
        """Return for each position whether a record lies in the block that is read for it."""
        epochs, places = np.divmod(positions, self.epoch_records)
        found = np.zeros(len(positions), np.bool_)
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            spans = self.order.blocks_at(epoch, places[rows])
            if spans is not None:
                found[rows] = (spans.begin <= numbers[rows]) & (numbers[rows] < spans.end)
        return found

    def replaced(self, of: Rows, make: Make) -> tuple[Sequence[Any], list[Failure]]:
        """Return the elements of rows, others in place of those that fail, and the failures in order of position.

        Raises:
            ElementError: if no attempt at a position succeeds, or there are too many failures.
        """
        failed: Failed = {}
        made = make(of, Trial(0, failed), lambda failed: of.source.elements(of.numbers, failed))
        if not failed:
            return made, []
        out, failures = list(made), _failures(of, failed)
        if len(failures) > self.limit:
            raise too_many(failures.values(), self.limit)
        # The records that were tried for each row: the last one stands in if the row does not wait.
        tried = {row: [int(of.numbers[row])] for row in failed}
        waiting = sorted(failed)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            drawn = self.drawn(of.numbers[waiting], of.positions[waiting], attempt).tolist()
            fresh = [(row, number) for row, number in zip(waiting, drawn, strict=True) if number not in tried[row]]
            for (row, number), element, error in self._attempt(of, fresh, attempt, make):
                tried[row].append(number)
                if error is None:
                    out[row] = element
                    waiting.remove(row)
                else:
                    failed[row] = error
            if not waiting:
                return out, [replace(each, stand_in=tried[row][-1]) for row, each in failures.items()]
        row = waiting[0]
        raise none_left(int(of.positions[row]), tried[row], failed[row])

    def _attempt(
        self, of: Rows, drawn: Sequence[tuple[int, int]], attempt: int, make: Make
    ) -> list[tuple[tuple[int, int], Any, Exception | None]]:
        """Return the elements and the errors of records that are tried for some rows: ``drawn`` has row and record."""
        if not drawn:
            return []
        rows, numbers = np.array(drawn, np.int64).T
        failed: Failed = {}
        made = make(
            Rows(numbers, of.positions[rows], of.source),
            Trial(attempt, failed),
            lambda failed: self._read(of, rows, numbers, failed),
        )
        return [(each, made[index], failed.get(index)) for index, each in enumerate(drawn)]


def _failures(of: Rows, failed: Failed) -> dict[int, Failure]:
    """Return the failure of each row, in order of position, before anything stands in.

    Rows of padding repeat a position, and are left out.
    """
    found: dict[int, int] = {}
    for row in sorted(failed):
        found.setdefault(int(of.positions[row]), row)
    return {
        row: Failure(int(of.numbers[row]), position, _of(failed[row], int(of.numbers[row])), -1)
        for position, row in sorted(found.items())
    }


def _of(error: Exception, number: int) -> Exception:
    """Return an error that names the record by its number in the stream, not in the dataset."""
    if not isinstance(error, ElementError) or error.record in (None, number):
        return bare(error)
    named = error.at(record=number)
    named.__cause__ = error.__cause__
    return bare(named)
