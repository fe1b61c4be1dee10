"""Replace elements that fail by others of the same epoch; docs/order.md specifies which.

The element of a position fails if its record does not decode, or if a function that replaces failures raises an error
for it. Attempt a = 1, 2, ... at the position draws another record by (seed, position, a), and functions get its element
with the random numbers of (seed, position, a). A record that has failed at the position is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.protocols import Failed, RecordReads, reads_blocks
from cachelayer.streams.failures import Failure, bare, none_left, too_many
from cachelayer.streams.maps import Trial
from cachelayer.streams.order import Draws, Ordering
from cachelayer.streams.permutation import GOLDEN_RATIO, MASK, mix, round_keys

Indices = NDArray[np.int64]

MOST_ATTEMPTS = 32
"""The number of attempts at a position."""
# No stream has so many epochs, and no split so many segments.
_EPOCH = 3 << 62


def words_of(seed: int, positions: Indices, attempt: int) -> list[int]:
    """Return the random word, in [0, 2**64), by which an attempt at each position draws a record."""
    first, second = _keys(seed)
    return [
        mix(mix(mix(position + first & MASK) ^ second) + attempt * GOLDEN_RATIO & MASK)
        for position in positions.tolist()
    ]


@lru_cache(maxsize=64)
def _keys(seed: int) -> tuple[int, int]:
    first, second, *_ = round_keys(seed, _EPOCH)
    return first, second


@dataclass(frozen=True)
class ReplacedRows:
    """Records that are read for some positions.

    Args:
        numbers: the record numbers.
        positions: the global positions.
        source: reads these records; perhaps out of blocks that are at hand.
    """

    numbers: Indices
    positions: Indices
    source: RecordReads[Any]

    def __getitem__(self, rows: Indices) -> ReplacedRows:
        return ReplacedRows(self.numbers[rows], self.positions[rows], self.source)


Read = Callable[[Failed], Sequence[Any]]
Make = Callable[[ReplacedRows, Trial, Read], Sequence[Any]]
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
        words = words_of(self.order.seed or 0, positions, attempt)
        found = np.empty_like(numbers)
        for epoch, places, rows in self._epochs(positions):
            draws = Draws(numbers[rows], [words[row] for row in rows], attempt)
            found[rows] = self.order.stand_ins(epoch, places, draws)
        return found

    def _epochs(self, positions: Indices) -> Iterator[tuple[int, Indices, list[int]]]:
        """Yield each epoch in which positions lie, their places in it, and which of the positions they are."""
        located = [divmod(position, self.epoch_records) for position in positions.tolist()]
        for chosen in dict.fromkeys(epoch for epoch, _ in located):
            rows = [row for row, (epoch, _) in enumerate(located) if epoch == chosen]
            yield chosen, np.array([located[row][1] for row in rows], np.int64), rows

    def _read(self, of: ReplacedRows, rows: Indices, numbers: Indices, failed: Failed) -> list[Any]:
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
        if at_hand is None:
            return list(self.records.elements(numbers, failed))
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
        found = np.zeros(len(positions), np.bool_)
        for epoch, places, rows in self._epochs(positions):
            spans = self.order.blocks_at(epoch, places)
            if spans is not None:
                found[rows] = (spans.begin <= numbers[rows]) & (numbers[rows] < spans.end)
        return found

    def replaced(self, of: ReplacedRows, make: Make) -> tuple[Sequence[Any], list[Failure]]:
        """Return the elements of rows, others in place of those that fail, and the failures in order of position.

        Raises:
            ElementError: if no attempt at a position succeeds, or there are too many failures.
        """
        failed: Failed = {}
        made = make(of, Trial(0, failed), lambda failed: of.source.elements(of.numbers, failed))
        if not failed:
            return made, []
        out = list(made)
        # Rows of padding repeat a position, and count once.
        first = {int(of.positions[row]): row for row in sorted(failed, reverse=True)}
        errors = dict(failed)
        if len(first) > self.limit:
            raise too_many([_failure(of, row, errors[row], -1) for _, row in sorted(first.items())], self.limit)
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
                return out, [_failure(of, row, errors[row], tried[row][-1]) for _, row in sorted(first.items())]
        row = waiting[0]
        raise none_left(int(of.positions[row]), tried[row], failed[row])

    def _attempt(
        self, of: ReplacedRows, drawn: Sequence[tuple[int, int]], attempt: int, make: Make
    ) -> list[tuple[tuple[int, int], Any, Exception | None]]:
        """Return the elements and the errors of records that are tried for some rows: ``drawn`` has row and record."""
        if not drawn:
            return []
        rows, numbers = np.array(drawn, np.int64).T
        failed: Failed = {}
        made = make(
            ReplacedRows(numbers, of.positions[rows], of.source),
            Trial(attempt, failed),
            lambda failed: self._read(of, rows, numbers, failed),
        )
        return [(each, made[index], failed.get(index)) for index, each in enumerate(drawn)]


def _failure(of: ReplacedRows, row: int, error: Exception, stand_in: int) -> Failure:
    """Return the failure of a row; its error names the record by its number in the stream, not in the dataset."""
    number = int(of.numbers[row])
    if isinstance(error, ElementError) and error.record not in (None, number):
        named = error.at(record=number)
        named.__cause__ = error.__cause__
        error = named
    return Failure(number, int(of.positions[row]), bare(error), stand_in)
