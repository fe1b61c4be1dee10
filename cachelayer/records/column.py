"""Columns: one leaf of many elements, split into the parts that a record stores."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Ints, rows_together, splits_of


@dataclass(frozen=True, eq=False)
class Flat:
    """Rows of different lengths, one after another.

    Args:
        values: a one-dimensional array.
        splits: int64 of shape ``[rows + 1]``: where each row begins in ``values``, and the end.
    """

    values: NDArray[Any]
    splits: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.splits)

    def rows(self, start: int, stop: int) -> Flat:
        """Return some of the rows, without a copy."""
        first = self.splits[start]
        return Flat(self.values[first : self.splits[stop]], self.splits[start : stop + 1] - first)

    def row(self, index: int) -> NDArray[Any]:
        return self.values[self.splits[index] : self.splits[index + 1]]

    def rows_apart(self) -> list[NDArray[Any]]:
        """Return each row, such that keeping one keeps little memory of others alive."""
        bounds = pairwise(self.splits.tolist())
        rows = max(1, len(self.splits) - 1)
        # The size of an object array counts only pointers, so its rows are copied.
        if rows <= rows_together(self.values.nbytes // rows) and (rows == 1 or self.values.dtype != object):
            return [self.values[start:stop] for start, stop in bounds]
        return [self.values[start:stop].copy() for start, stop in bounds]

    @classmethod
    def of_rows(cls, rows: list[NDArray[Any]], dtype: Any) -> Flat:
        """Return one-dimensional arrays of one dtype as rows."""
        values = np.concatenate(rows) if rows else np.empty(0, dtype)
        return cls(values, splits_of(np.fromiter(map(len, rows), np.int64, len(rows))))


@dataclass(frozen=True, eq=False)
class Column:
    """One leaf of ``rows`` elements.

    Args:
        fixed: the parts of the leaf that have the same size in every record: arrays of shape ``[rows, ...]``.
        variable: the parts that vary in size.
        nulls: bool of shape ``[rows]``, True for rows whose leaf is None; None if there are no such rows.
        listed: the list of rows of a leaf of arrays, in place of its parts. Set when elements are read.
    """

    fixed: tuple[NDArray[Any], ...] = ()
    variable: tuple[Flat, ...] = ()
    nulls: NDArray[np.bool_] | None = None
    listed: list[Any] | None = None

    def rows(self, start: int, stop: int) -> Column:
        """Return some of the rows, without a copy."""
        return Column(
            tuple(part[start:stop] for part in self.fixed),
            tuple(flat.rows(start, stop) for flat in self.variable),
            None if self.nulls is None else self.nulls[start:stop],
        )
