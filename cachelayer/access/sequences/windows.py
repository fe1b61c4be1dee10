"""Windows of fixed length over the values of a leaf, all documents one after another."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.record_base import Read, RecordBase
from cachelayer.access.sequences.derived import ArraysBase, derived_digest
from cachelayer.access.sequences.document_blocks import WindowBlocks
from cachelayer.access.sequences.documents import Documents, check_keys
from cachelayer.access.sequences.fill_values import fill_hex
from cachelayer.access.sequences.window_cuts import Windowing
from cachelayer.access.view import View
from cachelayer.locks import cached_property
from cachelayer.protocols import BlockHolder
from cachelayer.records.pieces import DocumentPiece
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree

# Windows of longer documents, on average, are not held in blocks.
_LONG_NBYTES = 1 << 16


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

    def _values_before(self, document: int) -> int:
        """Return the number of values of the first documents, separators among them."""
        column, extra = self.documents.column, self.windowing.extra
        return (column.total if document == len(column) else column.prefix(document)) + document * extra

    @property
    def segments(self) -> tuple[int, ...]:
        """The windows that each segment of the records adds."""
        view = self.documents.view
        splits = np.cumsum([0, *view._selection.segment_sizes(view._base.segments)]).tolist()
        counts = [self.windowing.count(self._values_before(split)) for split in splits]
        return tuple(after - before for before, after in pairwise(counts))

    @property
    def record_nbytes(self) -> int:
        return self.windowing.length * self.documents.dtypes[0].itemsize

    @property
    def records_per_read(self) -> int:
        return self.documents.view._base.records_per_read

    def documents_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the documents of which some windows hold values, ascending."""
        return np.unique(self.windowing.pieces(self.documents.column, numbers)[0].record)

    def block_holder(self, selection: Selection, share: float) -> BlockHolder[Any] | None:
        """Return what fetches blocks of windows; None if they are best read one by one."""
        base: object = self.documents.view._base
        # A document that is longer than a block would be held by each block that it reaches.
        if not isinstance(base, RecordBase) or not base.is_fetched or base.record_nbytes > _LONG_NBYTES:
            return None
        return WindowBlocks(self, selection, share)

    def arrays(self, numbers: NDArray[np.int64], read: Read | None = None) -> dict[str, NDArray[Any]]:
        (key,), length = self.documents.keys, self.windowing.length
        pieces, separators, filled = self.windowing.pieces(self.documents.column, numbers)
        (values,) = self.documents.read(pieces, len(numbers), length, read)
        if len(separators):
            values.reshape(-1)[separators] = self.separator
        arrays = {key: values}
        if self.windowing.remainder == "pad":
            arrays[f"{key}_length"] = filled.astype(np.int32)
            arrays[f"{key}_mask"] = np.arange(length) < filled[:, None]
        return arrays

    def document(self, number: int) -> list[DocumentPiece]:
        """Return the pieces of documents in a window."""
        return self.windowing.pieces(self.documents.column, np.array([number]))[0].listed()


class Windows(View[dict[str, Any]]):
    """Windows of fixed length over the values of a leaf; :meth:`cachelayer.DataRef.windows` returns it."""

    _base: WindowsBase

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

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
        return self._base.document(self._selection.number(index))

    def __repr__(self) -> str:
        base = self._base
        return (
            f"Windows({base.documents.view._base.name!r}, {base.documents.names[0]!r}, length={base.windowing.length}, "
            f"records={len(self)}, digest='sha256:{self.digest}')"
        )


def windows_of(documents: Documents, windowing: Windowing, separator: NDArray[Any] | None) -> Windows:
    """Return the windows over all documents.

    Raises:
        InvalidArgumentError: if two keys of an element would be the same.
    """
    check_keys(documents)
    return Windows(WindowsBase(documents, windowing, separator))
