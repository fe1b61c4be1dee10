"""The memory for elements that are all like the first: each leaf lies where its record has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError
from cachelayer.records import dtypes
from cachelayer.records.infer import leaf_spec
from cachelayer.records.layout import layout_of
from cachelayer.records.leaf_codecs import leaf_codec
from cachelayer.records.memory import Bytes
from cachelayer.records.record_buffers import PREFIX
from cachelayer.records.row_memory import RowMemory


def memory_for(leaves: Sequence[Any], rows: int) -> RowMemory | None:
    """Return memory for elements with leaves like these, in this order; None if such elements differ in size."""
    try:
        specs = [leaf_spec(leaf) for leaf in leaves]
    except CacheLayerError:
        return None
    static = [spec for spec in specs if spec is not None and spec.is_static]
    if len(static) < len(specs):
        return None
    layout = layout_of([leaf_codec(spec) for spec in static])
    stride = PREFIX + layout.fixed_nbytes
    buffer = np.empty(rows * stride, np.uint8)
    columns = [
        _rows(leaf, buffer, rows, PREFIX + offsets[0], stride) if _is_stored_as_it_is(leaf) else None
        for leaf, offsets in zip(leaves, layout.fixed, strict=True)
    ]
    return RowMemory(buffer, stride, columns)


def _is_stored_as_it_is(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.size > 0 and leaf.dtype.isnative and not dtypes.is_extended(leaf.dtype)


def _rows(leaf: NDArray[Any], buffer: Bytes, rows: int, offset: int, stride: int) -> NDArray[Any]:
    # The array may lie in memory in another order than its rows will.
    within = np.empty((1, *leaf.shape), leaf.dtype).strides[1:]
    return np.ndarray((rows, *leaf.shape), leaf.dtype, buffer, offset, (stride, *within))
