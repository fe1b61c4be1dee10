"""One leaf of many elements: a column, between the values of users and the bytes of records.

A column has the parts of the leaf, each for all rows at once: a fixed part as an array with a leading axis, a varying
part as :class:`FlatRows`. Rows that are null hold a filler, and are marked beside the parts::

    four values of a leaf "lengths" of shape [None]        [5, 6]  []  None  [7]
    its column      parts        FlatRows(values=[5, 6, 7], splits=[0, 2, 2, 2, 3])
                    nulls        [0, 0, 1, 0]
                    null_values  None: no value within a row is null
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Ints, rows_sharing_memory, separate_rows, splits_of

NULL = 1
"""The mark of a leaf that is None, in the nulls of a column."""
NULL_DICT = 2
"""The mark of a leaf that is missing because a dict that no dict is around is None; see ``Column.nulls``."""


@dataclass(frozen=True, eq=False)
class FlatRows:
    """Rows of different lengths, one after another in one array."""

    values: NDArray[Any]
    """The items of all rows: one-dimensional."""
    splits: Ints
    """Where each row begins in ``values``, and the end: int64 of shape ``[rows + 1]``."""

    @classmethod
    def of_rows(cls, rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> FlatRows:
        """Return one-dimensional arrays of one dtype as rows."""
        splits = splits_of(np.fromiter(map(len, rows), np.int64, len(rows)))
        if len(rows) == 0:
            return cls(np.empty(0, dtype), splits)
        # A single row may be long, so it is not copied.
        return cls(rows[0] if len(rows) == 1 else np.concatenate(rows), splits)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.splits)

    def rows(self, start: int, stop: int) -> FlatRows:
        """Return some of the rows, without a copy."""
        first = self.splits[start]
        return FlatRows(self.values[first : self.splits[stop]], self.splits[start : stop + 1] - first)

    def row(self, index: int) -> NDArray[Any]:
        return self.values[self.splits[index] : self.splits[index + 1]]

    def separate_rows(self) -> list[NDArray[Any]]:
        """Return the rows as arrays of which few share memory: who keeps one keeps little of the others."""
        bounds = pairwise(self.splits.tolist())
        rows = max(1, len(self.splits) - 1)
        if rows <= rows_sharing_memory(self.values.nbytes // rows):
            return [self.values[start:stop] for start, stop in bounds]
        return [self.values[start:stop].copy() for start, stop in bounds]


PartRows = Any
"""A part of many rows: an array of shape ``[rows, ...]`` if it is fixed, FlatRows if it varies; or a list of rows."""


def separate_rows_of(part: PartRows) -> list[Any]:
    """Return the rows of a part as arrays of which few share memory."""
    if isinstance(part, FlatRows):
        return part.separate_rows()
    return part if isinstance(part, list) else separate_rows(part)


@dataclass(frozen=True, eq=False)
class Column:
    """One leaf of many elements."""

    parts: tuple[PartRows, ...]
    """The parts of the leaf, as :mod:`cachelayer.records.leaves` lists them."""
    nulls: NDArray[Any] | None = None
    """Which rows are null, and why: bool or uint8 of shape ``[rows]``; None if there are no nulls.

    0 is a value, 1 (``NULL``) a leaf that is None. ``NULL_DICT + d`` says that a dict around the leaf is None; the
    outermost such dict has d dicts around it. Of a leaf ``"meta/url"``: 0 for ``{"meta": {"url": "u7"}}``, 1 for
    ``{"meta": {"url": None}}``, 3 for ``{"meta": None}``, since the element itself is a dict around ``"meta"``.
    """
    null_values: FlatRows | None = None
    """Whether each value within each row is null, as bools; None if the leaf has no nulls within rows."""

    def rows(self, start: int, stop: int) -> Column:
        """Return some of the rows, without a copy."""
        parts = [part.rows(start, stop) if isinstance(part, FlatRows) else part[start:stop] for part in self.parts]
        nulls = None if self.nulls is None else self.nulls[start:stop]
        null_values = None if self.null_values is None else self.null_values.rows(start, stop)
        return Column(tuple(parts), nulls, null_values)
