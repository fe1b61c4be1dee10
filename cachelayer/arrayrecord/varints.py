"""Decode varints, many at once. A varint has 7 bits a byte, lowest first; the top bit says that another byte follows.

::

    300    = 0b10_0101100    ->    ac 02
"""

from __future__ import annotations

import numpy as np

from cachelayer.errors import CorruptionError
from cachelayer.support.memory import Bytes, Ints

MAX_NBYTES = 10


def nbytes_of(values: Ints) -> Ints:
    """Return how many bytes each value takes as a varint. No value is negative."""
    bits = np.frexp(np.maximum(values, 1).astype(np.float64))[1]
    nbytes: Ints = np.maximum(-(-bits // 7), 1).astype(np.int64)
    return nbytes


def decode_all(buffer: Bytes) -> tuple[Ints, Ints]:
    """Return the values of a buffer of nothing but varints, and where each varint begins."""
    ends = np.flatnonzero(buffer < 0x80)
    if len(buffer) and (len(ends) == 0 or ends[-1] != len(buffer) - 1):
        raise CorruptionError("a varint is cut short")
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if len(ends) else np.empty(0, np.int64)
    lengths = ends - starts + 1
    if len(lengths) and lengths.max() > MAX_NBYTES:
        raise CorruptionError("a varint has more than 10 bytes")
    values = np.zeros(len(starts), np.uint64)
    for byte in range(int(lengths.max(initial=0))):
        longer = slice(None) if byte == 0 else np.flatnonzero(lengths > byte)
        values[longer] |= (buffer[starts[longer] + byte] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * byte)
    return values.astype(np.int64), starts


def decode_at(buffer: Bytes, offset: int) -> tuple[int, int]:
    """Return the value of the varint at an offset, and the offset after it."""
    value = 0
    for byte in range(MAX_NBYTES):
        if offset + byte >= len(buffer):
            break
        item = int(buffer[offset + byte])
        value |= (item & 0x7F) << (7 * byte)
        if item < 0x80:
            return value, offset + byte + 1
    raise CorruptionError("a varint is cut short")


def decode_each(buffer: Bytes, offsets: Ints, ends: Ints | int) -> tuple[Ints, Ints]:
    """Return the value of the varint at each offset, and the offset after it; none is read past its end in ``ends``."""
    stops = np.broadcast_to(ends, len(offsets))
    after = np.array(offsets, np.int64)
    values = np.zeros(len(after), np.int64)
    active = np.arange(len(after))
    for byte in range(MAX_NBYTES):
        places = after[active]
        if (places >= stops[active]).any():
            raise CorruptionError("a varint is cut short")
        item = buffer[places].astype(np.int64)
        values[active] |= (item & 0x7F) << (7 * byte)
        after[active] += 1
        active = active[item >= 0x80]
        if len(active) == 0:
            return values, after
    raise CorruptionError("a varint has more than 10 bytes")


def decode_rows(rows: Bytes, offsets: Ints | int) -> tuple[Ints, Ints]:
    """Return the value of the varint at an offset in each row of bytes, and the offset after it."""
    starts = np.arange(len(rows)) * rows.shape[1]
    outside = (np.asarray(offsets) < 0) | (np.asarray(offsets) > rows.shape[1])
    if np.any(outside):
        raise CorruptionError("a varint lies outside of the bytes that were read")
    values, after = decode_each(rows.reshape(-1), starts + offsets, starts + rows.shape[1])
    return values, after - starts
