"""Windows of fixed length over the values of a leaf, all documents one after another: by arithmetic and bisection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.block_holder import HeldReads, held_records
from cachelayer.access.elements import Read
from cachelayer.access.held import Held, fetched
from cachelayer.access.record_elements import RecordElements
from cachelayer.access.sequences.documents import ArraysBase, Documents, check_keys, derived_digest, fill_hex
from cachelayer.access.view import View
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.locks import cached_property
from cachelayer.protocols import BlockHolder
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.pieces import DocumentPiece, Pieces
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree

# Windows of longer documents, on average, are not held in blocks.
_LONG_NBYTES = 1 << 16
Remainder = Literal["drop", "pad"]


@dataclass(frozen=True)
class Windowing:
    """How the concatenation of all documents is cut into windows: window i begins at value ``i * stride``.

    Args:
        length: the number of values of a window.
        stride: how far a window begins after the one before it.
        extra: 1 if a separator stands after each document, else 0.
        remainder: "drop" leaves out windows that reach past the last value; "pad" has the first of them, if the windows
            before it do not hold all values.
    """

    length: int
    stride: int
    extra: int = 0
    remainder: Remainder = "drop"

    def count(self, total: int) -> int:
        """Return the number of windows over so many values, separators among them."""
        if self.remainder == "drop":
            return max(0, (total - self.length) // self.stride + 1)
        # The last window is the first that reaches the end, unless it would begin after it.
        last = max(0, -(-(total - self.length) // self.stride))
        return last + 1 if last * self.stride < total else last

    def pieces(self, column: LengthColumn, numbers: Ints) -> tuple[Pieces, Ints, Ints]:
        """Return what some windows hold.

        Args:
            column: the lengths of all documents.
            numbers: the windows, each less than ``count``.

        Returns:
            The pieces; the place of each separator, where the cells of all windows are numbered one after another; and
            the number of cells in each window that the values reach.
        """
        begins = numbers * self.stride
        filled = np.minimum(column.total + len(column) * self.extra - begins, self.length)
        # Both ends of a window follow each other, so that what the search for one reads is at hand for the other.
        found, places = column.locate(np.stack([begins, begins + filled - 1], axis=1).reshape(-1), self.extra)
        first, places = found[::2], places[::2]
        counts = found[1::2] - first + 1
        splits = splits_of(counts)
        row = np.repeat(np.arange(len(numbers)), counts)
        record = np.arange(splits[-1]) - (splits[:-1] - first)[row]
        lengths = column.take(record)
        # Where each document begins in its window: before the window, for the first.
        ends = splits_of(lengths + self.extra)
        at = ends[:-1] - (ends[splits[:-1]] + places)[row]
        begin = np.maximum(-at, 0)
        count = np.minimum(lengths, filled[row] - at) - begin
        pieces = Pieces(row, record, begin, count, np.maximum(at, 0), begin + count == lengths).not_empty()
        separators = np.empty(0, np.int64)
        if self.extra:
            place = at + lengths
            inside = np.flatnonzero((place >= 0) & (place < self.length))
            separators = row[inside] * self.length + place[inside]
        return pieces, separators, filled


@dataclass(frozen=True, eq=False)
class WindowsBase(ArraysBase):
    """The windows over all documents of a view.

    Args:
        documents: the documents.
        windowing: how they are cut.
        separator: the value after each document, as an array without dimensions; None for none.
    """

    documents: Documents
    windowing: Windowing
    separator: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def title(self) -> str:
        documents = self.documents
        return f"Windows({documents.view._elements.name!r}, {documents.names[0]!r}, length={self.windowing.length}"

    @property
    def digest(self) -> str:
        parameters = {
            "leaf": self.documents.names[0],
            "length": self.windowing.length,
            "stride": self.windowing.stride,
            "separator": fill_hex(self.separator),
            "remainder": self.windowing.remainder,
        }
        return derived_digest(self.documents.view.digest, "windows", parameters)

    @property
    def element_spec(self) -> Tree:
        (key,), (dtype,), length = self.documents.keys, self.documents.dtypes, self.windowing.length
        spec = {key: ArraySpec(dtype, (length,))}
        if self.windowing.remainder == "pad":
            spec[f"{key}_length"] = ArraySpec(np.dtype(np.int32))
            spec[f"{key}_mask"] = ArraySpec(np.dtype(np.bool_), (length,))
        return spec

    @cached_property
    def _count(self) -> int:
        return self.windowing.count(self._values_before(len(self.documents)))

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _column(self) -> LengthColumn:
        return self.documents.column.near()

    def _pieces(self, numbers: NDArray[np.int64]) -> tuple[Pieces, Ints, Ints]:
        """Return what some windows hold; see :meth:`Windowing.pieces`."""
        return self.windowing.pieces(self._column, numbers)

    def _values_before(self, document: int) -> int:
        """Return the number of values of the first documents, separators among them."""
        column, extra = self.documents.column, self.windowing.extra
        return (column.total if document == len(column) else column.prefix(document)) + document * extra

    @property
    def segments(self) -> tuple[int, ...]:
        """The windows that each segment of the records adds."""
        view = self.documents.view
        splits = np.cumsum([0, *view._selection.segment_sizes(view._elements.segments)]).tolist()
        counts = [self.windowing.count(self._values_before(split)) for split in splits]
        return tuple(after - before for before, after in pairwise(counts))

    @property
    def record_nbytes(self) -> int:
        return self.windowing.length * self.documents.dtypes[0].itemsize

    @property
    def records_per_read(self) -> int:
        return self.documents.view._elements.records_per_read

    def documents_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the documents of which some windows hold values, ascending."""
        return np.unique(self._pieces(numbers)[0].record)

    def block_holder(self, selection: Selection, share: float) -> BlockHolder[Any] | None:
        base = self.documents.view._elements
        # A document that is longer than a block would be held by each block that it reaches.
        if not isinstance(base, RecordElements) or not base.is_fetched or base.record_nbytes > _LONG_NBYTES:
            return None
        return WindowBlocks(self, selection, share)

    def arrays(self, numbers: NDArray[np.int64], read: Read | None = None) -> dict[str, NDArray[Any]]:
        (key,), length = self.documents.keys, self.windowing.length
        pieces, separators, filled = self._pieces(numbers)
        (values,) = self.documents.read(pieces, len(numbers), length, read)
        if len(separators):
            values.reshape(-1)[separators] = self.separator
        arrays = {key: values}
        if self.windowing.remainder == "pad":
            arrays[f"{key}_length"] = filled.astype(np.int32)
            arrays[f"{key}_mask"] = np.arange(length) < filled[:, None]
        return arrays

    def document(self, number: int) -> list[DocumentPiece]:
        return self._pieces(np.array([number]))[0].listed()


class Windows(View[dict[str, Any]]):
    """Windows of fixed length over the values of a leaf; :meth:`cachelayer.DataRef.windows` returns it."""

    _elements: WindowsBase

    def document(self, index: int) -> list[DocumentPiece]:
        """Return the documents of which a window holds values, in order.

        Args:
            index: the number of the window in this view; negative ones count from the end.

        Returns:
            For each document ``(record, begin, end, offset)``: the number of its record in the dataset that the windows
            were made of, which of its values the window holds, and where they begin in the window.

        Raises:
            RecordIndexError: if there is no such window.
        """
        return self._elements.document(self._selection.number(index))


def windows_of(documents: Documents, windowing: Windowing, separator: NDArray[Any] | None) -> Windows:
    check_keys(documents)
    return Windows(WindowsBase(documents, windowing, separator))


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

    base: WindowsBase
    selection: Selection
    share: float

    def fetch(self, numbers: Ints) -> HeldDocuments:
        """Fetch the documents of windows by their numbers in the view; neighbours are one request."""
        view = self.base.documents.view
        documents = self.base.documents_of(self.selection.take(numbers))
        # In the order of the base, neighbours lie together.
        documents = np.unique(view._selection.numbers_of(documents))
        return HeldDocuments(fetched(partial(view._elements.source.hold, documents, self.share)), documents)

    def reads(self, blocks: Sequence[HeldDocuments], owner: Ints, rows: Ints) -> HeldReads:  # noqa: ARG002
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
