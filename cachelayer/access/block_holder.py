"""Fetch blocks of records of a view, and read records out of them: what streams use as a ``BlockHolder``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelayer.access.held import Held, records_of
from cachelayer.access.record_base import RecordBase
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection


@dataclass(frozen=True)
class ViewBlocks:
    """Blocks of the records of a view.

    Args:
        base: the base of the view.
        selection: the records of the base that the view has.
        share: the fraction of the records that is going to be fetched.
    """

    base: RecordBase
    selection: Selection
    share: float

    def fetch(self, numbers: Ints) -> Held:
        """Fetch records by their numbers in the view; what lies together in the base is one request."""
        return self.base.hold(self.selection.take(numbers), self.share)

    def reads(self, blocks: Sequence[Held], owner: Ints, rows: Ints) -> HeldReads:
        """Return what reads records out of blocks."""
        return HeldReads(self, blocks, owner, rows)


@dataclass(frozen=True, eq=False)
class HeldReads:
    """Reads certain records out of blocks.

    Args:
        holder: whose records they are.
        blocks, owner, rows: where they are; see :func:`records_of`.
    """

    holder: ViewBlocks
    blocks: Sequence[Held]
    owner: Ints
    rows: Ints

    def __getitems__(self, numbers: Ints) -> list[Any]:
        return self.holder.base.elements(self.holder.selection.take(numbers), self._records)

    def read(self, numbers: Ints) -> Any:
        return self.holder.base.batch(self.holder.selection.take(numbers), None, self._records)

    def read_batches(self, batches: Sequence[Ints]) -> list[Any]:
        selection = self.holder.selection
        return self.holder.base.batches([selection.take(numbers) for numbers in batches], self._records)

    def _records(self, _numbers: Ints) -> Records:
        try:
            return records_of(self.blocks, self.owner, self.rows)
        except CorruptionError:
            self._mark_damaged()
            raise

    def _mark_damaged(self) -> None:
        """Mark the blocks that have a damaged record among those that are read."""
        for number in np.unique(self.owner).tolist():
            rows = self.rows[self.owner == number]
            try:
                records_of(self.blocks[number : number + 1], np.zeros_like(rows), rows)
            except CorruptionError:
                self.blocks[number].damaged = True
