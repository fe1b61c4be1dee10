"""Move many byte ranges at once, with a few numpy calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

# A vectorised move of fewer ranges takes longer than as many slices; of longer ones too, because it copies twice.
_MANY, _SHORT = 1 << 10, 1 << 11
# Longer ranges are moved as several of this size, so many at once as the cache of the processor holds.
_WIDEST, _AT_ONCE = 1 << 9, 1 << 11
# numpy lets other threads run while it gathers so many items; fewer keep them waiting, which is long for so many bytes.
_RELEASING, _MUCH = 501, 1 << 20
_LEAST_RANGE, _LARGEST_RANGE = 1 << 9, 1 << 13
# numpy has no items of 2 GiB. Far smaller rows are copied one by one already, which costs nothing extra.
_LONG_ROW = 1 << 20
# How many bytes of other elements an element may keep alive. With less, each element would need its own copy.
KEPT_BESIDE = 1 << 16
_LARGEST_MAPPING = (32 << 20) - (64 << 10)


@cache
def keep_freed_memory() -> None:
    """Make later batches reuse the memory of freed ones.

    glibc returns freed memory to the kernel above a threshold, so that every batch may fault its pages in anew, which
    takes longer than reading them. When a process frees memory that has its own mapping, at most 32 MiB, glibc raises
    the threshold to twice its size. The memory that is freed here is never touched, so it takes no memory. Source:
    mallopt(3), M_MMAP_THRESHOLD.
    """
    # Where addresses are short (``ulimit -v``), reading and writing may still do without.
    with suppress(MemoryError):
        np.empty(_LARGEST_MAPPING, np.uint8)


def overlapping_ranges(buffer: Bytes, nbytes: int) -> NDArray[Any]:
    """Return an array whose item i is the range of ``nbytes`` that begins at byte i of a one-dimensional buffer.

    Nothing is copied. Indexing the result with an array gathers ranges at memory speed; assigning to it scatters them.
    """
    return np.ndarray((len(buffer) - nbytes + 1,), f"V{nbytes}", buffer, 0, (1,))


def gather_rows(buffer: Bytes, starts: Ints, nbytes: int) -> Bytes:
    """Return a copy of ranges of one length, as rows: uint8 of shape ``[len(starts), nbytes]``."""
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
    """Return into ranges of what size to cut so many rows of ``nbytes`` bytes, so that other threads run meanwhile.

    It divides ``nbytes``; it is ``nbytes`` itself if the rows are to stay whole, or cannot be cut.
    """
    if rows * nbytes < _MUCH or (rows >= _RELEASING and nbytes <= _LARGEST_RANGE):
        return nbytes
    largest = min(_LARGEST_RANGE, nbytes * rows // _RELEASING)
    return next((size for size in range(largest, _LEAST_RANGE - 1, -1) if nbytes % size == 0), nbytes)


def scatter_rows(buffer: Bytes, starts: Ints, rows: Bytes) -> None:
    """Copy row i to ``starts[i]``. All rows have one length, and the ranges must not overlap."""
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
    """Return a copy of ranges of any lengths, one after another."""
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
    return len(lengths) >= _MANY and int(lengths.sum()) <= _SHORT * len(lengths)


def move_ranges(target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints) -> None:
    """Copy range i of ``lengths[i]`` bytes from one buffer to the other.

    Many short ranges are moved by vectorised calls: a range of w to 2w bytes as two ranges of w bytes, one from each
    end, which may overlap; so ranges of all lengths need two gathers and two scatters for each power of two. Longer
    ranges are moved as several ranges of ``_WIDEST`` bytes, the last of which overlaps the one before.
    """
    if not _are_many_and_short(lengths):
        _move_each(target, target_starts, source, source_starts, lengths)
        return
    exponents = np.minimum(np.frexp(np.asarray(lengths, np.float64))[1] - 1, _WIDEST.bit_length() - 1)
    for exponent in distinct(exponents[lengths > 0]):
        chosen = np.flatnonzero((exponents == exponent) & (lengths > 0))
        width = 1 << int(exponent)
        into, out_of = overlapping_ranges(target, width), overlapping_ranges(source, width)
        to, start, spare = target_starts[chosen], source_starts[chosen], lengths[chosen] - width
        if width < _WIDEST:
            into[to] = out_of[start]
            into[to + spare] = out_of[start + spare]
            continue
        counts = -(-spare // width) + 1
        firsts = splits_of(counts)
        inside = (np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)) * width
        inside = np.minimum(inside, np.repeat(spare, counts))
        to, start = np.repeat(to, counts) + inside, np.repeat(start, counts) + inside
        for first in range(0, len(to), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            into[to[some]] = out_of[start[some]]


def _move_each(target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints) -> None:
    # Slices of memoryviews take half as long to make as those of arrays.
    into, out_of = memory_of(target), memory_of(source)
    bounds = (target_starts, target_starts + lengths, source_starts, source_starts + lengths)
    for to, to_end, start, end in zip(*(bound.tolist() for bound in bounds), strict=True):
        into[to:to_end] = out_of[start:end]


def rows_together(nbytes: int) -> int:
    """Return how many rows of ``nbytes`` bytes may share memory, given that keeping one keeps all of them alive."""
    return max(1, KEPT_BESIDE // max(1, nbytes))


def rows_apart(array: NDArray[Any]) -> list[Any]:
    """Return the rows of an array, such that keeping one keeps little memory of others alive."""
    together = rows_together(array.nbytes // max(1, len(array)))
    if array.ndim == 1 or len(array) <= together:
        return list(array)
    starts = range(0, len(array), together)
    return [row for start in starts for row in array[start : start + together].copy()]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values of a one-dimensional array, ascending.

    ``np.unique`` imports ``numpy.ma`` when it is first called, which takes longer than to read a first batch.
    """
    found = np.sort(values)
    is_first = np.ones(len(found), np.bool_)
    is_first[1:] = found[1:] != found[:-1]
    return found[is_first]


def groups_of(group_of: Ints, groups: int) -> Iterator[tuple[int, Ints]]:
    """Yield each group that has rows, and its rows, ascending.

    Args:
        group_of: the group of each row.
        groups: the number of groups.
    """
    if groups == 1 and len(group_of):
        yield 0, np.arange(len(group_of))
        return
    # numpy sorts small integers by their digits.
    small = group_of.astype(np.uint8 if groups <= 1 << 8 else np.uint16 if groups <= 1 << 16 else np.int64)
    order = small.argsort(kind="stable")
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
