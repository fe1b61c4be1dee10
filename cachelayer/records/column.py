"""One leaf of many elements, in the parts that a record stores."""

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
        values: one-dimensional.
        splits: int64 of shape ``[rows + 1]``, the place in ``values`` where each row begins, and the end.
    """

    values: NDArray[Any]
    splits: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.splits)

    def rows(self, start: int, stop: int) -> Flat:
        """Some of the rows, without a copy."""
        first = self.splits[start]
        return Flat(self.values[first : self.splits[stop]], self.splits[start : stop + 1] - first)

    def row(self, index: int) -> NDArray[Any]:
        return self.values[self.splits[index] : self.splits[index + 1]]

    def rows_apart(self) -> list[NDArray[Any]]:
        """Each row, which keeps itself and little of the others in memory."""
        bounds = pairwise(self.splits.tolist())
        rows = max(1, len(self.splits) - 1)
        # Of objects only the pointers are counted.
        if rows <= rows_together(self.values.nbytes // rows) and (rows == 1 or self.values.dtype != object):
            return [self.values[start:stop] for start, stop in bounds]
        return [self.values[start:stop].copy() for start, stop in bounds]

    @classmethod
    def of_rows(cls, rows: list[NDArray[Any]], dtype: Any) -> Flat:
        """One-dimensional arrays of one dtype, laid one after another."""
        values = np.concatenate(rows) if rows else np.empty(0, dtype)
        return cls(values, splits_of(np.fromiter(map(len, rows), np.int64, len(rows))))


@dataclass(frozen=True, eq=False)
class Column:
    """One leaf of ``rows`` elements.

    Args:
        fixed: arrays of shape ``[rows, ...]``: the parts of the leaf that have one size in every record.
        variable: the parts whose size differs from record to record.
        nulls: bool of shape ``[rows]``, True where the leaf is None; None where it never is.
        listed: the rows of a leaf of one fixed part, instead of that part: of what is read as elements.
    """

    fixed: tuple[NDArray[Any], ...] = ()
    variable: tuple[Flat, ...] = ()
    nulls: NDArray[np.bool_] | None = None
    listed: list[Any] | None = None

    def rows(self, start: int, stop: int) -> Column:
        """Some of the rows, without a copy."""
        return Column(
            tuple(part[start:stop] for part in self.fixed),
            tuple(flat.rows(start, stop) for flat in self.variable),
            None if self.nulls is None else self.nulls[start:stop],
        )
