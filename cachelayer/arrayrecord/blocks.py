"""Offsets in an ArrayRecord file, which has a 24-byte block header at every multiple of 64 KiB, even inside records.

A *position* is an offset in the file. A *logical* offset does not count the block headers, so that what follows a
record has the next logical offset. Source: the Riegeli records file format specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, splits_of
from cachelayer.records.record_buffers import outside

BLOCK = 1 << 16
HEADER = 24
PAYLOAD = BLOCK - HEADER
# The logical bytes that a file begins with, before any record: an empty chunk. A header comes before, so these end at
# position 64.
SIGNATURE = 40


@overload
def to_logical(position: int) -> int: ...
@overload
def to_logical(position: Ints) -> Ints: ...
def to_logical(position: Any) -> Any:
    """Return the logical offset of a position. A header has the logical offset of the first byte after it."""
    # numpy divides by one number several times as fast as it finds the remainder.
    block = position // BLOCK
    return block * PAYLOAD + np.maximum(position - block * BLOCK - HEADER, 0)


@overload
def to_position(logical: int) -> int: ...
@overload
def to_position(logical: Ints) -> Ints: ...
def to_position(logical: Any) -> Any:
    """Return the position of the byte at a logical offset."""
    return logical + HEADER * (logical // PAYLOAD + 1)


def without_headers(ranges: Sequence[bytes | memoryview], begins: Ints) -> tuple[Bytes, Ints]:
    """Return ranges of files one after another, without the block headers in them, and where each begins.

    Args:
        ranges: the bytes of each range.
        begins: the position of the first, which is in no block header.
    """
    sizes = np.array([len(raw) for raw in ranges], np.int64)
    splits = splits_of(to_logical(begins + sizes) - to_logical(begins))
    if len(ranges) == 1 and splits[-1] == sizes[0]:
        return np.frombuffer(ranges[0], np.uint8), splits[:-1]
    out = np.empty(int(splits[-1]), np.uint8)
    for raw, within, start in zip(ranges, (begins % BLOCK).tolist(), splits.tolist(), strict=False):
        whole = np.frombuffer(raw, np.uint8)
        head, rest = whole[: BLOCK - within], whole[BLOCK - within :]
        blocks = len(rest) // BLOCK
        payloads = rest[: blocks * BLOCK].reshape(blocks, BLOCK)[:, HEADER:]
        tail = rest[blocks * BLOCK + HEADER :]
        for part in (head, payloads, tail) if len(rest) else (head,):
            out[start : start + part.size].reshape(part.shape)[:] = part
            start += part.size
    return out, splits[:-1]


def check_inside(logical: Ints, lengths: Ints, room: Ints | int, name: Callable[[int], str], first: int = 0) -> None:
    """Raise if a range does not lie in its file.

    Args:
        logical, lengths: the logical offset of each range, and its bytes without block headers.
        room: the bytes of each file without block headers: ``to_logical(nbytes)``.
        name: returns the name of a range in error messages, given its number.
        first: the least logical offset of a range.
    """
    wrong = outside(logical, lengths, room) | (logical < first)
    if wrong.any():
        raise CorruptionError(f"{name(int(wrong.argmax()))} does not lie in its file: the file or its index is damaged")


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
    return ranges[owner], start - begin[owner], start + HEADER * (block + 1), stop - start
