"""Values that numpy has no type for: ragged, sparse and nullable arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _make_arrays(value: Any, *names: str) -> None:
    """Turn attributes of a frozen object into arrays where they are none."""
    for name in names:
        if not isinstance(getattr(value, name), np.ndarray):
            object.__setattr__(value, name, np.asarray(getattr(value, name)))


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths, as one flat array and the places where rows begin.

    Args:
        values: the rows one after another: an array of shape ``[total, ...]``, or a Ragged where rows are ragged too.
        row_splits: integers of shape ``[rows + 1]``: row i is ``values[row_splits[i]:row_splits[i + 1]]``.
    """

    values: NDArray[Any] | Ragged
    row_splits: NDArray[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Ragged):
            _make_arrays(self, "values")
        _make_arrays(self, "row_splits")

    def __len__(self) -> int:
        return max(len(self.row_splits) - 1, 0)

    def __getitem__(self, row: int) -> Any:
        """Row ``row``: an array, or a Ragged where rows are ragged."""
        rows = len(self)
        if not -rows <= row < rows:
            raise IndexError(f"row {row} of a Ragged with {rows} rows")
        row %= rows
        start, stop = int(self.row_splits[row]), int(self.row_splits[row + 1])
        if isinstance(self.values, Ragged):
            inner = self.values
            splits = inner.row_splits[start : stop + 1]
            first, last = int(splits[0]), int(splits[-1])
            return Ragged(_rows(inner.values, first, last), splits - splits[0])
        return self.values[start:stop]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    @property
    def flat_values(self) -> NDArray[Any]:
        """The innermost values."""
        return self.values.flat_values if isinstance(self.values, Ragged) else self.values

    @property
    def nested_row_splits(self) -> tuple[NDArray[Any], ...]:
        """The row splits of every level, outermost first."""
        inner = self.values.nested_row_splits if isinstance(self.values, Ragged) else ()
        return (self.row_splits, *inner)

    @classmethod
    def from_nested(cls, flat_values: NDArray[Any], nested_row_splits: tuple[NDArray[Any], ...]) -> Ragged:
        """A Ragged from its innermost values and the row splits of every level, outermost first."""
        values: NDArray[Any] | Ragged = flat_values
        for row_splits in reversed(nested_row_splits):
            values = cls(values, row_splits)
        if not isinstance(values, Ragged):
            raise TypeError("a Ragged needs the row splits of one level at least")
        return values

    def to_list(self) -> list[Any]:
        """The rows as nested lists."""
        return [row.to_list() if isinstance(row, Ragged) else row.tolist() for row in self]

    def __repr__(self) -> str:
        flat = self.flat_values
        return f"Ragged(rows={len(self)}, levels={len(self.nested_row_splits)}, values={flat.dtype}{list(flat.shape)})"


def _rows(values: NDArray[Any] | Ragged, start: int, stop: int) -> NDArray[Any] | Ragged:
    if isinstance(values, Ragged):
        splits = values.row_splits[start : stop + 1]
        return Ragged(_rows(values.values, int(splits[0]), int(splits[-1])), splits - splits[0])
    return values[start:stop]


@dataclass(frozen=True, eq=False)
class Sparse:
    """A sparse array in coordinate form.

    Args:
        indices: int64 of shape ``[nnz, rank]``, the place of each value.
        values: shape ``[nnz]``.
        dense_shape: int64 of shape ``[rank]``.
    """

    indices: NDArray[np.int64]
    values: NDArray[Any]
    dense_shape: NDArray[np.int64]

    def __post_init__(self) -> None:
        _make_arrays(self, "indices", "values", "dense_shape")

    def to_dense(self) -> NDArray[Any]:
        """The array with every value in its place and zeros (``b""`` or ``""`` for strings) elsewhere."""
        shape = tuple(int(n) for n in self.dense_shape)
        if self.values.dtype == object:
            dense = np.full(shape, type(self.values[0])() if len(self.values) else b"", dtype=object)
        else:
            dense = np.zeros(shape, self.values.dtype)
        dense[tuple(self.indices.T)] = self.values
        return dense

    def __repr__(self) -> str:
        return f"Sparse(nnz={len(self.values)}, dense_shape={self.dense_shape.tolist()}, dtype={self.values.dtype})"


@dataclass(frozen=True, eq=False)
class Nullable:
    """A column in which some rows are null.

    Args:
        values: the column; rows that are null hold a filler (zeros, or an empty string or array).
        valid: bool of shape ``[rows]``, False where the row is null.
    """

    values: Any
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.valid)
