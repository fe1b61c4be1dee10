"""Fetch blocks of records of a view, and read records out of them: what streams use as a ``BlockHolder``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cachelayer.access.dataset import NO_NUMBERS, Read, cut_batches, read_each
from cachelayer.errors import CorruptionError
from cachelayer.protocols import Failed
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.records.tree import Tree


@dataclass(eq=False, slots=True, weakref_slot=True)
class FetchedBlock:
    """Records that were fetched together, checked and decompressed.

    Args:
        records: the records; those that streams hold are in one buffer without block headers.
        broken: the rows of those that did not match their checksums, although they were fetched twice.
    """

    records: Records
    broken: frozenset[int] = frozenset()

    @classmethod
    def joined(cls, count: int, groups: Sequence[tuple[Ints, FetchedBlock]]) -> FetchedBlock:
        """Return the blocks of several groups of records as one: for each group, the rows that it has."""
        records = Records.joined(count, [(rows, block.records) for rows, block in groups])
        return cls(records, frozenset(int(rows[row]) for rows, block in groups for row in block.broken))

    def unmapped(self) -> FetchedBlock:
        """Return the block with its records in one buffer, as streams hold them."""
        return FetchedBlock(self.records.unmapped(), self.broken)

    @property
    def nbytes(self) -> int:
        """The bytes of the records in memory."""
        return self.records.buffer.nbytes + self.records.starts.nbytes + self.records.lengths.nbytes


class ReadsRecords(Protocol):
    """Makes elements and batches of records that may come from elsewhere, if ``read`` is given."""

    @property
    def element_spec(self) -> Tree: ...
    def elements(self, numbers: Ints, read: Read | None = None) -> list[Any]: ...
    def batch(self, numbers: Ints, names: Sequence[str] | None = None, read: Read | None = None) -> Any: ...


class HoldsBlocks(Protocol):
    """Fetches blocks of records; see :class:`cachelayer.access.record_elements.RecordSource`."""

    def hold(self, numbers: Ints) -> FetchedBlock: ...


@dataclass(frozen=True)
class ViewBlocks:
    """Blocks of the records of a view.

    Args:
        base: makes elements of the records.
        source: where they are fetched from.
        selection: the records that the view has.
    """

    base: ReadsRecords
    source: HoldsBlocks
    selection: Selection

    def fetch(self, numbers: Ints) -> FetchedBlock:
        """Fetch records by their numbers in the view; what lies together in the base is one request."""
        return self.source.hold(self.selection.take(numbers))

    def reads(self, blocks: Sequence[FetchedBlock], owner: Ints, rows: Ints) -> HeldReads:
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

    def read_batches(self, batches: Sequence[Ints]) -> Iterable[Any]:
        chosen = self.selection.take(np.concatenate([NO_NUMBERS, *batches]))
        sizes = list(map(len, batches))
        return cut_batches(
            lambda some: self.base.batch(chosen[some], None, self._read(some)), self.base.element_spec, sizes
        )


def held_records(blocks: Sequence[FetchedBlock], owner: Ints, rows: Ints) -> Records:
    """Return copies of records of blocks: for each, which of the blocks it is in, and its row there.

    Raises:
        CorruptionError: if one of them is damaged.
    """
    for number, block in enumerate(blocks):
        broken = [row for row in rows[owner == number].tolist() if row in block.broken] if block.broken else []
        if broken:
            raise CorruptionError(f"{block.records.name(broken[0])} does not match its checksum")
    return Records.gathered([block.records for block in blocks], owner, rows)
