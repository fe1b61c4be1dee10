"""Take a leaf of a batch apart into its values, one after another, and its lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.records.spec import LeafSpec, RaggedSpec
from cachelayer.records.values import Nullable, Ragged, Sparse

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Unpacked:
    """A leaf of a batch, taken apart.

    Args:
        rows: the rows of the batch that are not null, int64.
        nulls: the number of rows that are null.
        values: all values of the rows that are not null, of shape ``[n]``.
        lengths: for each thing that has lengths, such as ``axis 0`` or ``characters``, its lengths.
        one_each: which of these have one length for each of ``rows``.
    """

    rows: Ints
    nulls: int
    values: NDArray[Any]
    lengths: dict[str, Ints] = field(default_factory=dict)
    one_each: tuple[str, ...] = ()


def is_text(spec: LeafSpec) -> bool:
    """Return whether the values of a leaf are texts or bytes."""
    return dtypes.is_string(spec.dtype) or (isinstance(spec.dtype, np.dtype) and spec.dtype.kind in "SU")


def unpack(spec: LeafSpec, batch: Any, rows: int) -> Unpacked:
    """Take apart a leaf of a batch of ``rows`` rows, as ``ref.read`` returns it."""
    valid = np.ones(rows, np.bool_)
    if isinstance(batch, Nullable):
        batch, valid = batch.values, batch.valid
    one_each = ["axis 0", "values"]
    lengths: dict[str, Ints] = {}
    if isinstance(batch, Sparse):
        values, lengths = batch.values, {"values": np.bincount(batch.indices[:, 0], minlength=rows)[valid]}
    elif isinstance(batch, Ragged):
        values, lengths = batch.flat_values, _levels(spec, batch, valid)
    elif isinstance(spec, RaggedSpec):
        values, lengths = _objects(spec, batch[valid])
    else:
        values = batch if valid.all() else batch[valid]
    values = values.reshape(-1)
    if is_text(spec):
        unit = "characters" if spec.dtype is str or np.dtype(spec.dtype).kind == "U" else "bytes"
        lengths = {**lengths, unit: np.fromiter(map(len, values.tolist()), np.int64, len(values))}
        one_each += [unit] if spec.shape == () else []
    return Unpacked(np.flatnonzero(valid), int((~valid).sum()), values, lengths, tuple(one_each))


def _levels(spec: LeafSpec, batch: Ragged, valid: Flags) -> dict[str, Ints]:
    """Return the lengths along each unknown axis: one for a dense array, one for each row of a ragged array."""
    by_axis = {}
    counted = valid
    for axis, splits in enumerate(batch.nested_row_splits):
        lengths = np.diff(splits).astype(np.int64)
        if spec.shape[axis] is None:
            by_axis[f"axis {axis}"] = lengths[counted]
        if isinstance(spec, RaggedSpec):
            counted = np.repeat(counted, lengths)
        else:
            first = splits[:-1][counted & (lengths > 0)]
            counted = np.zeros(int(splits[-1]), np.bool_)
            counted[first] = True
    return by_axis


def _objects(spec: RaggedSpec, rows: NDArray[Any]) -> tuple[NDArray[Any], dict[str, Ints]]:
    """Take apart ragged rows that are objects, because their inner dimensions are unknown."""
    by_axis: dict[str, Ints] = {}
    if spec.shape[0] is None:
        by_axis["axis 0"] = np.array([len(row) for row in rows], np.int64)
    for axis in range(1, spec.ragged_rank + 1):
        lengths = [np.diff(row.nested_row_splits[axis - 1]) for row in rows]
        by_axis[f"axis {axis}"] = np.concatenate([*lengths, np.empty(0, np.int64)]).astype(np.int64)
    flat = [row.flat_values.reshape(-1) for row in rows]
    dtype = object if isinstance(spec.dtype, type) else spec.dtype
    return np.concatenate(flat) if flat else np.empty(0, dtype), by_axis
