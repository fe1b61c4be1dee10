"""Fetch the documents of blocks of windows, and cut the windows out of them: what streams use as a ``BlockHolder``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from cachelayer.access.block_holder import HeldReads, ReadsRecords, held_records
from cachelayer.access.held import Held, fetched
from cachelayer.access.record_base import Read
from cachelayer.access.sequences.documents import Documents
from cachelayer.protocols import BlocksAhead
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection


class OfDocuments(ReadsRecords, Protocol):
    """Windows over documents."""

    @property
    def documents(self) -> Documents:
        """The documents."""

    def documents_of(self, numbers: Ints) -> Ints:
        """Return the documents of which some windows hold values."""


@dataclass(frozen=True, eq=False)
class HeldDocuments:
    """The documents of a block of windows.

    Args:
        held: the documents.
        numbers: the record number of each in the base, ascending.
    """

    held: Held
    numbers: Ints

    @property
    def damaged(self) -> bool:
        """True if reading has found a damaged record."""
        return self.held.damaged


@dataclass(frozen=True)
class WindowBlocks:
    """Blocks of windows.

    Args:
        base: all windows.
        selection: the windows that the view has.
        share: the fraction of the windows that is going to be fetched.
    """

    base: OfDocuments
    selection: Selection
    share: float

    def fetch(self, numbers: Ints) -> HeldDocuments:
        """Fetch the documents of windows by their numbers in the view; neighbours are one request."""
        view = self.base.documents.view
        documents = self.base.documents_of(self.selection.take(numbers))
        # In the order of the base, neighbours lie together.
        documents = np.unique(view._selection.numbers_of(documents))
        return HeldDocuments(fetched(partial(view._base.hold, documents, self.share)), documents)

    def expecting(self, blocks: BlocksAhead) -> WindowBlocks:  # noqa: ARG002
        """Return itself: nothing is known of documents before their windows are fetched."""
        return self

    def reads(self, blocks: Sequence[HeldDocuments], owner: Ints, rows: Ints) -> HeldReads:  # noqa: ARG002
        """Return what reads windows out of blocks."""
        return HeldReads(self.base, self.selection, _reader(blocks))


def _reader(blocks: Sequence[HeldDocuments]) -> Read:
    """Return what reads documents by their record numbers; one that is in two blocks is read out of either."""
    numbers = np.concatenate([block.numbers for block in blocks])
    owner = np.repeat(np.arange(len(blocks)), [len(block.numbers) for block in blocks])
    rows = np.concatenate([np.arange(len(block.numbers)) for block in blocks])
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]

    def read(wanted: Ints) -> Records:
        at = order[numbers.searchsorted(wanted)]
        return held_records([block.held for block in blocks], owner[at], rows[at])

    return read
