"""Protocol buffer varints, many at once."""

from __future__ import annotations

import numpy as np

from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints

_MAX_NBYTES = 10


def nbytes_of(values: Ints) -> Ints:
    """Bytes of each value as a varint; values are not negative."""
    bits = np.frexp(np.maximum(values, 1).astype(np.float64))[1]
    nbytes: Ints = np.maximum(-(-bits // 7), 1).astype(np.int64)
    return nbytes


def decode_all(buffer: Bytes) -> tuple[Ints, Ints]:
    """Every varint of a buffer that holds nothing else: the values, and where each begins.

    Raises:
        CorruptionError: where the last one is cut short or one is too long.
    """
    ends = np.flatnonzero(buffer < 0x80)
    if len(buffer) and (len(ends) == 0 or ends[-1] != len(buffer) - 1):
        raise CorruptionError("a varint is cut short")
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if len(ends) else np.empty(0, np.int64)
    lengths = ends - starts + 1
    if len(lengths) and lengths.max() > _MAX_NBYTES:
        raise CorruptionError("a varint has more than 10 bytes")
    values = np.zeros(len(starts), np.uint64)
    for byte in range(int(lengths.max(initial=0))):
        longer = slice(None) if byte == 0 else np.flatnonzero(lengths > byte)
        values[longer] |= (buffer[starts[longer] + byte] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * byte)
    return values.astype(np.int64), starts


def decode_at(buffer: Bytes, offset: int) -> tuple[int, int]:
    """The varint at an offset, and the offset after it."""
    value = 0
    for byte in range(_MAX_NBYTES):
        if offset + byte >= len(buffer):
            break
        item = int(buffer[offset + byte])
        value |= (item & 0x7F) << (7 * byte)
        if item < 0x80:
            return value, offset + byte + 1
    raise CorruptionError("a varint is cut short")


def decode_each(buffer: Bytes, offsets: Ints, ends: Ints | int) -> tuple[Ints, Ints]:
    """One varint at each offset: the values, and the offsets after them.

    Args:
        ends: where the bytes end that each may take; nothing behind is read.

    Raises:
        CorruptionError: if one is cut short or too long.
    """
    stops = np.broadcast_to(ends, len(offsets))
    after = np.array(offsets, np.int64)
    values = np.zeros(len(after), np.int64)
    active = np.arange(len(after))
    for byte in range(_MAX_NBYTES):
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
    """One varint of each row of bytes, at each row's offset: the values, and the offsets after them."""
    starts = np.arange(len(rows)) * rows.shape[1]
    outside = (np.asarray(offsets) < 0) | (np.asarray(offsets) > rows.shape[1])
    if np.any(outside):
        raise CorruptionError("a varint lies outside of what was read")
    values, after = decode_each(rows.reshape(-1), starts + offsets, starts + rows.shape[1])
    return values, after - starts
