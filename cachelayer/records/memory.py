"""Gather, scatter and move many ranges of bytes with a few calls of numpy.

::

    gather_rows    abcdefgh, starts 0 4, nbytes 2            ab ef       rows of one length
    gather_ranges  abcdefgh, starts 0 4, lengths 1 3         aefg        ranges of any lengths, one after another
    scatter_rows   ab ef into ........ at starts 0 4         ab..ef..
    splits_of      lengths 2 0 3                             0 2 2 5     where rows begin, and the end
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

# Ranges are moved by vectorised calls if they are at least so many, and have at most so many bytes on average: fewer
# ranges are moved sooner by a loop over slices, and longer ones too, because vectorised calls copy twice.
_LEAST_VECTORISED = 1 << 10
_MOST_MEAN_NBYTES = 1 << 11
# Longer ranges are moved as several of this size, so many at once as the cache of the processor holds.
_WIDEST = 1 << 9
_RANGES_AT_ONCE = 1 << 11
# numpy releases the interpreter lock while it gathers at least so many items. With fewer items, other threads wait,
# which takes long for so many bytes.
_LEAST_ITEMS_RELEASING = 501
_LONG_WAIT_NBYTES = 1 << 20
_LEAST_RANGE = 1 << 9
_LARGEST_RANGE = 1 << 13
# numpy has no items of 2 GiB. Far smaller rows are copied one by one already, which costs nothing extra.
_LONG_ROW = 1 << 20
LEAF_NBYTES = 1 << 32
"""More bytes than a leaf of an element may have, stored or decoded: a reader makes no larger array."""
MAX_SHARED_NBYTES = 1 << 16
"""How many bytes of other elements an element may keep alive. With less, each element would need its own copy."""
_LARGEST_MAPPING = (32 << 20) - (64 << 10)


@cache
def keep_freed_memory() -> None:
    """Make later batches reuse the memory of freed ones.

    glibc returns freed memory above a threshold to the kernel. Then the pages of every batch fault in anew, which takes
    longer than to read the batch. glibc raises the threshold when a process frees a mapping of at most 32 MiB: to twice
    the size of the mapping. So this frees such a mapping, and never touches its memory, which therefore takes none.
    Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    # A limit of addresses (``ulimit -v``) may refuse the mapping; readers and writers work without it.
    with suppress(MemoryError):
        np.empty(_LARGEST_MAPPING, np.uint8)


def overlapping_ranges(buffer: Bytes, nbytes: int) -> NDArray[Any]:
    """Return an array whose item i is the range of ``nbytes`` that begins at byte i of a buffer, without a copy.

    Of ``abcd``, ranges of 2 bytes are ``ab``, ``bc`` and ``cd``. To index the result with an array gathers ranges at
    memory speed; to assign to its items scatters ranges.
    """
    return np.ndarray((len(buffer) - nbytes + 1,), f"V{nbytes}", buffer, 0, (1,))


def gather_rows(buffer: Bytes, starts: Ints, nbytes: int) -> Bytes:
    """Return copies of ranges of one length, as rows: uint8 of shape ``[len(starts), nbytes]``."""
    if nbytes == 0 or len(starts) == 0:
        return np.empty((len(starts), nbytes), np.uint8)
    if nbytes > _LONG_ROW:
        copies = np.empty((len(starts), nbytes), np.uint8)
        for row, start in enumerate(starts.tolist()):
            copies[row] = buffer[start : start + nbytes]
        return copies
    rows: Bytes = overlapping_ranges(buffer, nbytes)[starts].view(np.uint8).reshape(-1, nbytes)
    return rows


@lru_cache(maxsize=1 << 10)
def range_nbytes(nbytes: int, rows: int) -> int:
    """Return the size of the ranges into which rows are cut before numpy gathers them, so that other threads run.

    It divides ``nbytes``, the size of a row. It is ``nbytes`` if rows need not be cut, or no size divides them.
    """
    if rows * nbytes < _LONG_WAIT_NBYTES or (rows >= _LEAST_ITEMS_RELEASING and nbytes <= _LARGEST_RANGE):
        return nbytes
    largest = min(_LARGEST_RANGE, nbytes * rows // _LEAST_ITEMS_RELEASING)
    return next((size for size in range(largest, _LEAST_RANGE - 1, -1) if nbytes % size == 0), nbytes)


def scatter_rows(buffer: Bytes, starts: Ints, rows: Bytes) -> None:
    """Copy row i to byte ``starts[i]`` of a buffer. The ranges must not overlap."""
    nbytes = rows.shape[1]
    if nbytes > _LONG_ROW:
        for row, start in enumerate(starts.tolist()):
            buffer[start : start + nbytes] = rows[row]
    elif nbytes and len(rows):
        overlapping_ranges(buffer, nbytes)[starts] = np.ascontiguousarray(rows).view(f"V{nbytes}")[:, 0]


def memory_of(buffer: Any) -> memoryview:
    """Return a buffer as a memoryview."""
    # numpy's stubs do not say that an array is a buffer.
    return memoryview(buffer)


def gather_ranges(buffer: Bytes, starts: Ints, lengths: Ints) -> Bytes:
    """Return copies of ranges of any lengths, one after another."""
    if _are_many_and_short(lengths):
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        move_ranges(out, splits[:-1], buffer, starts, lengths)
        return out
    # A bytearray, because arrays of immutable bytes cannot be changed.
    memory = memory_of(buffer)
    ranges = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.frombuffer(bytearray().join([memory[start:stop] for start, stop in ranges]), np.uint8)


def _are_many_and_short(lengths: Ints) -> bool:
    return len(lengths) >= _LEAST_VECTORISED and int(lengths.sum()) <= _MOST_MEAN_NBYTES * len(lengths)


def move_ranges(target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints) -> None:
    """Copy ranges from one buffer to the other: range i has ``lengths[i]`` bytes.

    Many short ranges are moved by vectorised calls, which move ranges of one width. A range of w to 2w bytes is moved
    as two ranges of w bytes, one from each end, which may overlap. So each power of two takes two gathers and two
    scatters, whatever the lengths are. A long range is moved as several of ``_WIDEST`` bytes, of which the last two may
    overlap::

        7 bytes, w = 4:  abcd...     14 bytes, if _WIDEST were 4:  abcd efgh ijkl
                            defg                                               klmn
    """
    if not _are_many_and_short(lengths):
        _move_each(target, target_starts, source, source_starts, lengths)
        return
    exponents = np.minimum(np.frexp(np.asarray(lengths, np.float64))[1] - 1, _WIDEST.bit_length() - 1)
    for exponent in distinct(exponents[lengths > 0]):
        chosen = np.flatnonzero((exponents == exponent) & (lengths > 0))
        width = 1 << int(exponent)
        into = overlapping_ranges(target, width)
        out_of = overlapping_ranges(source, width)
        to = target_starts[chosen]
        start = source_starts[chosen]
        spare = lengths[chosen] - width
        if width < _WIDEST:
            into[to] = out_of[start]
            into[to + spare] = out_of[start + spare]
            continue
        counts = -(-spare // width) + 1
        firsts = splits_of(counts)
        inside = (np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)) * width
        inside = np.minimum(inside, np.repeat(spare, counts))
        to = np.repeat(to, counts) + inside
        start = np.repeat(start, counts) + inside
        for first in range(0, len(to), _RANGES_AT_ONCE):
            some = slice(first, first + _RANGES_AT_ONCE)
            into[to[some]] = out_of[start[some]]


def _move_each(target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints) -> None:
    # Slices of memoryviews take half as long to make as those of arrays.
    into = memory_of(target)
    out_of = memory_of(source)
    bounds = (target_starts, target_starts + lengths, source_starts, source_starts + lengths)
    for to, to_end, start, end in zip(*(bound.tolist() for bound in bounds), strict=True):
        into[to:to_end] = out_of[start:end]


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
    """Yield the number of each group that has rows, and its rows, ascending.

    Args:
        group_of: the group of each row.
        groups: the number of groups.
    """
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


def splits_of(lengths: NDArray[Any]) -> Ints:
    """Return where rows of these lengths begin, one after another, and the end: int64 of shape ``[rows + 1]``."""
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
