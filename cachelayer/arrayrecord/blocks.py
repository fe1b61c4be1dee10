"""Offsets in an ArrayRecord file, which has a 24-byte block header at every multiple of 64 KiB, even inside records.

A *position* is an offset in the file. A *logical* offset does not count the block headers, so that what follows a
record has the next logical offset. Source: the Riegeli records file format specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Bytes, Ints, Piece, splits_of

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


def in_blocks(logical: Ints) -> tuple[Ints, Ints]:
    """Return the block of each logical offset, and its place among the bytes of that block after the header."""
    block = logical // PAYLOAD
    return block, logical - block * PAYLOAD


def without_headers(pieces: Sequence[Piece], begin: int) -> Bytes:
    """Return a range of a file without the block headers in it.

    Args:
        pieces: the bytes of the range, in order. If it is one that may be written to, the result lies in its memory.
        begin: the position of the first, which is in no block header.
    """
    nbytes = sum(map(len, pieces))
    whole = np.frombuffer(pieces[0], np.uint8) if len(pieces) == 1 else None
    if whole is not None and nbytes <= BLOCK - begin % BLOCK:
        return whole
    logical_nbytes = int(to_logical(begin + nbytes) - to_logical(begin))
    if whole is not None and whole.flags.writeable:
        return _moved_up(whole, begin % BLOCK)[:logical_nbytes]
    out = np.empty(logical_nbytes, np.uint8)
    position, place = begin, 0
    for piece in pieces:
        raw = np.frombuffer(piece, np.uint8)
        for part in _payloads(raw, position % BLOCK):
            out[place : place + part.size].reshape(part.shape)[:] = part
            place += part.size
        position += len(raw)
    return out


def _moved_up(raw: Bytes, within: int) -> Bytes:
    """Move bytes of a file over the block headers among them, given the place of the first in its block."""
    memory, place = raw.data, BLOCK - within
    for header in range(place, len(raw), BLOCK):
        part = memory[header + HEADER : header + BLOCK]
        memory[place : place + len(part)] = part
        place += len(part)
    return raw


def _payloads(raw: Bytes, within: int) -> Iterator[Bytes]:
    """Yield bytes of a file without block headers, given the place of the first in its block: whole blocks at once."""
    if within:
        head = min(BLOCK - within, len(raw))
        yield raw[max(0, min(HEADER - within, head)) : head]
        raw = raw[head:]
    whole = len(raw) // BLOCK
    yield raw[: whole * BLOCK].reshape(whole, BLOCK)[:, HEADER:]
    yield raw[whole * BLOCK + HEADER :]


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
    return ranges[owner], start - begin[owner], start + HEADER * (block + 1), stop - start
