"""Fetch blocks of records of a view, and read records out of them: what streams use as a ``BlockHolder``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from cachelayer.access.dataset import Read, read_each
from cachelayer.access.held import Held, fetched, records_of
from cachelayer.errors import CorruptionError
from cachelayer.protocols import Failed
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection


class ReadsRecords(Protocol):
    """Makes elements and batches of records that may come from elsewhere, if ``read`` is given."""

    def elements(self, numbers: Ints, read: Read | None = None) -> list[Any]: ...
    def batch(self, numbers: Ints, names: Sequence[str] | None = None, read: Read | None = None) -> Any: ...
    def batches(self, batches: Sequence[Ints], read: Read | None = None) -> list[Any]: ...


class HoldsBlocks(Protocol):
    """Fetches blocks of records; see :class:`cachelayer.access.record_elements.RecordSource`."""

    def hold(self, numbers: Ints, share: float) -> Held: ...


@dataclass(frozen=True)
class ViewBlocks:
    """Blocks of the records of a view.

    Args:
        base: makes elements of the records.
        source: where they are fetched from.
        selection: the records that the view has.
        share: the fraction of the records that is going to be fetched.
    """

    base: ReadsRecords
    source: HoldsBlocks
    selection: Selection
    share: float

    def fetch(self, numbers: Ints) -> Held:
        """Fetch records by their numbers in the view; what lies together in the base is one request."""
        return fetched(partial(self.source.hold, self.selection.take(numbers), self.share))

    def reads(self, blocks: Sequence[Held], owner: Ints, rows: Ints) -> HeldReads:
        """Return what reads records out of blocks."""
        return HeldReads(self.base, self.selection, lambda _, which: held_records(blocks, owner[which], rows[which]))


@dataclass(frozen=True, eq=False)
class HeldReads:
    """Reads certain elements out of blocks.

    Args:
        base: makes them of records.
        selection: the elements of the base that the view has.
        read_records: given record numbers, and which of the elements they are for, returns the records.
    """

    base: ReadsRecords
    selection: Selection
    read_records: Callable[[Ints, Any], Records]

    def _read(self, which: Any = slice(None)) -> Read:
        return lambda numbers: self.read_records(numbers, which)

    def __getitems__(self, numbers: Ints) -> list[Any]:
        return self.base.elements(self.selection.take(numbers), self._read())

    def elements(self, numbers: Ints, failed: Failed) -> list[Any]:
        chosen = self.selection.take(numbers)
        rows = np.arange(len(chosen))
        return read_each(lambda which: self.base.elements(chosen[which], self._read(which)), rows, failed)

    def read(self, numbers: Ints) -> Any:
        return self.base.batch(self.selection.take(numbers), None, self._read())

    def read_batches(self, batches: Sequence[Ints]) -> list[Any]:
        return self.base.batches([self.selection.take(numbers) for numbers in batches], self._read())


def held_records(blocks: Sequence[Held], owner: Ints, rows: Ints) -> Records:
    """Return some records of blocks, as :func:`records_of` does.

    Blocks with a damaged one among these records are marked, and fetched once more: the bytes may have been damaged on
    their way, or the object mended since.
    """
    try:
        return records_of(blocks, owner, rows)
    except CorruptionError:
        newest, again = list(blocks), list[int]()
        for number in np.unique(owner).tolist():
            mine = rows[owner == number]
            try:
                records_of(blocks[number : number + 1], np.zeros_like(mine), mine)
            except CorruptionError:
                blocks[number].damaged = True
                newest[number] = blocks[number].again()
                again.append(number)
        found = records_of(newest, owner, rows)
        for number in again:
            # Its other records are read from what came last, too.
            blocks[number].damaged = newest[number].damaged
        return found
