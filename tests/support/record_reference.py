"""Records by the words of docs/format.md alone, value by value: what the codec must write."""

import struct
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from cachelayer import ArraySpec, Nullable, Ragged, RaggedSpec, Sparse, SparseSpec
from cachelayer.specs import tree
from cachelayer.specs.spec import LeafSpec
from cachelayer.specs.values import with_flat_values

_BELOW_NULL = object()
"""Stands for a leaf below a dict that is None."""
Parts = tuple[list[tuple[int, bytes]], list[bytes]]
"""The size of the items and the bytes of each fixed part, and the bytes of each varying part."""


def record_of(spec: Any, element: Any) -> bytes:
    """The record of an element in the codec ``typed/1``."""
    found: list[tuple[LeafSpec, Any]] = []
    dicts: list[bool] = []
    _walk(spec, element, found, dicts, is_root=True)
    fixed, varying, of_values, nulls = [], [], [], []
    for leaf, value in found:
        bits = _nulls_within(value)
        if leaf.shape and not isinstance(leaf, SparseSpec):
            of_values.append("1" in bits)
        if "1" in bits:
            nulls.append(b"".join(int(bits[at : at + 8][::-1], 2).to_bytes(1) for at in range(0, len(bits), 8)))
        own_fixed, own_varying = _parts(
            leaf, filler_of(leaf) if value is None or value is _BELOW_NULL else _plain(value)
        )
        fixed += own_fixed
        varying += own_varying
    flags = [*(value is None for _, value in found), *dicts, *of_values]
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    fixed.append((4, b"".join(struct.pack("<I", len(part)) for part in varying)))
    fixed.append((1, number.to_bytes((len(flags) + 7) // 8, "little")))
    record = b""
    for alignment in (8, 4, 2, 1):
        for itemsize, part in fixed:
            if alignment == max(power for power in (1, 2, 4, 8) if itemsize % power == 0):
                record += part
    for part in ("", *varying, *nulls):
        record += part.encode() if isinstance(part, str) else part
        record += bytes(-len(record) % 8)
    return record


def _walk(spec: Any, value: Any, leaves: list[Any], dicts: list[bool], *, is_root: bool = False) -> None:
    """Append the leaves with their values, and for each dict below the root that has leaves whether it is None."""
    if isinstance(spec, LeafSpec):
        leaves.append((spec, value))
        return
    if isinstance(spec, dict) and not is_root and tree.leaves(spec):
        dicts.append(value is None)
    for key, child in spec.items() if isinstance(spec, dict) else enumerate(spec or ()):
        below = _BELOW_NULL if value is _BELOW_NULL or value is None else value[key]
        _walk(child, below, leaves, dicts)


def _nulls_within(value: Any) -> str:
    """A 1 for each value within that is null, a 0 for others; nothing if there can be none."""
    if isinstance(value, Ragged):
        return _nulls_within(value.flat_values)
    return "".join("01"[not valid] for valid in value.valid.reshape(-1)) if isinstance(value, Nullable) else ""


def _plain(value: Any) -> Any:
    if isinstance(value, Ragged):
        return with_flat_values(value, _plain(value.flat_values))
    return value.values if isinstance(value, Nullable) else value


def filler_of(spec: LeafSpec) -> Any:
    """What stands for None."""
    shape = [dim or 0 for dim in spec.shape]
    values = np.full(shape, spec.dtype(), object) if spec.dtype in (bytes, str) else np.zeros(shape, spec.dtype)
    if isinstance(spec, RaggedSpec):
        levels = [np.zeros(shape[0] + 1, spec.splits_dtype), *[np.zeros(1, spec.splits_dtype)] * (spec.ragged_rank - 1)]
        flat = np.empty((0, *shape[spec.ragged_rank + 1 :]), values.dtype)
        return Ragged.from_nested(flat, tuple(levels))
    if isinstance(spec, SparseSpec):
        return Sparse(np.empty((0, len(shape)), np.int64), np.empty(0, values.dtype), np.array(shape, np.int64))
    return values if values.shape or spec.dtype not in (bytes, str) else values.item()


def _parts(spec: LeafSpec, value: Any) -> Parts:
    if isinstance(spec, RaggedSpec):
        flat, splits = value.flat_values, value.nested_row_splits
        levels = [_u32s(end - start for start, end in pairwise(level)) for level in splits]
        return [(4, _u32s(flat.shape[1:]))], [*levels, *_values(spec, flat)]
    if isinstance(spec, SparseSpec):
        shape = b"".join(struct.pack("<q", dim) for dim in value.dense_shape)
        places = b"".join(struct.pack("<q", number) for number in value.indices.reshape(-1))
        return [(8, shape)], [places, *_values(spec, value.values)]
    if spec.dtype in (bytes, str) and not spec.shape:
        return [], [_text(value)]
    array = np.asarray(value, None if isinstance(spec.dtype, type) else spec.dtype)
    if isinstance(spec.dtype, np.dtype) and None not in spec.shape:
        return [(spec.dtype.itemsize, _values(spec, array)[0])] if prod(array.shape) else [], []
    assert isinstance(spec, ArraySpec)
    if isinstance(spec.dtype, np.dtype) and spec.shape == (None,):
        return [], _values(spec, array)
    return [(4, _u32s(array.shape))], _values(spec, array)


def _values(spec: LeafSpec, array: Any) -> list[bytes]:
    if spec.dtype in (bytes, str):
        texts = [_text(item) for item in array.reshape(-1)]
        return [_u32s(map(len, texts)), b"".join(texts)]
    return [array.astype(array.dtype.newbyteorder("<")).tobytes()]


def _text(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _u32s(numbers: Any) -> bytes:
    return b"".join(struct.pack("<I", number) for number in numbers)
