"""Columns: one leaf of many elements, as the parts that a record stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Ints, rows_apart, rows_together, splits_of


@dataclass(frozen=True, eq=False)
class Flat:
    """Rows of different lengths, one after another.

    Args:
        values: a one-dimensional array.
        splits: int64 of shape ``[rows + 1]``: where each row begins in ``values``, and the end.
    """

    values: NDArray[Any]
    splits: Ints

    @classmethod
    def of_rows(cls, rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> Flat:
        """Return one-dimensional arrays of one dtype as rows."""
        values = np.concatenate(rows) if len(rows) else np.empty(0, dtype)
        return cls(values, splits_of(np.fromiter(map(len, rows), np.int64, len(rows))))

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
        if rows <= rows_together(self.values.nbytes // rows):
            return [self.values[start:stop] for start, stop in bounds]
        return [self.values[start:stop].copy() for start, stop in bounds]


PartRows = Any
"""A part of many records: of shape ``[rows, ...]`` if it is fixed, Flat if it varies, or a list of its rows."""


@dataclass(frozen=True, eq=False)
class Column:
    """One leaf of many elements.

    Args:
        parts: the parts of the leaf.
        nulls: bool of shape ``[rows]``, True for rows whose leaf is None; None if there are no such rows.
    """

    parts: tuple[PartRows, ...]
    nulls: NDArray[np.bool_] | None = None

    def rows(self, start: int, stop: int) -> Column:
        """Return some of the rows, without a copy."""
        parts = [part.rows(start, stop) if isinstance(part, Flat) else part[start:stop] for part in self.parts]
        return Column(tuple(parts), None if self.nulls is None else self.nulls[start:stop])


def listed(part: PartRows) -> list[Any]:
    """Return the rows of a part, such that keeping one keeps little memory of others alive."""
    if isinstance(part, Flat):
        return part.rows_apart()
    return part if isinstance(part, list) else rows_apart(part)
