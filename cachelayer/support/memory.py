"""What readers and writers of records need of memory, with few calls of numpy.

::

    move_ranges    from abcdefgh, starts 0 4, lengths 1 3, to places 3 0 of ....        efga
    splits_of      lengths 2 0 3                                                        0 2 2 5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachelayer.gather import Buffers, copy_ranges

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

LEAF_NBYTES = 1 << 32
"""More bytes than a leaf of an element may have, stored or decoded: a reader makes no larger array."""
MAX_SHARED_NBYTES = 1 << 16
"""How many bytes of other elements an element may keep alive. With less, each element would need its own copy."""


class Placed(NamedTuple):
    """An array, and where in it ranges of values begin, which are copied there."""

    values: NDArray[Any]
    places: Ints


def memory_of(buffer: Any) -> memoryview:
    """Return a buffer as a memoryview."""
    # numpy's stubs do not say that an array is a buffer.
    return memoryview(buffer)


def bytes_of(array: NDArray[Any]) -> Bytes:
    """Return the bytes of an array as one dimension: without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def buffers_of(arrays: Sequence[Bytes]) -> Buffers:
    """Return arrays, which are contiguous, as buffers that ranges are copied out of."""
    rows = []
    for array in arrays:
        interface = array.__array_interface__
        if interface["strides"] is not None or interface["typestr"] != "|u1":
            raise TypeError(f"expected contiguous bytes, not {array.dtype} with strides {array.strides}")
        rows.append((interface["data"][0], array.size, 0, 0))
    return Buffers(np.array(rows, np.int64).reshape(-1, 4), arrays)


def move_ranges(target: Bytes, places: Ints, source: Bytes, starts: Ints, lengths: Ints) -> None:
    """Copy ranges from one buffer to places of the other: range i has ``lengths[i]`` bytes."""
    arrays = [np.ascontiguousarray(each) for each in (starts, lengths, places)]
    wrong = copy_ranges(buffers_of([source]).table, None, arrays[0], arrays[1], target, arrays[2])
    if wrong >= 0:
        raise IndexError(f"range {wrong} does not lie in its buffer")


def rows_sharing_memory(nbytes: int) -> int:
    """Return how many rows of ``nbytes`` bytes may share memory, which lives as long as one of them is kept."""
    return max(1, MAX_SHARED_NBYTES // max(1, nbytes))


def separate_rows(array: NDArray[Any]) -> list[Any]:
    """Return the rows of an array as separate arrays: to keep one keeps at most 64 KiB of other rows alive."""
    together = rows_sharing_memory(array.nbytes // max(1, len(array)))
    if array.ndim == 1 or len(array) <= together:
        return list(array)
    starts = range(0, len(array), together)
    return [row for start in starts for row in array[start : start + together].copy()]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values of a one-dimensional array, ascending.

    The first call of ``np.unique`` imports ``numpy.ma``, which takes longer than to read a first batch.
    """
    ascending = np.sort(values)
    is_first = np.ones(len(ascending), np.bool_)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_first]


def groups_of(group_of: Ints, groups: int) -> Iterator[tuple[int, Ints]]:
    """Yield the number of each group that has rows, and its rows, ascending."""
    if groups == 1 and len(group_of):
        yield 0, np.arange(len(group_of))
        return
    # numpy sorts integers of one or two bytes by their digits, which is quicker.
    dtype: type = np.int64
    if groups <= 1 << 8:
        dtype = np.uint8
    elif groups <= 1 << 16:
        dtype = np.uint16
    order = group_of.astype(dtype).argsort(kind="stable")
    start = 0
    for group, count in enumerate(np.bincount(group_of, minlength=groups).tolist()):
        if count:
            yield group, order[start : start + count]
            start += count


def by_part(splits: Ints, numbers: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield each part that some numbers lie in, which of them do, and their numbers there; parts follow one another.

    ``splits`` has the first number of each part, and the end.
    """
    part_of = splits[1:].searchsorted(numbers, side="right")
    for part, rows in groups_of(part_of, len(splits) - 1):
        yield part, rows, numbers[rows] - splits[part]


def splits_of(lengths: NDArray[Any]) -> Ints:
    """Return where rows of these lengths begin, one after another, and the end: int64 of shape ``[rows + 1]``."""
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
