"""The layout of a record: the offset of each part of an element, by arithmetic alone.

A record is a fixed section, followed by the variable parts if the element has any::

    | fixed parts, largest alignment first | u32 byte length of each variable part | null bits | pad |
    | variable part 0 | pad | variable part 1 | pad | ...

Every section and every variable part begins at a multiple of 8 and is padded with zeros to the next one. The alignment
of a part is the largest power of two that divides its item size, at most 8. Parts of one alignment keep their order;
the lengths are sorted in with alignment 4. There is one null bit for each leaf, in little bit order, 1 for null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachelayer.records.leaf_codecs import LeafCodec
from cachelayer.records.leaf_parts import U32, FixedPart, fixed_nbytes


def padded(nbytes: int) -> int:
    """Round a number of bytes up to a multiple of 8."""
    return -(-nbytes // 8) * 8


def alignment(itemsize: int) -> int:
    """Return the largest power of two, at most 8, that divides an item size."""
    return min(8, itemsize & -itemsize) if itemsize else 1


@dataclass(frozen=True)
class Layout:
    """Offsets, in bytes from the beginning of a record.

    Args:
        fixed: for each leaf, the offset of each of its fixed parts.
        variable: for each leaf, the number of its first variable part among all of the record.
        variable_count: the number of variable parts.
        lengths: the offset of the lengths of the variable parts.
        nulls: the offset of the null bits.
        null_nbytes: the bytes of the null bits.
        fixed_nbytes: the bytes of the fixed section, with padding.
    """

    fixed: tuple[tuple[int, ...], ...]
    variable: tuple[int, ...]
    variable_count: int
    lengths: int
    nulls: int
    null_nbytes: int
    fixed_nbytes: int


def layout_of(leaves: Sequence[LeafCodec]) -> Layout:
    """Return the layout of a record with these leaves."""
    variable_count = sum(len(leaf.variable) for leaf in leaves)
    null_nbytes = -(-len(leaves) // 8)
    parts: list[FixedPart] = [part for leaf in leaves for part in leaf.fixed]
    parts.append((U32, (variable_count,)))
    parts.append((np.dtype(np.uint8), (null_nbytes,)))
    offsets = [0] * len(parts)
    end = 0
    for index in sorted(range(len(parts)), key=lambda index: -alignment(parts[index][0].itemsize)):
        offsets[index] = end
        end += fixed_nbytes(parts[index])

    remaining = iter(offsets)
    first_variable = np.cumsum([0, *(len(leaf.variable) for leaf in leaves)]).tolist()
    return Layout(
        fixed=tuple(tuple(next(remaining) for _ in leaf.fixed) for leaf in leaves),
        variable=tuple(first_variable[:-1]),
        variable_count=variable_count,
        lengths=next(remaining),
        nulls=next(remaining),
        null_nbytes=null_nbytes,
        fixed_nbytes=padded(end),
    )


def gaps(used: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Return the ranges between 0 and ``end`` that are not used.

    Args:
        used: ranges that do not overlap, each from its first byte to the one after its last.
        end: where the last gap ends.
    """
    edges = [0, *(edge for part in sorted(used) for edge in part), end]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
