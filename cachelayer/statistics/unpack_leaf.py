"""Take a leaf of a batch apart: into which rows are not None, all values in one array, and lengths.

::

    [[1, 2], None, [3]]    rows: True False True    values: 1 2 3    lengths: {"axis 0": 2 1}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import json_text
from cachelayer.records.spec import JsonSpec, LeafSpec, RaggedSpec
from cachelayer.records.values import Nullable, Ragged, Sparse, with_one_mask

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def is_text(spec: LeafSpec) -> bool:
    """Return whether the values of a leaf are texts or bytes."""
    return np.dtype(spec.dtype).kind in "SU"


def unpack(spec: LeafSpec, batch: Any, rows: int) -> tuple[Flags, NDArray[Any], dict[str, Ints]]:
    """Take apart a leaf of a batch, as ``ref.read`` returns it.

    Args:
        spec: the spec of the leaf.
        batch: the leaf of a batch, stacked on a leading axis.
        rows: the number of rows of the batch.

    Returns:
        Which rows are not None, of shape ``[rows]``; all values in these rows that are not None, of shape ``[n]``; and
        lengths by what they count, such as ``axis 0`` or ``characters``.
    """
    valid = np.ones(rows, np.bool_)
    batch = with_one_mask(batch)
    if isinstance(batch, Nullable) and batch.valid.ndim == 1:
        valid = batch.valid
        batch = batch.values
    lengths: dict[str, Ints] = {}
    if isinstance(spec, JsonSpec):
        valid = np.fromiter((value is not None for value in batch), np.bool_, rows)
        texts = [json_text.text_of(value) for value in batch if value is not None]
        values = np.fromiter(texts, object, len(texts))
    elif isinstance(batch, Sparse):
        values = batch.values
        lengths = {"values": np.bincount(batch.indices[:, 0], minlength=rows)[valid]}
    elif isinstance(batch, Ragged):
        values = batch.flat_values
        lengths = dict(_lengths(spec, batch, valid))
    elif isinstance(spec, RaggedSpec):
        # If more dimensions than the first are unknown, the batch is an array of objects, one for each row.
        parts = [Ragged(row, np.array([0, len(row)])) for row in batch[valid]]
        flats = [part.flat_values for part in parts]
        flats = [flat.values[flat.valid] if isinstance(flat, Nullable) else flat.reshape(-1) for flat in flats]
        values = np.concatenate([np.empty(0, spec.dtype), *flats])
        by_row = [dict(_lengths(spec, part, np.ones(1, np.bool_))) for part in parts]
        axes = by_row[0] if by_row else [f"axis {axis}" for axis, known in enumerate(spec.shape) if known is None]
        lengths = {axis: np.concatenate([np.empty(0, np.int64), *(row[axis] for row in by_row)]) for axis in axes}
    else:
        values = batch if valid.all() else batch[valid]
    values = values.values[values.valid] if isinstance(values, Nullable) else values.reshape(-1)
    if is_text(spec):
        unit = "characters" if np.dtype(spec.dtype).kind == "U" else "bytes"
        lengths[unit] = np.fromiter(map(len, values.tolist()), np.int64, len(values))
    return valid, values, lengths


def _lengths(spec: LeafSpec, batch: Ragged, valid: Flags) -> Iterator[tuple[str, Ints]]:
    """Yield the lengths along each unknown axis: a length for each array, or for each row within a ragged array."""
    for axis, splits in enumerate(batch.nested_row_splits):
        lengths = np.diff(splits) if batch.row_shapes is None else batch.row_shapes[:, axis]
        if spec.shape[axis] is None:
            yield f"axis {axis}", lengths[valid].astype(np.int64)
        if isinstance(spec, RaggedSpec):
            valid = np.repeat(valid, lengths)
