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
Piece = bytes | memoryview
"""Bytes that have come from elsewhere. A memoryview that may be written to belongs to the caller that gets it."""

# From this size on, assigning slice by slice is quicker than a vectorised move, which copies twice.
_LONG = 1 << 10
# A vectorised move of fewer ranges takes longer than as many slices.
_FEW = 1 << 10
# Gathering ranges by vectorised moves takes longer than by slices unless at least half of them are shorter than this.
_SHORT = 1 << 9
# Many ranges of 2 to 16 windows of this size, on average, are gathered in windows: that takes less time than slices,
# and other threads run meanwhile.
_WINDOW = 1 << 8
_MANY_NBYTES = 1 << 20
# So many windows are moved at once, which bounds the memory of the copy between.
_TOGETHER = 1 << 13
# numpy has no items of 2 GiB. Far smaller rows are copied one by one already, which costs nothing extra.
_LONG_ROW = 1 << 20
# numpy lets other threads run while it gathers so many items; fewer, which may be large, keep them waiting.
RELEASING_ITEMS = 501
# Gathering so many bytes takes several times as long as to wait for another thread.
_SLOW_NBYTES = 1 << 20
_LARGEST_WINDOW = 1 << 13
# Shorter windows take longer than the row as a whole.
_LEAST_WINDOW = 1 << 9
# How many bytes of other elements an element may keep alive. With less, each element would need its own copy.
KEPT_BESIDE = 1 << 16
_LARGEST_BLOCK = (32 << 20) - (64 << 10)


@cache
def keep_freed_memory() -> None:
    """Make later batches reuse the memory of freed ones.

    glibc returns freed memory to the kernel above a threshold, so that every batch may fault its pages in anew, which
    takes longer than reading them. When a process frees a block that has its own mapping, at most 32 MiB, glibc raises
    the threshold to twice its size. The block that is freed here is never touched, so it takes no memory. Source:
    mallopt(3), M_MMAP_THRESHOLD.
    """
    # Where addresses are short (``ulimit -v``), reading and writing may still do without.
    with suppress(MemoryError):
        np.empty(_LARGEST_BLOCK, np.uint8)


def windows(buffer: Bytes, nbytes: int) -> NDArray[Any]:
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
    window = nbytes
    if len(starts) < RELEASING_ITEMS and len(starts) * nbytes >= _SLOW_NBYTES:
        window = window_of(nbytes, -(-RELEASING_ITEMS // len(starts))) or nbytes
    if window < nbytes:
        starts = (starts[:, None] + np.arange(0, nbytes, window)).reshape(-1)
    rows: Bytes = windows(buffer, window)[starts].view(np.uint8).reshape(-1, nbytes)
    return rows


@lru_cache(maxsize=1 << 10)
def window_of(nbytes: int, least: int) -> int:
    """Return the size of at least so many windows that make up so many bytes; 0 if these cannot be cut into them."""
    largest = min(_LARGEST_WINDOW, nbytes // least)
    if nbytes <= largest:
        return nbytes
    return next((size for size in range(largest, _LEAST_WINDOW - 1, -1) if nbytes % size == 0), 0)


def scatter_rows(buffer: Bytes, starts: Ints, rows: Bytes) -> None:
    """Copy row i to ``starts[i]``. All rows have one length, and the ranges must not overlap."""
    nbytes = rows.shape[1]
    if nbytes > _LONG_ROW:
        for row, start in enumerate(starts.tolist()):
            buffer[start : start + nbytes] = rows[row]
    elif nbytes and len(rows):
        windows(buffer, nbytes)[starts] = np.ascontiguousarray(rows).view(f"V{nbytes}")[:, 0]


def _memory(buffer: Any) -> memoryview:
    # numpy's stubs do not say that an array is a buffer.
    return memoryview(buffer)


def gather_ranges(buffer: Bytes, starts: Ints, lengths: Ints) -> Bytes:
    """Return a copy of ranges of any lengths, one after another."""
    short = int((lengths < _SHORT).sum())
    if short >= _FEW and 2 * short >= len(lengths):
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        move_ranges(out, splits[:-1], buffer, starts, lengths)
        return out
    if _MANY_NBYTES <= int(lengths.sum()) <= 16 * _WINDOW * len(lengths):
        return _gather_in_windows(buffer, starts, lengths)
    # A bytearray, because arrays of immutable bytes cannot be changed.
    memory = _memory(buffer)
    ranges = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.frombuffer(bytearray().join([memory[start:stop] for start, stop in ranges]), np.uint8)


def _gather_in_windows(buffer: Bytes, starts: Ints, lengths: Ints) -> Bytes:
    """Return a copy of ranges, one after another, at least one of which has the size of a window.

    The copy is gathered as windows that lie side by side. Those that do not lie in one range are wrong: the first and
    the last window of each range, and short ranges as a whole, are copied once more.
    """
    splits = splits_of(lengths)
    targets, ends = splits[:-1], splits[1:]
    is_short = lengths < _WINDOW
    short, long = is_short.nonzero()[0], (~is_short).nonzero()[0]
    shifts, lasts = starts - targets, starts + lengths - _WINDOW
    # A window that begins in a short range may reach past the buffer: the first of a long range is gathered instead.
    shifts[short], lasts[short] = len(buffer), starts[long[0]]
    borders = -(-splits // _WINDOW)
    counts = borders[1:] - borders[:-1]
    begins = np.arange(0, int(borders[-1]) * _WINDOW, _WINDOW)
    begins += np.repeat(shifts, counts)
    np.minimum(begins, np.repeat(lasts, counts), out=begins)
    source = windows(buffer, _WINDOW)
    out: Bytes = source[begins].view(np.uint8)[: int(splits[-1])]
    into = windows(out, _WINDOW)
    # In the order of their targets, which share lines of the cache.
    wrong = np.stack([targets[long], ends[long] - _WINDOW], 1).reshape(-1)
    right = np.stack([starts[long], lasts[long]], 1).reshape(-1)
    for window in range(0, len(wrong), _TOGETHER):
        some = slice(window, window + _TOGETHER)
        into[wrong[some]] = source[right[some]]
    _move_each(out, targets[short], buffer, starts[short], lengths[short])
    return out


def move_ranges(target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints) -> None:
    """Copy range i of ``lengths[i]`` bytes from one buffer to the other.

    A range of w to 2w bytes is moved as two ranges of w bytes, one from each end, which may overlap. So ranges of any
    lengths need only two gathers and two scatters for each power of two.
    """
    short = np.flatnonzero(lengths < _LONG)
    if len(short) < _FEW:
        _move_each(target, target_starts, source, source_starts, lengths)
        return
    if len(short) < len(lengths):
        long = np.flatnonzero(lengths >= _LONG)
        _move_each(target, target_starts[long], source, source_starts[long], lengths[long])
        target_starts, source_starts, lengths = target_starts[short], source_starts[short], lengths[short]
    exponents = np.frexp(np.asarray(lengths, np.float64))[1] - 1
    for exponent in distinct(exponents[lengths > 0]):
        chosen = np.flatnonzero((exponents == exponent) & (lengths > 0))
        width = 1 << int(exponent)
        into, out_of = windows(target, width), windows(source, width)
        to, start, spare = target_starts[chosen], source_starts[chosen], lengths[chosen] - width
        into[to] = out_of[start]
        into[to + spare] = out_of[start + spare]


def _move_each(target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints) -> None:
    # Slices of memoryviews take half as long to make as those of arrays.
    into, out_of = _memory(target), _memory(source)
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
