"""Moving many byte ranges at once, in a handful of numpy calls."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

# Above this, one slice assignment a range is as quick as a vectorised move, and needs no temporary copy.
_LONG = 1 << 14
# numpy has no item of 2 GiB; far below that, one copy a row costs nothing beside the bytes.
_LONG_ROW = 1 << 20
# What an element that somebody keeps may keep of others. Less would take a call for every one of them.
_KEPT_BESIDE = 1 << 16
_LARGEST_BLOCK = (32 << 20) - (64 << 10)


@cache
def keep_freed_memory() -> None:
    """Have the memory of batches that were dropped used again by later ones.

    glibc hands freed memory back to the kernel beyond twice the size of the largest block that it ever mapped by itself
    and freed, 32 MiB at most. Until a process frees such a block, every batch may fault its pages in anew, which takes
    longer than reading them. The block here is never touched, so it takes no memory. Source: mallopt(3),
    M_MMAP_THRESHOLD.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)


def windows(buffer: Bytes, nbytes: int) -> NDArray[Any]:
    """Every range of ``nbytes`` of a one-dimensional buffer, by the place where it begins, without a copy.

    Indexing it with an array of places gathers those ranges at memory speed, and assigning to it scatters them.
    """
    return np.ndarray((len(buffer) - nbytes + 1,), f"V{nbytes}", buffer, 0, (1,))


def gather_rows(buffer: Bytes, starts: Ints, nbytes: int) -> Bytes:
    """Ranges of one length, as rows: uint8 of shape ``[len(starts), nbytes]``."""
    if nbytes == 0 or len(starts) == 0:
        return np.empty((len(starts), nbytes), np.uint8)
    if nbytes > _LONG_ROW:
        copies = np.empty((len(starts), nbytes), np.uint8)
        for row, start in enumerate(starts.tolist()):
            copies[row] = buffer[start : start + nbytes]
        return copies
    rows: Bytes = windows(buffer, nbytes)[starts].view(np.uint8).reshape(len(starts), nbytes)
    return rows


def scatter_rows(buffer: Bytes, starts: Ints, rows: Bytes) -> None:
    """Put row i, of one length for all, at ``starts[i]``. The ranges do not overlap."""
    nbytes = rows.shape[1]
    if nbytes > _LONG_ROW:
        for row, start in enumerate(starts.tolist()):
            buffer[start : start + nbytes] = rows[row]
    elif nbytes and len(rows):
        windows(buffer, nbytes)[starts] = np.ascontiguousarray(rows).view(f"V{nbytes}")[:, 0]


def move_ranges(target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints) -> None:
    """Copy range i of ``lengths[i]`` bytes from one buffer to the other.

    A range of between w and 2w bytes is moved as two ranges of w bytes, one from each end, which may overlap: so
    ranges of any lengths need one gather and one scatter for each power of two.
    """
    if len(lengths) == 0:
        return
    exponents = np.frexp(np.asarray(lengths, np.float64))[1] - 1
    for exponent in np.unique(exponents[lengths > 0]):
        chosen = np.flatnonzero((exponents == exponent) & (lengths > 0))
        width = 1 << int(exponent)
        if width >= _LONG:
            _move_each(target, target_starts, source, source_starts, lengths, chosen)
            continue
        into, out_of = windows(target, width), windows(source, width)
        to, start, spare = target_starts[chosen], source_starts[chosen], lengths[chosen] - width
        into[to] = out_of[start]
        into[to + spare] = out_of[start + spare]


def _move_each(
    target: Bytes, target_starts: Ints, source: Bytes, source_starts: Ints, lengths: Ints, chosen: Ints
) -> None:
    ranges = zip(target_starts[chosen].tolist(), source_starts[chosen].tolist(), lengths[chosen].tolist(), strict=True)
    for to, start, length in ranges:
        target[to : to + length] = source[start : start + length]


def rows_together(nbytes: int) -> int:
    """Return how many rows of so many bytes may share memory, for one of them keeps that of all."""
    return max(1, _KEPT_BESIDE // max(1, nbytes))


def rows_apart(array: NDArray[Any]) -> list[Any]:
    """Return the rows of an array, of which each keeps itself and little of the others in memory."""
    together = rows_together(array.nbytes // max(1, len(array)))
    if array.ndim == 1 or len(array) <= together:
        return list(array)
    starts = range(0, len(array), together)
    return [row for start in starts for row in array[start : start + together].copy()]


def splits_of(lengths: NDArray[Any]) -> Ints:
    """Where rows of these lengths begin when laid one after another, and the end: int64 of shape ``[rows + 1]``."""
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
