"""The two functions of ``_gather.c`` in numpy, for a machine without a compiler, and to test the compiled ones.

Bytes are copied out of several buffers, such as mapped files. A buffer is a row of a table: its address, its bytes, 1
if it is an ArrayRecord file, and the least start of a range in it. Such a file has a block header of 24 bytes at every
multiple of 64 KiB, and starts do not count the headers::

    copy_rows    buffers abcdef, uvwxyz; buffer_of 0 1, starts 0 1, offset 1, nbytes 2             out  bcwx
    copy_ranges  the same buffers;       buffer_of 0 1, starts 0 1, lengths 1 3, places 4 0        out  vwx.a

Every range is compared with its buffer before the first byte is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_HEADER = 24
_BLOCK = 1 << 16
_PAYLOAD = _BLOCK - _HEADER
# numpy gathers rows into new memory, from which they are copied: so many bytes at once stay in the processor's cache.
_GATHERED_NBYTES = 1 << 18
_LONG_ROW = 1 << 14


def copy_rows(table: Ints, buffer_of: Ints | None, starts: Ints, offset: int, nbytes: int, out: Bytes) -> int:
    """Copy ranges of one length, one after another.

    Args:
        table: int64 of shape ``[buffers, 4]``, a buffer a row.
        buffer_of: the buffer of each range; None if all lie in the first.
        starts: int64: the start of each range in its buffer.
        offset: what is added to every start.
        nbytes: the bytes of each range.
        out: uint8 of ``len(starts) * nbytes`` bytes in all, which receives the ranges.

    Returns:
        The number of the first range that does not lie in its buffer; nothing is copied then. Else -1.
    """
    _check_ints(table, buffer_of, starts)
    rows = _target(out).reshape(len(starts), nbytes)
    bad = _first_outside(table, buffer_of, starts, offset, np.full(len(starts), nbytes))
    if bad >= 0 or not out.size:
        return bad
    begins = starts + offset
    if nbytes > _LONG_ROW:
        _copy(table, buffer_of, begins, np.full(len(begins), nbytes), rows.reshape(-1), np.arange(len(begins)) * nbytes)
        return -1
    memory, places, pieces = _places(table, buffer_of, begins)
    # Item i of this array is the range that begins at byte i of the memory, without a copy.
    ranges: NDArray[Any] = np.ndarray((len(memory) - nbytes + 1,), f"V{nbytes}", memory, 0, (1,))
    together = max(1, _GATHERED_NBYTES // nbytes)
    into = rows.view(f"V{nbytes}")[:, 0]
    for first in range(0, len(rows), together):
        into[first : first + together] = ranges[places[first : first + together]]
    # The rows that a header cuts are copied once more.
    cut = np.flatnonzero(pieces < nbytes)
    buffer_of = None if buffer_of is None else buffer_of[cut]
    _copy(table, buffer_of, begins[cut], np.full(len(cut), nbytes), rows.reshape(-1), cut * nbytes)
    return -1


def copy_ranges(table: Ints, buffer_of: Ints | None, starts: Ints, lengths: Ints, out: Bytes, places: Ints) -> int:
    """Copy ranges of any lengths to given places.

    Args:
        table, buffer_of, starts: as in :func:`copy_rows`.
        lengths: the bytes of each range.
        out: uint8: receives the ranges.
        places: where each range begins in ``out``.

    Returns:
        The number of the first range that does not lie in its buffer, or that does not fit into ``out`` at its place;
        nothing is copied then. Else -1.
    """
    _check_ints(table, buffer_of, starts, lengths, places)
    target = _target(out).reshape(-1)
    bad = _first_outside(table, buffer_of, starts, 0, lengths)
    misplaced = np.flatnonzero(_lie_outside(places, lengths, 0, len(target)))
    bad = min([number for number in (bad, *misplaced[:1].tolist()) if number >= 0], default=-1)
    if bad < 0:
        _copy(table, buffer_of, starts, lengths, target, places)
    return bad


def _check_ints(*arrays: Ints | None) -> None:
    for array in arrays:
        if array is not None and (array.dtype != np.int64 or not (array.flags.c_contiguous and array.flags.aligned)):
            raise TypeError("expected an aligned array of int64")


def _target(out: Bytes) -> Bytes:
    if not out.flags.writeable or not out.flags.c_contiguous:
        raise BufferError("the target is read-only, or not contiguous")
    return out.view(np.uint8)


def _lie_outside(starts: Ints, lengths: Ints, first: Any, room: Any) -> NDArray[np.bool_]:
    """Return which ranges reach outside of the room there is, without a sum that could overflow."""
    is_outside: NDArray[np.bool_] = (starts < np.maximum(first, 0)) | (lengths < 0)
    is_outside |= (lengths > room) | (starts > room - lengths)
    return is_outside


def _first_outside(table: Ints, buffer_of: Ints | None, starts: Ints, offset: int, lengths: Ints) -> int:
    if offset < 0:
        raise ValueError(f"offset {offset}")
    buffers = np.zeros(len(starts), np.int64) if buffer_of is None else buffer_of
    if len(buffers) != len(starts) or len(lengths) != len(starts):
        raise ValueError("expected arrays of one length")
    is_known = (buffers >= 0) & (buffers < len(table))
    table = np.append(table, np.zeros((1, 4), np.int64), axis=0)
    _, nbytes, has_headers, first = table[np.where(is_known, buffers, -1)].T
    blocks = nbytes // _BLOCK
    payload = blocks * _PAYLOAD + np.maximum(nbytes - blocks * _BLOCK - _HEADER, 0)
    room = np.where(has_headers, payload, nbytes) - offset
    outside = np.flatnonzero(~is_known | (room < 0) | _lie_outside(starts, lengths, first, room))
    return int(outside[0]) if len(outside) else -1


class _Memory:
    """The memory between two addresses, which numpy takes for an array."""

    def __init__(self, low: int, high: int) -> None:
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (high - low,), "data": (low, True)}


def _places(table: Ints, buffer_of: Ints | None, starts: Ints) -> tuple[Bytes, Ints, Ints]:
    """Return memory that has all buffers, where each start is in it, and how many bytes come before the next header."""
    addresses, nbytes, has_headers, _ = table.T
    used = nbytes > 0
    low = int(addresses[used].min())
    memory = np.asarray(_Memory(low, int((addresses + nbytes)[used].max())))
    buffer: Any = 0 if buffer_of is None else buffer_of
    block = starts // _PAYLOAD
    headers = np.where(has_headers[buffer], block + 1, 0)
    pieces = np.where(has_headers[buffer], (block + 1) * _PAYLOAD - starts, np.iinfo(np.int64).max)
    return memory, addresses[buffer] - low + starts + _HEADER * headers, pieces


def _copy(table: Ints, buffer_of: Ints | None, starts: Ints, lengths: Ints, out: Bytes, places: Ints) -> None:
    """Copy ranges that lie in their buffers, one by one."""
    if not lengths.any():
        return
    memory, begins, pieces = _places(table, buffer_of, starts)
    for begin, length, piece, place in zip(
        begins.tolist(), lengths.tolist(), pieces.tolist(), places.tolist(), strict=True
    ):
        while length > piece:
            out[place : place + piece] = memory[begin : begin + piece]
            place += piece
            begin += piece + _HEADER
            length -= piece
            piece = _PAYLOAD
        out[place : place + length] = memory[begin : begin + length]
