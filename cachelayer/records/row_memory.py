"""Memory in which leaves lie where their records have them, so that what is copied into it is encoded already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

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

    def first(self, rows: int) -> RowMemory:
        """Return the memory of the first records."""
        return RowMemory(self.buffer[: rows * self.stride], self.stride, [])

    def has(self, values: NDArray[Any], offset: int) -> bool:
        """Return whether rows lie in this memory, from this offset of their records on."""
        begins: int = values.__array_interface__["data"][0] - self.buffer.__array_interface__["data"][0]
        return begins == PREFIX + offset and values.strides[0] == self.stride
