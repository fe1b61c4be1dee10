"""Windows of fixed length over the values of all documents, one document after another: by arithmetic and bisection."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import derived_digest
from cachelayer.errors import InvalidArgumentError
from cachelayer.sequences.documents import (
    DocumentRows,
    Documents,
    checked_fills,
    checked_length,
    checked_padding,
    fill_hex,
)
from cachelayer.sequences.pieces import Pieces
from cachelayer.sequences.token_fields import token_fields
from cachelayer.specs.leaf_names import one_or_several
from cachelayer.support.arguments import boolean, is_choice
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, memory_of, splits_of

_DOCUMENTS_TOGETHER = 4
"""A block has the windows of so many documents at least."""
_FEW_DOCUMENTS = 24
_FEW_VALUES = 1 << 15
"""One window of so few documents, and of documents of so few values, is read by hand."""
LastWindow = Literal["drop", "pad"]


@dataclass(frozen=True)
class Windowing:
    """A rule that cuts the concatenation of all documents into windows: window i begins at value ``i * stride``."""

    length: int
    """The number of values of a window."""
    stride: int
    """The number of values from the start of a window to the start of the next."""
    extra: int = 0
    """1 if a separator stands after each document, else 0."""
    remainder: LastWindow = "drop"
    """What becomes of windows that reach past the last value: "drop" leaves them out, "pad" keeps the first, unless the
    windows before it have all values."""

    def count(self, total: int) -> int:
        """Return the number of windows over so many values, where separators count as values."""
        if self.remainder == "drop":
            return max(0, (total - self.length) // self.stride + 1)
        # The last window is the first that reaches the end, unless it would begin after it.
        last = max(0, -(-(total - self.length) // self.stride))
        return last + 1 if last * self.stride < total else last

    def pieces(self, column: LengthColumn, numbers: Ints) -> Pieces:
        """Return the pieces of documents that some windows are made of."""
        begins = numbers * self.stride
        filled = np.minimum(column.total + len(column) * self.extra - begins, self.length)
        # The two ends of a window are looked up side by side: the second search finds what the first has just read.
        offsets = np.empty(2 * len(numbers), np.int64)
        offsets[::2] = begins
        offsets[1::2] = begins + filled - 1
        ends_in = column.locate(offsets, self.extra)
        # Documents without values at the very beginning count as segments of the first window.
        first = np.where(begins == 0, 0, ends_in[::2])
        counts = ends_in[1::2] - first + 1
        splits = splits_of(counts)
        row = np.repeat(np.arange(len(numbers)), counts)
        record = np.arange(splits[-1]) - (splits[:-1] - first)[row]
        starts, ends = column.bounds(record)
        # The cells of its window at which each document begins and ends, or would if the window were longer.
        before = begins[row] - record * self.extra
        starts -= before
        ends -= before
        begin = np.maximum(-starts, 0)
        offset = np.maximum(starts, 0)
        count = np.minimum(ends, filled[row]) - offset
        cells = np.minimum(ends + self.extra, filled[row]) - offset if self.extra else count
        return Pieces(row, record, begin, count, offset, ends <= filled[row], cells)


@dataclass(frozen=True, eq=False)
class WindowRows(DocumentRows):
    """The windows over all documents of a view."""

    windowing: Windowing = field(kw_only=True)

    kind = "windows"

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "leaves": list(self.documents.names),
            "length": self.length,
            "stride": self.windowing.stride,
            "separator": list(map(fill_hex, self.separator)),
            "remainder": self.windowing.remainder,
            "segments": self.added == "segments",
        }

    @cached_property
    def _count(self) -> int:
        return self._windows_before(len(self.documents))

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _column(self) -> LengthColumn:
        return self.documents.columns[0].in_memory_if_few()

    def _windows_before(self, document: int) -> int:
        """Return the number of windows over the first documents."""
        return self.windowing.count(self._cells_before(document))

    def _cells_before(self, document: int) -> int:
        column = self.documents.columns[0]
        values = column.total if document == len(column) else column.prefix(document)
        return values + document * self.windowing.extra

    @property
    def segments(self) -> tuple[int, ...]:
        # A window belongs to the segment of the documents that complete it.
        splits = np.cumsum([0, *self.records.origins.segments]).tolist()
        return tuple(after - before for before, after in pairwise(map(self._windows_before, splits)))

    def earlier_digest(self, segments: int) -> str | None:
        documents = self.documents.origins
        digest = documents.earlier_digest(segments)
        cells = self._cells_before(sum(documents.segments[:segments]))
        # A window that was padded at the end of its documents has values of appended documents now.
        had_padding = self.windowing.count(cells) > replace(self.windowing, remainder="drop").count(cells)
        if digest is None or had_padding:
            return None
        return derived_digest(digest, self.kind, self.parameters)

    @property
    def together(self) -> int:
        # A block with the windows of several documents at least: then few documents are read for two blocks.
        cells = self.documents.columns[0].total + len(self.documents) * self.windowing.extra
        return max(1, _DOCUMENTS_TOGETHER * cells // max(1, len(self.documents) * self.windowing.stride))

    def pieces(self, numbers: Ints) -> Pieces:
        return self.windowing.pieces(self._column, numbers)

    @cached_property
    def element(self) -> Callable[[int], Any]:
        """Returns one window. What :meth:`batch` does for many is done by hand for few and short documents."""
        in_general = super().element
        sums = self._column.sums
        read = self.documents.element
        if sums is None or read is None or self.added or self.separator or self.fields:
            return in_general
        bounds = memory_of(sums)
        leaves = dict(zip(self.documents.keys, self.documents.dtypes, strict=True))

        def element(number: int) -> Any:
            begin = number * self.windowing.stride
            stop = begin + self.length
            first = bisect_right(bounds, begin) - 1
            last = bisect_left(bounds, stop)
            if last - first > _FEW_DOCUMENTS or bounds[last] - bounds[first] > max(_FEW_VALUES, 2 * self.length):
                return in_general(number)
            rows = {key: np.empty(self.length, dtype) for key, dtype in leaves.items()}
            for record in range(first, last):
                at, end = bounds[record], bounds[record + 1]
                if at == end:
                    continue
                document = read(record)
                for key, row in rows.items():
                    values = document[key]
                    if len(values) != end - at:
                        return in_general(number)
                    row[max(at - begin, 0) : end - begin] = values[max(begin - at, 0) : stop - at]
            return rows

        return element

    def check(self, pieces: Pieces) -> None:
        if len(self.documents.names) > 1:
            self.documents.check_lengths(pieces.record, self._column.take(pieces.record))


def window_rows(
    records: DatasetView,
    leaves: Any,
    length: Any,
    *,
    stride: Any,
    separator: Any,
    remainder: Any,
    value: Any,
    segments: Any,
    beside: Any,
    every: Any,
) -> WindowRows:
    """Return the windows of a view, with the arguments of :meth:`cachelayer.View.windows`."""
    size = checked_length("length", length)
    if not is_choice(remainder, ("drop", "pad")):
        raise InvalidArgumentError(f"remainder {remainder!r}: pass 'drop' or 'pad': all windows have one length")
    documents = Documents(records, one_or_several("leaves", leaves))
    values = () if separator is None else checked_fills("separator", separator, documents)
    padding = checked_padding(value, documents)
    if padding and remainder != "pad":
        raise InvalidArgumentError(f"value {value!r}: without remainder='pad' no window has padding")
    step = size if stride is None else checked_length("stride", stride)
    windowing = Windowing(size, step, int(bool(values)), remainder)
    added: Literal["segments", "mask"] | None = "mask" if remainder == "pad" else None
    added = "segments" if boolean("segments", segments) else added
    fields = token_fields(records, beside, every, "windows(beside=)")
    return WindowRows(documents, size, added, values, padding_value=padding, fields=fields, windowing=windowing)
