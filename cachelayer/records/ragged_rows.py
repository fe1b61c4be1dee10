"""The rows of a Ragged, taken all at once from where they lie in memory."""

from __future__ import annotations

from math import prod

import numpy as np

from cachelayer.records.column import Flat
from cachelayer.records.values import Ragged


def wrong_row(ragged: Ragged) -> int | None:
    """Return the first row that does not lie within the values, or ends before it begins; None if there is none."""
    splits = ragged.row_splits
    if splits.ndim != 1 or len(splits) == 0 or splits.dtype.kind not in "iu":
        return 0
    splits = splits.astype(np.int64)
    begins, ends = splits[:-1], splits[1:]
    wrong = np.flatnonzero((begins < 0) | (ends < begins) | (ends > len(ragged.values)))
    if len(wrong):
        return int(wrong[0])
    if not len(begins) or not isinstance(ragged.values, Ragged):
        return None
    first, end = int(splits[0]), int(splits[-1])
    inner = wrong_row(ragged.values.rows(first, end))
    return None if inner is None else int(splits.searchsorted(first + inner, side="right")) - 1


def flat_rows(ragged: Ragged) -> tuple[list[Flat], Flat]:
    """Return the rows, none of them wrong: the row lengths of each inner level, and the flat values."""
    splits = ragged.row_splits.astype(np.int64)
    values = ragged.values
    levels = []
    while isinstance(values, Ragged):
        within = splits - splits[0]
        inner = values.row_splits[splits[0] : splits[-1] + 1].astype(np.int64)
        levels.append(Flat(np.diff(inner), within))
        splits, values = inner[within], values.values
    width = prod(values.shape[1:])
    return levels, Flat(values[splits[0] : splits[-1]].reshape(-1), (splits - splits[0]) * width)
