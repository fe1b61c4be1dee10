"""Offsets in an ArrayRecord file, which has a 24-byte block header at every multiple of 64 KiB, even inside records.

A *position* is an offset in the file. A *logical* offset does not count the block headers, so that what follows a
record has the next logical offset. Source: the Riegeli records file format specification.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Bytes, Ints, splits_of

BLOCK = 1 << 16
HEADER = 24
PAYLOAD = BLOCK - HEADER


@overload
def to_logical(position: int) -> int: ...
@overload
def to_logical(position: Ints) -> Ints: ...
def to_logical(position: Any) -> Any:
    """Return the logical offset of a position. A header has the logical offset of the first byte after it."""
    return position // BLOCK * PAYLOAD + np.maximum(position % BLOCK - HEADER, 0)


@overload
def to_position(logical: int) -> int: ...
@overload
def to_position(logical: Ints) -> Ints: ...
def to_position(logical: Any) -> Any:
    """Return the position of the byte at a logical offset."""
    return logical + HEADER * (logical // PAYLOAD + 1)


def without_headers(raw: Bytes, begin: int) -> Bytes:
    """Return bytes of a file from a position on, which is in no block header, without the block headers in them."""
    first = BLOCK - begin % BLOCK
    if len(raw) <= first:
        return raw
    whole = (len(raw) - first) // BLOCK
    middle, rest = first + whole * PAYLOAD, raw[first + whole * BLOCK + HEADER :]
    out = np.empty(middle + len(rest), np.uint8)
    out[:first] = raw[:first]
    out[first:middle].reshape(whole, PAYLOAD)[:] = raw[first : first + whole * BLOCK].reshape(whole, BLOCK)[:, HEADER:]
    out[middle:] = rest
    return out


def outside(logical: Ints, lengths: Ints, room: Ints | int) -> NDArray[np.bool_]:
    """Return which ranges do not lie in their files. Safe for any numbers: no sum overflows.

    Args:
        room: the bytes of each file without block headers: ``to_logical(nbytes)``.
    """
    wrong: NDArray[np.bool_] = (logical < 0) | (lengths < 0) | (lengths > room) | (logical > room - lengths)
    return wrong


def pieces(logical: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Split ranges at the block headers.

    Args:
        logical: the logical offset of each range.
        lengths: bytes of each range, without block headers.

    Returns:
        For each piece the number of its range, its offset in the range, its position in the file, its length.
        Empty ranges have no pieces.
    """
    ranges = np.flatnonzero(lengths > 0)
    begin = logical[ranges]
    end = begin + lengths[ranges]
    first = begin // PAYLOAD
    counts = (end - 1) // PAYLOAD - first + 1
    splits = splits_of(counts)
    owner = np.repeat(np.arange(len(ranges)), counts)
    block = first[owner] + np.arange(splits[-1]) - splits[owner]
    start = np.maximum(begin[owner], block * PAYLOAD)
    stop = np.minimum(end[owner], (block + 1) * PAYLOAD)
    return ranges[owner], start - begin[owner], to_position(start), stop - start
