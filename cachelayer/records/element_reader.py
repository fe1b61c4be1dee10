"""Read the leaves of one record without the columns by which many records are decoded, which take ten times as long."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from cachelayer.records import dtypes
from cachelayer.records.layout import Layout
from cachelayer.records.memory import KEPT_BESIDE
from cachelayer.records.spec import LeafSpec, RaggedSpec, SparseSpec

# A leaf of at most this part of a large record is copied.
_SMALL_PART = 8


class ElementReader:
    """Reads leaves of these specs: arrays of known shape, arrays whose first dimension is not known, single strings.

    Args:
        specs: the specs of the leaves; see :meth:`reads`.
        layout: where they lie in a record.
    """

    def __init__(self, specs: Sequence[LeafSpec], layout: Layout) -> None:
        self._nbytes = layout.fixed_nbytes
        self._nulls = slice(layout.nulls, layout.nulls + layout.null_nbytes)
        self._lengths_at = layout.lengths
        self._lengths = f"<{layout.variable_count}I"
        self._is_static = not layout.variable_count and not any(spec.nullable for spec in specs)
        # The null bit of each leaf, its dtype and shape, the offset of its array or dimension, and its variable part.
        self._leaves: list[tuple[int, Any, Any, int, int]] = [
            (1 << leaf if spec.nullable else 0, spec.dtype, spec.shape, offsets[0] if offsets else 0, part)
            for leaf, (spec, offsets, part) in enumerate(zip(specs, layout.fixed, layout.variable, strict=True))
        ]
        # The shape, dtype and offset of each leaf if all are static: then an element consists of views of its record.
        self._views = [(shape, dtype, offset) for _, dtype, shape, offset, _ in self._leaves] if self._is_static else []
        # Of a large record, small arrays are copied, so that keeping one does not keep the record.
        self._copied = [
            leaf
            for leaf, (shape, dtype, _) in enumerate(self._views)
            if shape and self._nbytes > KEPT_BESIDE and prod(shape) * dtype.itemsize * _SMALL_PART <= self._nbytes
        ]

    @staticmethod
    def reads(specs: Sequence[LeafSpec]) -> bool:
        """Return whether leaves of all these specs can be read."""
        return all(
            not isinstance(spec, (RaggedSpec, SparseSpec))
            and (not spec.shape if dtypes.is_string(spec.dtype) else None not in spec.shape[1:])
            for spec in specs
        )

    def leaves(self, record: bytearray) -> list[Any] | None:
        """Return the leaves of a record; None if it is not as these specs say. They may share its memory."""
        if self._is_static:
            if len(record) != self._nbytes:
                return None
            views = [
                np.ndarray(shape, dtype, record, offset) if shape else np.frombuffer(record, dtype, 1, offset)[0]
                for shape, dtype, offset in self._views
            ]
            for leaf in self._copied:
                views[leaf] = views[leaf].copy()
            return views
        if len(record) < self._nbytes:
            return None
        lengths = struct.unpack_from(self._lengths, record, self._lengths_at)
        starts, end = [], self._nbytes
        for length in lengths:
            starts.append(end)
            end += (length + 7) & ~7
        if end != len(record):
            return None
        memory = memoryview(record)
        nulls = int.from_bytes(memory[self._nulls], "little")
        found: list[Any] = []
        for null, dtype, shape, offset, part in self._leaves:
            value: Any
            if dtype is bytes or dtype is str:
                raw = memory[starts[part] : starts[part] + lengths[part]]
                value = bytes(raw) if dtype is bytes else str(raw, "utf-8", "surrogatepass")
            elif not shape:
                value = np.frombuffer(record, dtype, 1, offset)[0]
            elif shape[0] is not None:
                value = _array(record, dtype, shape, offset)
            else:
                shape = (int.from_bytes(memory[offset : offset + 4], "little"), *shape[1:])
                if prod(shape) * dtype.itemsize != lengths[part]:
                    return None
                value = _array(record, dtype, shape, starts[part])
            found.append(None if nulls & null else value)
        return found


def _array(record: bytearray, dtype: Any, shape: Any, offset: int) -> Any:
    array = np.ndarray(shape, dtype, record, offset)
    # An array of less than half of the record is copied, so that keeping it does not keep the record.
    return array if 2 * array.nbytes >= len(record) else array.copy()
