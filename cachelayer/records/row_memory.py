"""Memory in which leaves lie where their records have them, so that what is copied into it is encoded already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError
from cachelayer.records import dtypes
from cachelayer.records.infer import leaf_spec
from cachelayer.records.layout import layout_of
from cachelayer.records.leaf_codecs import leaf_codec
from cachelayer.records.memory import Bytes
from cachelayer.records.record_buffers import PREFIX


@dataclass(frozen=True, eq=False)
class RowMemory:
    """Memory for records of one size, each with room for its length before it, as :class:`Frames` have them.

    Args:
        buffer: uint8.
        stride: bytes from one record to the next.
        columns: for each leaf that is an array the rows of it in the buffer, of shape ``[rows, ...]``; None for others.
    """

    buffer: Bytes
    stride: int
    columns: list[NDArray[Any] | None]

    @classmethod
    def of(cls, leaves: Sequence[Any], rows: int) -> Self | None:
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
        return cls(buffer, stride, columns)

    def first(self, rows: int) -> RowMemory:
        """Return the memory of the first records."""
        return RowMemory(self.buffer[: rows * self.stride], self.stride, [])

    def has(self, values: NDArray[Any], offset: int) -> bool:
        """Return whether rows lie in this memory, from this offset of their records on."""
        begins: int = values.__array_interface__["data"][0] - self.buffer.__array_interface__["data"][0]
        return begins == PREFIX + offset and values.strides[0] == self.stride


def _is_stored_as_it_is(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.size > 0 and leaf.dtype.isnative and not dtypes.is_extended(leaf.dtype)


def _rows(leaf: NDArray[Any], buffer: Bytes, rows: int, offset: int, stride: int) -> NDArray[Any]:
    # The array may lie in memory in another order than its rows will.
    within = np.empty((1, *leaf.shape), leaf.dtype).strides[1:]
    return np.ndarray((rows, *leaf.shape), leaf.dtype, buffer, offset, (stride, *within))
